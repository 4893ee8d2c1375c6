"""Every public call of measurements and objectives with what it cannot accept.

A wrong call raises the right PosquadError, naming the argument, before any work: while these
tests run, every kernel is replaced by one that fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from posquad import Dense, GaussianPopulation, LeastSquares, PopulationRisk, RankOne
from posquad import SmoothObjective as Smooth
from posquad.core.errors import DomainError, DtypeError, NonFiniteError, PosquadError, ShapeError
from posquad.problems.measurements import Measurements
from posquad.problems.objectives import Objective

N, D, R = 7, 4, 2
_rng = torch.Generator().manual_seed(3)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=_rng, dtype=torch.float64)


def symmetric(*shape: int) -> Tensor:
    S = random(*shape)
    return S + S.mT


X, Y, U, DELTA = random(N, D), random(N), random(D, R), random(D, R)
Q, A = symmetric(D, D), symmetric(N, D, D)
POPULATION = GaussianPopulation(D)


def square(Q: Tensor) -> Tensor:
    return Q.square().sum((-2, -1))


OPERATORS = {
    "RankOne": RankOne(X),
    "RankOne batch": RankOne(X.repeat(3, 1, 1)),
    "Dense": Dense(A),
    "Dense batch": Dense(A.repeat(3, 1, 1, 1)),
    "GaussianPopulation": POPULATION,
}
OBJECTIVES = {
    "LeastSquares": LeastSquares(OPERATORS["RankOne"], Y),
    "LeastSquares batch": LeastSquares(OPERATORS["RankOne batch"], Y),
    "LeastSquares Dense": LeastSquares(OPERATORS["Dense"], Y),
    "LeastSquares y batch": LeastSquares(OPERATORS["RankOne"], Y.repeat(3, 1)),
    "LeastSquares population": LeastSquares(POPULATION, random(POPULATION.n)),
    "PopulationRisk": PopulationRisk(U),
    "PopulationRisk batch": PopulationRisk(U.repeat(3, 1, 1)),
    "SmoothObjective": Smooth(square, D),
}


@dataclass(frozen=True)
class Call:
    """A public call as a function of one array argument, the others being good."""

    function: Callable[[Any], Any]
    argument: str
    good: Tensor
    wrong_shapes: tuple[tuple[int, ...], ...]
    is_symmetric: bool = False


FACTOR_SHAPES = ((), (D,), (D, 0), (D + 1, R), (D - 1, R), (R, D), (D, D, 0), (3, D + 1, R))
SQUARE_SHAPES = ((), (D,), (D, D - 1), (D - 1, D - 1), (D + 1, D + 1), (3, D, D + 1))


def operator_calls(op: Measurements) -> dict[str, Call]:
    weights = ((), (op.n + 1,), (op.n - 1,), (op.n, 1), (0,), (1,))
    z = random(op.n)
    factor = ((), (D,), (D, 0), (D + 1, R), (R, D), (3, D + 1, R))
    return {
        "apply": Call(op.apply, "Q", Q, SQUARE_SHAPES, is_symmetric=True),
        "normal": Call(op.normal, "H", Q, SQUARE_SHAPES, is_symmetric=True),
        "apply_factor": Call(op.apply_factor, "U", U, factor),
        "adjoint": Call(op.adjoint, "z", z, weights),
        "adjoint_factor z": Call(lambda v: op.adjoint_factor(v, U), "z", z, weights),
        "adjoint_factor U": Call(lambda v: op.adjoint_factor(z, v), "U", U, factor),
    }


def objective_calls(objective: Objective) -> dict[str, Call]:
    product = objective.hessian_product
    directions = (*FACTOR_SHAPES, (D, R + 1), (D, 1))
    return {
        "loss": Call(objective.loss, "U", U, FACTOR_SHAPES),
        "gradient": Call(objective.gradient, "U", U, FACTOR_SHAPES),
        "loss_and_gradient": Call(objective.loss_and_gradient, "U", U, FACTOR_SHAPES),
        "predictor_gradient": Call(
            objective.predictor_gradient, "Q", Q, SQUARE_SHAPES, is_symmetric=True
        ),
        "hessian_product U": Call(lambda v: product(v, DELTA), "U", U, FACTOR_SHAPES),
        "hessian_product Delta": Call(lambda v: product(U, v), "Delta", DELTA, directions),
    }


CONSTRUCTORS = {
    "RankOne(X)": Call(RankOne, "X", X, ((), (D,), (0, D), (N, 0), (3, 0, D))),
    "Dense(A)": Call(
        Dense,
        "A",
        A,
        ((), (D,), (D, D), (0, D, D), (N, 0, 0), (N, D, D + 1), (3, N, 2, 1)),
        is_symmetric=True,
    ),
    "PopulationRisk(U_star)": Call(PopulationRisk, "U_star", U, ((), (D,), (D, 0), (R, D), (0, 0))),
    "LeastSquares(RankOne, y)": Call(
        lambda y: LeastSquares(OPERATORS["RankOne"], y), "y", Y, ((), (N + 1,), (N, 1), (0,), (1,))
    ),
    "LeastSquares(population, y)": Call(
        lambda y: LeastSquares(POPULATION, y), "y", random(POPULATION.n), ((), (N,), (0,))
    ),
}
METHODS = {
    f"{name}.{method}": call
    for objects, calls in ((OPERATORS, operator_calls), (OBJECTIVES, objective_calls))
    for name, thing in objects.items()
    for method, call in calls(thing).items()
}
CALLS = CONSTRUCTORS | METHODS
# What a batched object has in common with a single one, such as its converter, is tried on the
# single one only. The converter itself is tried in test_arrays.py, with everything it refuses.
SINGLE = [name for name in CALLS if " batch." not in name]


OPERATOR_KERNELS = """
    apply_kernel adjoint_kernel apply_factor_kernel apply_tangent adjoint_factor_kernel
    normal_kernel gradient_sweep linearize
