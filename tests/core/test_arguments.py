"""Arguments that are True or False: anything else is refused, and the argument is named."""

from __future__ import annotations

import numpy as np
import pytest

from posquad import LeastSquares, RankOne, certify, gradient_descent, gradient_flow, recover
from posquad.core.arguments import require_boolean
from posquad.core.errors import DomainError
from posquad.estimator import PositiveQuadraticRegressor as Regressor
from posquad.sweep import Sweep, product, run_sweep

X = np.random.default_rng(0).standard_normal((20, 2))
U = np.array([[1.0], [2.0]])
Y = (X @ U)[:, 0] ** 2
OBJECTIVE = LeastSquares(RankOne(X), Y)
SWEEP = Sweep("mine", lambda p, seed: {"y": 1}, product(x=[1]))

CALLS = {
    "recover diagnose": lambda value: recover(X, Y, 1, diagnose=value),
    "recover certify": lambda value: recover(X, Y, 1, certify=value),
    "certify compare": lambda value: certify(OBJECTIVE, U, compare=value),
    "flow save_factors": lambda value: gradient_flow(OBJECTIVE, U, t_final=1, save_factors=value),
    "descent save_factors": lambda value: gradient_descent(
        OBJECTIVE, U, step=0.1, max_steps=1, save_factors=value
    ),
    "fit linear": lambda value: Regressor(linear=value).fit(X, Y),
    "fit certify": lambda value: Regressor(certify=value).fit(X, Y),
    "predict return_std": lambda value: Regressor(1).fit(X, Y).predict(X, return_std=value),
    "partial_fit refit": lambda value: Regressor(1).partial_fit(X, Y, refit=value),
    "sweep quick": lambda value: run_sweep(SWEEP, "unused", quick=value),
    "sweep retry": lambda value: run_sweep(SWEEP, "unused", retry=value),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("value", ["no", 1, None], ids=repr)
def test_what_is_neither_true_nor_false_is_refused(name, value):
    argument = name.split()[1]
    with pytest.raises(DomainError, match=f"{argument}: expected True or False; got {value!r}"):
        CALLS[name](value)


def test_booleans_of_numpy_are_accepted():
    require_boolean(one=np.bool_(True), other=False)
