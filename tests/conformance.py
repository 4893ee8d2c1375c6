"""What every measurement operator must satisfy, and a record of what a computation allocates.

A new operator inherits the suite by giving a fixture that builds it:

    class TestMine(MeasurementsConformance):
        @pytest.fixture(params=[...])
        def build(self, request, rng):
            return lambda dtype=torch.float64, device="cpu": Mine(...)

Its matrices `A_i` are read off by applying it to a basis of symmetric matrices. From these, its
dense twin, NumPy recomputes every public method and every kernel in float64, and an entry may
differ from the twin by rounding of the terms it is summed from: by `60 size eps` times the same
formula in absolute values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from posquad.core.errors import DtypeError
from posquad.problems.measurements import Measurements
from posquad.problems.projected import Projected
from support import normal

RATIO = 60
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
Build = Callable[..., Measurements]


@dataclass(frozen=True)
class Arguments:
    """One value of each kind of argument; `minus_y` so that every formula is a sum of products."""

    Q: Any  # [..., d, d]  symmetric
    U: Any  # [..., d, r]
    Delta: Any  # [..., d, r]
    z: Any  # [..., n]
    minus_y: Any  # [..., n]

    def map(self, function: Callable[[Any], Any]) -> Arguments:
        return replace(self, **{f.name: function(getattr(self, f.name)) for f in fields(self)})


def _apply(A: np.ndarray, Q: np.ndarray) -> np.ndarray:
    return np.einsum("...iab,...ab->...i", A, Q)


def _adjoint(A: np.ndarray, z: np.ndarray) -> np.ndarray:
    return np.einsum("...i,...iab->...ab", z, A)


def _gram(U: np.ndarray, V: np.ndarray) -> np.ndarray:
    return U @ np.swapaxes(V, -1, -2)


def _residual(A: np.ndarray, a: Arguments) -> np.ndarray:
    return _apply(A, _gram(a.U, a.U)) + a.minus_y


def _linearized(A: np.ndarray, a: Arguments) -> np.ndarray:
    along = _apply(A, _gram(a.Delta, a.U) + _gram(a.U, a.Delta))
    return _adjoint(A, along) @ a.U + _adjoint(A, _residual(A, a)) @ a.Delta


# What the operator computes, and the same from its matrices.
PUBLIC: dict[str, tuple[Callable, Callable]] = {
    "apply": (lambda op, a: op.apply(a.Q), lambda A, a: _apply(A, a.Q)),
    "apply_factor": (
        lambda op, a: op.apply_factor(a.U),
        lambda A, a: _apply(A, _gram(a.U, a.U)),
    ),
    "adjoint": (lambda op, a: op.adjoint(a.z), lambda A, a: _adjoint(A, a.z)),
    "adjoint_factor": (
        lambda op, a: op.adjoint_factor(a.z, a.U),
        lambda A, a: _adjoint(A, a.z) @ a.U,
    ),
    "normal": (
        lambda op, a: op.normal(a.Q),
        lambda A, a: _adjoint(A, _apply(A, a.Q)) / A.shape[-3],
    ),
}
KERNELS: dict[str, tuple[Callable, Callable]] = {
    "apply_tangent": (
        lambda op, a: op.apply_tangent(a.U, a.Delta),
        lambda A, a: _apply(A, _gram(a.Delta, a.U) + _gram(a.U, a.Delta)),
    ),
    "gradient_sweep residual": (
        lambda op, a: op.gradient_sweep(a.U, -a.minus_y)[0],
        _residual,
    ),
    "gradient_sweep product": (
        lambda op, a: op.gradient_sweep(a.U, -a.minus_y)[1],
        lambda A, a: _adjoint(A, _residual(A, a)) @ a.U,
    ),
    "linearize": (lambda op, a: op.linearize(a.U, -a.minus_y)(a.Delta), _linearized),
}


def _each(A: np.ndarray, U: np.ndarray) -> np.ndarray:
    """The products A_i U, `[..., n, d, r]`."""
    return np.einsum("...iab,...br->...iar", A, U)


def _jacobian(A: np.ndarray, a: Arguments) -> np.ndarray:
    products = _each(A, a.U)
    return 2 * products.reshape(*products.shape[:-2], products.shape[-2] * products.shape[-1])


def _products(A: np.ndarray, D: np.ndarray) -> np.ndarray:
    return np.einsum("...iab,...bc,...jcd,...da->...ij", A, D, A, D)


# What a search asks for, of what the operator keeps of a factor.
SEARCH: dict[str, tuple[Callable, Callable]] = {
    "forms": (
        lambda op, a: op.forms(op.project(a.U)),
        lambda A, a: _apply(A, _gram(a.U, a.U)),
    ),
    "paired": (
        lambda op, a: op.paired(op.project(a.U), op.project(a.Delta)),
        lambda A, a: _apply(A, _gram(a.U, a.Delta) + _gram(a.Delta, a.U)) / 2,
    ),
    "weighted_adjoint": (
        lambda op, a: op.weighted_adjoint(a.z, op.project(a.U)),
        lambda A, a: _adjoint(A, a.z) @ a.U,
    ),
    "gauss_newton_product": (
        lambda op, a: op.gauss_newton_product(op.project(a.U))(a.Delta),
        lambda A, a: _adjoint(A, _apply(A, _gram(a.U, a.Delta) + _gram(a.Delta, a.U))) @ a.U,
    ),
    "jacobian": (lambda op, a: op.jacobian(op.project(a.U)), _jacobian),
    "jacobian_size": (
        lambda op, a: op.jacobian_size(op.project(a.U)),
        lambda A, a: (_each(A, a.U) ** 2).sum((-3, -2, -1)),
    ),
    "normal_equations": (
        lambda op, a: op.normal_equations(op.project(a.U), a.z)[0],
        lambda A, a: np.swapaxes(_jacobian(A, a), -1, -2) @ _jacobian(A, a),
    ),
    "normal_equations right": (
        lambda op, a: op.normal_equations(op.project(a.U), a.z)[1],
        lambda A, a: (np.swapaxes(_jacobian(A, a), -1, -2) @ a.z[..., None])[..., 0],
    ),
    "dual_system": (
        lambda op, a: op.dual_system(op.project(a.U)),
        lambda A, a: _jacobian(A, a) @ np.swapaxes(_jacobian(A, a), -1, -2),
    ),
    "inner_products": (lambda op, a: op.inner_products(a.Q), lambda A, a: _products(A, a.Q)),
    "measured": (
        lambda op, a: op.measured(a.U, None)[0],
        lambda A, a: _apply(A, _gram(a.U, a.U)),
    ),
}
# What depends on the operator alone.
OWN: dict[str, tuple[Callable, Callable]] = {
    "matrices": (lambda op: op.matrices, lambda A: A),
    "norms": (lambda op: op.norms, lambda A: np.sqrt((A**2).sum((-2, -1)))),
    "squares": (lambda op: op.squares, lambda A: np.einsum("...iab,...ibc->...ac", A, A)),
    "inner products": (
        lambda op: op.inner_products(),
        lambda A: np.einsum("...iab,...jab->...ij", A, A),
    ),
}
EVERY = PUBLIC | KERNELS

# Batch shapes of (Q, U, Delta, z, y) in front of that of the operator.
BATCHES = {
    "none": ((), (), (), (), ()),
    "same": ((3,), (3,), (3,), (3,), (3,)),
    "outer": ((2, 1), (3,), (2, 1), (2, 1), (3,)),
    "one": ((1,), (1,), (4,), (1,), ()),
    "empty": ((0,), (0,), (1,), (0,), (0,)),
}


class MeasurementsConformance:
    """Inherited by the test class of each operator; see the top of this file."""

    @pytest.fixture
    def build(self) -> Build:
        raise NotImplementedError(f"{type(self).__name__} must give a fixture `build`")

    @pytest.fixture
    def operator(self, build: Build) -> Measurements:
        return build()

    @pytest.mark.parametrize("name", EVERY)
    def test_dense_twin(self, operator, rng, name):
        """Also the factor paths against the matrix paths: both are compared with one twin."""
        for batch in BATCHES:
            check(name, operator, arguments(operator, rng, batch=batch))

    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_dtype_and_device_follow(self, build, rng, dtype, device):
        operator = build(dtype, device)
        for name in EVERY:
            check(name, operator, arguments(operator, rng).map(lambda t: t.to(device, dtype)))

    def test_numpy_in_numpy_out(self, build, rng):
        operator = build(torch.float32)
        a = arguments(operator, rng).map(lambda t: t.float().numpy())
        for name in PUBLIC:
            assert isinstance(EVERY[name][0](operator, a), np.ndarray)
            check(name, operator, a)

    def test_result_has_the_kind_of_the_first_argument(self, operator, rng):
        a = arguments(operator, rng)
        assert isinstance(operator.adjoint_factor(a.z.numpy(), a.U), np.ndarray)
        assert isinstance(operator.adjoint_factor(a.z, a.U.numpy()), Tensor)

    def test_strides_do_not_matter(self, operator, rng):
        def strided(t: Tensor) -> Tensor:
            # Dimensions in reversed order in memory, and a gap after every entry.
            order = list(range(t.ndim))[::-1]
            reverse = t.permute(order)
            view = torch.stack([reverse, reverse + torch.nan], dim=-1)[..., 0].permute(order)
            assert t.numel() <= 1 or not view.is_contiguous()
            return view

        for name in EVERY:
            check(name, operator, arguments(operator, rng, batch="same").map(strided))

    def test_float32_arguments_are_widened(self, build, rng):
        """Widening is exact; an operator without data stays in the precision of its argument."""
        operator = build(torch.float64)
        a = arguments(operator, rng).map(lambda t: t.float())
        expected = torch.float32 if operator.dtype is None else torch.float64
        for name in PUBLIC:
            check(name, operator, a, dtype=expected)

    def test_float64_arguments_are_not_narrowed(self, build, rng):
        operator = build(torch.float32)
        a = arguments(operator, rng)
        for name in PUBLIC:
            if operator.dtype is None:
                check(name, operator, a)
            else:
                with pytest.raises(DtypeError, match="expected float32"):
                    EVERY[name][0](operator, a)

    def test_mixed_precision_is_computed_in_the_wider(self, build, rng):
        operator = build(torch.float64)
        a = arguments(operator, rng)
        for mixed in (replace(a, z=a.z.float()), replace(a, U=a.U.float())):
            check("adjoint_factor", operator, mixed, dtype=torch.float64)

    @pytest.mark.parametrize("name", SEARCH)
    def test_what_a_search_asks_for(self, operator, rng, name):
        """Arguments have the batch of the operator, or starts in front of it."""
        compute, formula = SEARCH[name]
        for batch in ("none", "same"):
            a = arguments(operator, rng, batch=batch)
            A, exact = twin(operator), a.map(lambda t: t.numpy())
            found, expected = compute(operator, a).numpy(), formula(A, exact)
            bound = formula(sizes(operator), exact.map(np.abs))
            assert found.shape == expected.shape
            few = tolerance(operator, a) * bound
            assert np.all(np.abs(found - expected) <= few), name

    @pytest.mark.parametrize("name", OWN)
    def test_what_depends_on_the_operator_alone(self, operator, name):
        compute, formula = OWN[name]
        A = twin(operator)
        found, expected, bound = compute(operator).numpy(), formula(A), formula(sizes(operator))
        eps = RATIO * (operator.n + operator.d) * np.finfo(np.float64).eps
        assert found.shape == expected.shape
        assert np.all(np.abs(found - expected) <= eps * bound)

    def test_the_row_space_and_the_system_are_those_of_the_matrices(self, operator):
        A = twin(operator)
        basis, system = operator.row_space.numpy(), operator.system.numpy()
        flat = A.reshape(*A.shape[:-2], operator.d**2)
        size = np.abs(flat).max(initial=0.0)
        seen = flat @ basis @ np.swapaxes(basis, -1, -2)
        np.testing.assert_allclose(seen, flat, atol=1e-12 * size)
        gram = np.einsum("...i,...j->...ij", system, system).sum(-3)
        np.testing.assert_allclose(operator.fourth_moments, gram, atol=1e-10 * size**2)

    def test_rounding_is_that_of_the_numbers_of_a_factor(self, operator, rng):
        """A change of every number of U by eps changes no value by more than is said."""
        a = arguments(operator, rng)
        told = operator.scaled_rounding(a.U, None).numpy()
        eps, A = 1e-7, twin(operator)
        U = a.U.numpy()
        for _ in range(5):
            V = U * (1 + eps * np.sign(np.random.default_rng(0).standard_normal(U.shape)))
            moved = np.abs(_apply(A, _gram(V, V)) - _apply(A, _gram(U, U)))
            assert np.all(moved <= eps * math.sqrt(U[..., 0, :].size * U.shape[-2]) * told + 1e-12)
        precise = operator.precise_forms(a.U, None).high.numpy()
        bound = _apply(sizes(operator), _gram(np.abs(U), np.abs(U)))
        assert np.all(np.abs(precise - _apply(A, _gram(U, U))) <= tolerance(operator, a) * bound)

    def test_adjoint_identity(self, operator, rng):
        a = arguments(operator, rng)
        left = (operator.apply(a.Q) * a.z).sum(-1)
        right = (a.Q * operator.adjoint(a.z)).sum((-2, -1))
        A, b = sizes(operator), a.map(lambda t: t.abs().numpy())
        bound = (_apply(A, b.Q) * b.z).sum(-1)
        assert np.all((left - right).abs().numpy() <= tolerance(operator, a) * bound)

    def test_adjoint_and_normal_are_symmetric(self, operator, rng):
        a = arguments(operator, rng)
        for M in (operator.adjoint(a.z), operator.normal(a.Q)):
            assert float((M - M.mT).abs().sum()) <= tolerance(operator, a) * float(M.abs().sum())

    def test_normal_is_self_adjoint_and_positive(self, operator):
        """As a matrix in an orthonormal basis of symmetric matrices."""
        d = operator.d
        pairs = [(a, b) for a in range(d) for b in range(a, d)]
        basis = torch.zeros(len(pairs), d, d, dtype=torch.float64)
        for k, (a, b) in enumerate(pairs):
            basis[k, a, b] = basis[k, b, a] = 1.0 if a == b else math.sqrt(0.5)
        columns = torch.stack([operator.normal(B) for B in basis])  # [q, ..., d, d]
        T = torch.einsum("j...ab,kab->...jk", columns, basis).numpy()
        norm = np.abs(T).sum((-2, -1))
        eps = np.finfo(np.float64).eps
        slack = RATIO * (operator.n + len(pairs)) * eps * norm
        assert np.all(np.abs(T - np.swapaxes(T, -1, -2)).sum((-2, -1)) <= slack)
        assert np.all(np.linalg.eigvalsh(T).min(-1) >= -slack)

    def test_gradients(self, operator, rng):
        """Against finite differences, along random directions; Q stays symmetric.

        Differences of a wrong value agree with its gradient, so the values are compared, too.
        """
        a = arguments(operator, rng, r=2).map(lambda t: t.requires_grad_(True))
        inputs = tuple(getattr(a, f.name) for f in fields(a))
        for name, (compute, _) in EVERY.items():

            def function(Q, U, Delta, z, minus_y, compute=compute):
                return compute(operator, Arguments((Q + Q.mT) / 2, U, Delta, z, minus_y))

            assert torch.autograd.gradcheck(function, inputs, fast_mode=True), name
            check(name, operator, a)

    def test_second_derivative(self, operator, rng):
        U = arguments(operator, rng, r=2).U.requires_grad_(True)
        assert torch.autograd.gradgradcheck(operator.apply_factor, (U,), fast_mode=True)

    def test_inputs_are_not_modified(self, operator, rng):
        a = arguments(operator, rng, batch="same")
        own = {k: v for k, v in vars(operator).items() if isinstance(v, Tensor)}
        given = {f.name: getattr(a, f.name) for f in fields(a)} | own
        before = {k: (v.clone(), v._version) for k, v in given.items()}
        for name, (compute, _) in EVERY.items():
            compute(operator, a)
            for key, (value, version) in before.items():
                assert torch.equal(given[key], value), (name, key)
                assert given[key]._version == version, (name, key)

    def test_sizes_are_told(self, operator):
        A = twin(operator)
        assert A.shape == (*operator.batch_shape, operator.n, operator.d, operator.d)


def arguments(
    operator: Measurements, rng: torch.Generator, *, r: int = 3, batch: str = "none"
) -> Arguments:
    """Random float64 arguments of `operator`, with factors of r columns."""
    n, d = operator.n, operator.d
    q, u, v, z, y = ((*outer, *operator.batch_shape) for outer in BATCHES[batch])
    S = normal(rng, *q, d, d)
    return Arguments(
        Q=S + S.mT,
        U=normal(rng, *u, d, r),
        Delta=normal(rng, *v, d, r),
        z=normal(rng, *z, n),
        minus_y=normal(rng, *y, n),
    )


def twin(operator: Measurements) -> np.ndarray:
    """The matrices `A[..., n, d, d]`: the entry (a, b) of all is A applied to (E_ab + E_ba)/2."""
    d, dtype = operator.d, operator.dtype or torch.float64
    A = np.zeros((*operator.batch_shape, operator.n, d, d))
    for a in range(d):
        for b in range(a, d):
            S = torch.zeros(d, d, dtype=dtype, device=operator.device)
            S[a, b] += 0.5
            S[b, a] += 0.5
            A[..., a, b] = A[..., b, a] = operator.apply(S).double().cpu().numpy()
    return A


def sizes(operator: Measurements) -> np.ndarray:
    """Sizes `[..., n, d, d]` of the terms that the entries of the matrices are summed from."""
    if not isinstance(operator, Projected):
        return np.abs(twin(operator))
    N = operator.basis.double().cpu().abs().numpy()
    A = sizes(operator.base)
    for _ in range(2):  # the projection is applied twice
        A = A + np.einsum("...ik,...jk,...jab->...iab", N, N, A)
    return A


def tolerance(operator: Measurements, a: Arguments, dtype: torch.dtype = torch.float64) -> float:
    return RATIO * (operator.n + operator.d + a.U.shape[-1]) * torch.finfo(dtype).eps


def check(
    name: str, operator: Measurements, a: Arguments, *, dtype: torch.dtype | None = None
) -> None:
    """Assert that a method agrees with the twin in value, shape, dtype and device."""
    compute, formula = EVERY[name]
    given = a.map(lambda t: torch.as_tensor(t).detach())
    dtype = given.U.dtype if dtype is None else dtype
    result = torch.as_tensor(compute(operator, a)).detach()
    assert result.dtype == dtype, name
    assert result.device == given.U.device, name
    A, exact = twin(operator), given.map(lambda t: t.double().cpu().numpy())
    expected = formula(A, exact)
    bound = formula(sizes(operator), exact.map(np.abs))
    assert result.shape == expected.shape, name
    error = np.abs(result.double().cpu().numpy() - expected)
    worst = np.max(error - tolerance(operator, given, dtype) * bound, initial=0.0)
    assert worst <= 0, f"{name} is {np.max(error):.2e} from its twin"


class Record(TorchDispatchMode):
    """Records what a computation allocates and when it reads a given tensor.

    `largest` is the number of entries of the largest tensor made, views not counted; `reads`
    holds, for each operation on data of `watched`, the offset at which it begins.
    """

    def __init__(self, watched: Tensor) -> None:
        super().__init__()
        self.watched = watched.untyped_storage().data_ptr()
        self.largest = 0
        self.reads: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        known = {t.untyped_storage().data_ptr() for t in _tensors_in((args, kwargs or {}))}
        result = func(*args, **(kwargs or {}))
        made = [t for t in _tensors_in(result) if t.untyped_storage().data_ptr() not in known]
        self.largest = max([self.largest, *(t.untyped_storage().nbytes() // 8 for t in made)])
        if made:
            self.reads += [
                t.storage_offset()
                for t in _tensors_in((args, kwargs or {}))
                if t.untyped_storage().data_ptr() == self.watched
            ]
        return result


def _tensors_in(tree: Any) -> list[Tensor]:
    return [t for t in torch.utils._pytree.tree_leaves(tree) if isinstance(t, Tensor)]
