"""One operator computes what another one computes."""

from __future__ import annotations

import torch


def assert_same_kernels(found, expected, generator, close):
    """Compare the kernels of two rank-one operators at random arguments, four at a time."""
    n, d = expected.n, expected.d
    U, D = (torch.randn(4, d, 2, generator=generator, dtype=torch.float64) for _ in range(2))
    z, Q = torch.randn(4, n, generator=generator, dtype=torch.float64), U @ U.mT
    Z = expected.project(U)
    for name, arguments in {
        "apply_kernel": (Q,), "adjoint_kernel": (z,), "apply_factor_kernel": (U,),
        "apply_tangent": (U, D), "adjoint_factor_kernel": (z, U), "project": (U,),
        "gram": (Q[0],), "normal_kernel": (Q,), "log_sizes": (U,), "weighted_adjoint": (z, Z),
        "gradient_sweep": (U, z), "normal_equations": (Z[0], z[0]), "largest_entry": (),
        "absolute_moments": (), "symmetric_fit": (z[0],),
    }.items():  # fmt: skip
        values = (getattr(operator, name)(*arguments) for operator in (found, expected))
        values = ((value if isinstance(value, tuple) else (value,)) for value in values)
        for one, other in zip(*values, strict=True):
            close(one, other)
    close(found.adjoint_kernel(z[0]), expected.adjoint_kernel(z[0]))
    close(found.linearize(U, z)(D), expected.linearize(U, z)(D))
    close(found.gauss_newton_product(Z)(D), expected.gauss_newton_product(Z)(D))
    for name in ("X", "squared_lengths", "second_moments", "fourth_moments"):
        close(getattr(found, name), getattr(expected, name))
    close(found.transformed(Q[0]).X, expected.transformed(Q[0]).X)
    close(found.normalized().X, expected.normalized().X)
    some = torch.tensor([0, 2, n - 1])
    close(found.at_rows(some).X, expected.X[some])
