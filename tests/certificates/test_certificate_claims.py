"""`proved_conclusions`: what follows from which claims, on one example worked by hand.

`x = e1, e1 + e2, e1 - e2, e2` and `U = e1`. The vectors `A_i U = (x_i'U) x_i` have the Gram matrix
`diag(3, 2)`, so that `lam = 2` and `Lam = 3`; `sum_i |x_i|^2 x_i x_i' = 5 I` proves `mu = 5/4`.
`A*(z) = e2 e2'` for `z = (0, 0, 0, 1)`: `beta = 1`. `A*(dual) = e1 e1' <= I` for
`dual = (1, 0, 0, 0)`, and `<y, dual> = 1 = tr UU'`.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from posquad.certificates.proofs.bounded_operator import BoundedRankOne
from posquad.certificates.proofs.claims import Claims, Witness, proved_conclusions

X = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, -1.0], [0.0, 1.0]])
Y = np.array([1.0, 1.0, 1.0, 0.0])
WITNESS = Witness(np.eye(2)[:, :1], z=np.eye(4)[3], dual=np.eye(4)[0])
NEAR = 1e-9
CLAIMS = Claims(
    residual=0.01,  # zero in truth
    largest=1 + NEAR,
    lam=2 - NEAR,
    gauge=1.0,
    Lam=3 + NEAR,
    mu=1.25 + NEAR,
    beta=1 - NEAR,
    excess=NEAR,
)
# s = sqrt(n) |z| / beta = 2 and C^2 = s^2 + 4 (1/2) (1 + sqrt(5/4) s)^2, Theorem D.
CONSTANT = math.sqrt(4 + 2 * (1 + math.sqrt(5)) ** 2)
EXPECTED = {
    "residual": 0.01,
    "relative_residual": 0.01 / math.sqrt(3 / 4),
    "lam": 2.0,
    "Lam": 3.0,
    "mu": 1.25,
    "radius": math.sqrt(2 / 1.25) / 2,
    "floor": 4 * 0.01 / math.sqrt(2),
    "constant": CONSTANT,
    "within": 2 * CONSTANT * 0.01,
    "size": 1.0,
    "trace": 1.0,
    "trace_gap": 1 / (1 - 0.01 * 2) - 1,  # <y, dual> less |dual| sqrt(n) residual
}
BY_THE_CONSTANT = 1 / (1 - 2 * math.sqrt(2) * CONSTANT * 0.01) - 1
LOCAL = dict.fromkeys(("radius", "floor", "constant", "within"))
GLOBAL = dict.fromkeys(("constant", "within"))


@pytest.mark.parametrize(
    ("claims", "witness", "changed"),
    [
        ({}, {}, {}),
        ({"lam": None}, {}, {"lam": None, **LOCAL}),
        ({"Lam": None}, {}, {"Lam": None}),
        ({"lam": None, "Lam": None}, {}, {"lam": None, "Lam": None, **LOCAL}),
        ({"mu": None}, {}, {"mu": None, **LOCAL}),
        ({"beta": None}, {}, GLOBAL),
        ({}, {"z": None}, GLOBAL),
        ({"excess": None}, {}, {"trace_gap": BY_THE_CONSTANT}),
        ({}, {"dual": None}, {"trace_gap": BY_THE_CONSTANT}),
        ({"beta": None, "excess": None}, {}, {**GLOBAL, "trace_gap": None}),
        # False claims: nothing that rests on them follows.
        ({"lam": 2 + NEAR}, {}, {"lam": None, **LOCAL}),
        ({"Lam": 3 - NEAR}, {}, {"Lam": None}),
        ({"mu": 1.25 - NEAR}, {}, {"mu": None, **LOCAL}),
        ({"beta": 1 + NEAR}, {}, GLOBAL),
        ({"largest": 1 - NEAR}, {}, {"lam": None, "Lam": None, "mu": None, **LOCAL}),
        ({"excess": 0.0}, {"dual": np.eye(4)[0] * (1 + NEAR)}, {"trace_gap": BY_THE_CONSTANT}),
        (
            {"residual": 1e-300},
            {},
            {
                "residual": math.inf,
                "relative_residual": math.inf,
                "floor": None,
                "within": None,
                "trace_gap": None,
            },
        ),
    ],
)
def test_what_follows_from_which_claims(claims, witness, changed):
    """To 1e-7: the claims are off by 1e-9, and the quotients below amplify that a few times."""
    found = proved_conclusions(
        BoundedRankOne(X), Y, replace(WITNESS, **witness), replace(CLAIMS, **claims)
    )
    for name, value in {**EXPECTED, **changed}.items():
        assert getattr(found, name) == (None if value is None else pytest.approx(value, rel=1e-7))
    # Bounds from above are above, and bounds from below are below.
    assert found.trace >= 1 >= found.size
    if found.within is not None:
        assert found.within > EXPECTED["within"]