"""
OBJECTIVE_KERNELS = "value value_and_gradient linearize predictor_gradient_kernel"


@pytest.fixture
def no_work(monkeypatch) -> None:
    """Every kernel fails, so that an error raised by one is not taken for a check."""

    def fail(*_: Any) -> None:
        raise AssertionError("work began before the input was checked")

    def below(kind: type) -> list[type]:
        return [kind, *(each for sub in kind.__subclasses__() for each in below(sub))]

    for base, kernels in ((Measurements, OPERATOR_KERNELS), (Objective, OBJECTIVE_KERNELS)):
        for owner in below(base):
            for kernel in kernels.split():
                if kernel in vars(owner):
                    monkeypatch.setattr(owner, kernel, fail)


def refuses(
    function: Callable[[Any], Any], value: Any, kind: type[PosquadError], argument: str
) -> PosquadError:
    """Assert the error's class and that it names the argument; it is returned for more."""
    with pytest.raises(kind) as caught:
        function(value)
    error = caught.value
    assert argument in error.argument.split(", ")
    assert str(error) == f"{error.argument}: expected {error.expected}; got {error.got}"
    return error


def test_the_good_values_are_good():
    """Otherwise the other tests could pass for the wrong reason."""
    for name, call in CALLS.items():
        assert call.function(call.good) is not None, name
        assert call.function(call.good.numpy()) is not None, name


@pytest.mark.usefixtures("no_work")
def test_good_input_reaches_the_kernels():
    """Good input reaches a kernel, which the fixture has replaced."""
    for call in METHODS.values():
        with pytest.raises(AssertionError, match="work began"):
            call.function(call.good)


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("name", SINGLE)
def test_not_finite(name):
    call = CALLS[name]
    value = call.good.clone()
    value.view(-1)[0] = torch.nan  # on the diagonal of a matrix
    before, version = value.clone(), value._version
    for kind in (value, value.numpy()):
        error = refuses(call.function, kind, NonFiniteError, call.argument)
        assert error.got == f"1 of {value.numel()} not finite"
    torch.testing.assert_close(value, before, rtol=0, atol=0, equal_nan=True)
    assert value._version == version  # the bad value was not modified


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("name", SINGLE)
def test_wrong_types(name):
    call = CALLS[name]
    refuses(call.function, call.good.numpy() + 0j, DtypeError, call.argument)


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("name", CALLS)
def test_wrong_shapes(name):
    call = CALLS[name]
    for shape in call.wrong_shapes:
        for kind in (torch.ones(shape, dtype=torch.float64), np.ones(shape)):
            error = refuses(call.function, kind, ShapeError, call.argument)
            assert str(shape) in error.got
            assert "shape" in error.expected


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("name", [name for name in CALLS if CALLS[name].is_symmetric])
def test_asymmetric_matrices(name):
    call = CALLS[name]
    value = call.good.clone()
    value[..., 0, 1] += 1e-6
    for kind in (value, value.numpy(), value.expand(3, *value.shape)):
        error = refuses(call.function, kind, DomainError, call.argument)
        assert "symmetric" in error.expected
        assert "asymmetry" in error.got


BATCHED = [name for name in METHODS if " batch." in name or " y batch." in name]


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("name", BATCHED)
def test_batches_that_do_not_broadcast(name):
    """Three operators, targets or sets of responses against two arguments."""
    call = METHODS[name]
    error = refuses(call.function, call.good.expand(2, *call.good.shape), ShapeError, call.argument)
    assert "broadcast" in error.expected
    assert "(2,)" in error.got
    assert "(3,)" in error.got


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("name", OPERATORS)
def test_two_arguments_that_do_not_broadcast(name):
    op = OPERATORS[name]
    z = random(2, 1, op.n)
    refuses(lambda v: op.adjoint_factor(z, v), U.expand(3, 1, D, R), ShapeError, "U")


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("name", OBJECTIVES)
def test_directions_that_do_not_broadcast(name):
    product = OBJECTIVES[name].hessian_product
    points = U.expand(2, 1, D, R)
    refuses(lambda v: product(points, v), DELTA.expand(4, 1, D, R), ShapeError, "Delta")


def test_responses_that_do_not_broadcast_with_the_operator():
    refuses(lambda y: LeastSquares(OPERATORS["RankOne batch"], y), random(2, N), ShapeError, "y")


# Precision: float32 measurements do not take float64 arguments, because narrowing loses digits.

NARROW_OPERATORS = {"RankOne": RankOne(X.float()), "Dense": Dense(A.float())}
NARROW = {
    f"{name}.{method}": call
    for name, op in NARROW_OPERATORS.items()
    for calls in (operator_calls(op), objective_calls(LeastSquares(op, Y.float())))
    for method, call in calls.items()
    if not method.startswith(("adjoint_factor", "hessian_product"))
} | {
    f"{name}.{method}": call
    for name, op in NARROW_OPERATORS.items()
    for method, call in {
        "adjoint_factor z": Call(lambda v, op=op: op.adjoint_factor(v, U.float()), "z", Y, ()),
        "adjoint_factor U": Call(lambda v, op=op: op.adjoint_factor(Y.float(), v), "U", U, ()),
        "LeastSquares": Call(lambda v, op=op: LeastSquares(op, v), "y", Y, ()),
        "hessian_product Delta": Call(
            lambda v, op=op: LeastSquares(op, Y.float()).hessian_product(U.float(), v),
            "Delta",
            DELTA,
            (),
        ),
    }.items()
}


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("name", NARROW)
def test_float64_beside_float32_data(name):
    call = NARROW[name]
    for kind in (call.good, call.good.numpy()):
        error = refuses(call.function, kind, DtypeError, call.argument)
        assert "float32" in error.expected
        assert "float64" in error.got


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("name", NARROW)
def test_integers_beside_float32_data(name):
    """They are refused as what they are, not as the float64 they became inside."""
    call = NARROW[name]
    value = torch.ones(call.good.shape, dtype=torch.int64)
    error = refuses(call.function, value, DtypeError, call.argument)
    assert "int64" in error.got


@pytest.mark.parametrize("name", SINGLE)
def test_integers_are_float64(name):
    call = CALLS[name]
    values = torch.ones(call.good.shape, dtype=torch.float64)
    result, expected = call.function(values.numpy().astype(np.int64)), call.function(values)
    if isinstance(expected, Measurements | Objective):
        return
    for one, two in zip(as_tuple(result), as_tuple(expected), strict=True):
        assert torch.as_tensor(one).dtype == torch.float64
        np.testing.assert_allclose(one, two, rtol=1e-13)  # same sums, perhaps in another order


def as_tuple(value: Any) -> tuple:
    return value if isinstance(value, tuple) else (value,)


# Arguments that are not arrays.


@pytest.mark.parametrize("d", [0, -1, 2.0, "3", None, True, np.nan, [3]])
def test_dimensions(d):
    for function in (GaussianPopulation, lambda d: Smooth(square, d)):
        error = refuses(function, d, DomainError, "d")
        assert error.got == repr(d)


@pytest.mark.parametrize("function", [None, "square", 3, torch.eye(2)])
def test_functions(function):
    refuses(lambda f: Smooth(f, D), function, DtypeError, "function")


@pytest.mark.parametrize(
    "measurements", [None, X, X.numpy(), "RankOne", RankOne, PopulationRisk(U)]
)
def test_measurements(measurements):
    error = refuses(lambda m: LeastSquares(m, Y), measurements, DtypeError, "measurements")
    assert error.got == type(measurements).__name__


# Calls with something that already lives on a device: data of the object, or another argument.
PLACED = [
    name
    for name in SINGLE
    if name in METHODS
    and (
        not name.startswith(("GaussianPopulation.", "SmoothObjective."))
        or name.endswith(("adjoint_factor z", "adjoint_factor U", "product U", "product Delta"))
    )
]


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("name", PLACED)
def test_another_device(name):
    """Without a second device, a tensor without data stands for one that lives elsewhere."""
    call = METHODS[name]
    other = call.good.to("cuda" if torch.cuda.is_available() else "meta")
    with pytest.raises(DtypeError) as caught:
        call.function(other)
    assert call.argument in str(caught.value)  # whichever of the two it takes for misplaced
