"""Objectives `L(U) = ell(UU')`: value, gradient, predictor gradient and Hessian product.

With `G = grad ell(Q)`, the factor gradient is `2 G U` (Lemma 2.1, `lem:factor-gradient`) and the
second derivative along Delta is `2 D2ell[Delta U' + U Delta'] U + 2 G Delta`, at every U, not only
where the data are interpolated.

As for measurement operators, `loss`, `gradient`, `loss_and_gradient`, `predictor_gradient` and
`hessian_product` are for users and check their arguments, while the kernels take checked tensors.
An objective must implement three kernels: `value_and_gradient(U)`, `linearize(U)`, which returns
the Hessian as a function of Delta, so that work at the point is done once, and
`predictor_gradient_kernel(Q)`. The others follow from them and may be overridden: `value`,
`loss_scale` and `log_sizes`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from posquad.core.arrays import (
    A,
    Array,
    broadcast_shape,
    converted_tensor,
    like,
    positive_integer,
    require_batch,
    require_callable,
    require_factor,
    require_instance,
    require_shape,
    require_symmetric,
    tensors,
    unified,
)
from posquad.core.errors import DtypeError, ShapeError
from posquad.core.linalg import symmetric_part
from posquad.core.ranges import tiny
from posquad.geometry.frames import polar_rotation
from posquad.geometry.horizontal import records_gradient
from posquad.geometry.population import population_product
from posquad.problems.operator import Measurements, require_measurements

__all__ = ["LeastSquares", "Objective", "PopulationRisk", "SmoothObjective"]


class Objective(ABC):
    """A smooth function of the predictor `UU'`, as a function of U (`eq:factorized-objective`).

    Subclasses set `d` and `batch_shape` and implement `value_and_gradient`, `linearize` and
    `predictor_gradient_kernel`, on checked tensors.
    """

    d: int
    batch_shape: torch.Size = torch.Size()

    def loss(self, U: A) -> A:
        """`L(U) = ell(UU')` (`eq:factorized-objective`) for `U[..., d, r]`; returns `[...]`."""
        (u,) = self.admit(U=U)
        return like(U, self.value(u))

    def gradient(self, U: A) -> A:
        """Factor gradient `2 G(UU') U` (Lemma 2.1, `lem:factor-gradient`), shape `[..., d, r]`."""
        return self.loss_and_gradient(U)[1]

    def loss_and_gradient(self, U: A) -> tuple[A, A]:
        """Loss `[...]` and gradient `[..., d, r]`, at the cost of the gradient alone."""
        (u,) = self.admit(U=U)
        value, gradient = self.value_and_gradient(u)
        return like(U, value), like(U, gradient)

    def predictor_gradient(self, Q: A) -> A:
        """`G(Q) = grad ell(Q)` on symmetric matrices (`eq:predictor-gradient`), `[..., d, d]`."""
        (q,) = self._convert(Q=Q)
        require_shape("Q", q, (self.d, self.d), "(..., d, d)")
        require_symmetric("Q", q)
        require_batch(objective=self.batch_shape, Q=q.shape[:-2])
        return like(Q, self.predictor_gradient_kernel(q))

    def hessian_product(self, U: A, Delta: A) -> A:
        """Second derivative of L at U along Delta, exact at every U; shape `[..., d, r]`.

        At an interpolating U it is the lift of Theorem 3.1 (`thm:effective-hessian`); elsewhere it
        has the further term `2 G Delta`.
        """
        u, delta = self.admit(U=U, Delta=Delta)
        require_shape("Delta", delta, u.shape[-2:], "(..., d, r) as for U")
        return like(U, self.linearize(u)(delta))

    def admit(self, **factors: Array) -> tuple[Tensor, ...]:
        """Convert and check factors, or directions of their shape, for this objective."""
        converted = self._convert(**factors)
        shapes = {}
        for name, u in zip(factors, converted, strict=True):
            require_factor(name, u)
            require_shape(name, u, (self.d, u.shape[-1]), f"(..., d, r) with d = {self.d}")
            shapes[name] = u.shape[:-2]
        require_batch(objective=self.batch_shape, **shapes)
        return converted

    @abstractmethod
    def value_and_gradient(self, U: Tensor) -> tuple[Tensor, Tensor]:
        """`L(U)`, `[...]`, and `2 G U`, `[..., d, r]`. Required."""

    def value(self, U: Tensor) -> Tensor:
        """`L(U)` alone; override where this is cheaper than with the gradient."""
        return self.value_and_gradient(U)[0]

    @abstractmethod
    def linearize(self, U: Tensor) -> Callable[[Tensor], Tensor]:
        """Hessian of L at U, as a function of Delta; leading dimensions broadcast. Required."""

    def loss_scale(self, U: Tensor) -> Tensor:
        """Loss with which divergence is compared: the larger of L(U) and L(0), `[...]`."""
        return torch.maximum(self.value(U), self.value(torch.zeros_like(U)))

    def log_sizes(self, U: Tensor) -> tuple[Tensor, Tensor]:
        """Logarithms of the sizes of the terms whose sums are L and its gradient, both `[...]`.

        They are finite also where the terms overflow or underflow, and -inf where all terms are
        zero. This default uses the values themselves, so it does not see terms that underflowed;
        override it where more is known.
        """
        value, gradient = self.value_and_gradient(U)
        return value.abs().log(), gradient.abs().amax((-2, -1)).log()

    @abstractmethod
    def predictor_gradient_kernel(self, Q: Tensor) -> Tensor:
        """`G(Q) = grad ell(Q)`, symmetric `[..., d, d]`, for symmetric `Q[..., d, d]`. Required."""

    def _convert(self, **named: Array) -> tuple[Tensor, ...]:
        """Convert arguments to tensors that are compatible with the objective's own data."""
        return tensors(**named)


class LeastSquares(Objective):
    """`ell(Q) = ||A(Q) - y||^2 / (2n)` (`eq:predictor-objective`).

    `y[..., n]` holds the responses. With `RankOne` measurements, a loss with its gradient and a
    Hessian product each read X once.

    >>> from posquad import LeastSquares, RankOne
    >>> objective = LeastSquares(RankOne(np.eye(2)), np.array([4.0, 0.0]))
    >>> objective.gradient(np.array([[1.0], [0.0]]))
    array([[-3.],
           [ 0.]])
    """

    def __init__(self, measurements: Measurements, y: Array) -> None:
        require_measurements(measurements)
        self.measurements = measurements
        (self.y,) = measurements.admit(y=y)
        self.d = measurements.d
        require_shape("y", self.y, (measurements.held,), "(..., n), one response per measurement")
        self.batch_shape = require_batch(measurements=measurements.batch_shape, y=self.y.shape[:-1])

    def double(self) -> LeastSquares:
        """The same objective with its data in double precision; itself if they are already."""
        if self.y.dtype == torch.float64 and self.measurements.dtype in (None, torch.float64):
            return self
        return LeastSquares(self.measurements.double(), self.y.double())

    def value_and_gradient(self, U: Tensor) -> tuple[Tensor, Tensor]:
        n = self.measurements.n
        e, product = self.measurements.gradient_sweep(U, self.y.to(U.dtype))
        return self.measurements.total(e.square().sum(-1)) / (2 * n), product * (2 / n)

    def value(self, U: Tensor) -> Tensor:
        e = self.measurements.apply_factor_kernel(U) - self.y.to(U.dtype)
        return self.measurements.total(e.square().sum(-1)) / (2 * self.measurements.n)

    def log_sizes(self, U: Tensor) -> tuple[Tensor, Tensor]:
        values, adjoint = self.measurements.log_sizes(U)
        residual = torch.maximum(values, self.y.to(U.dtype).abs().amax(-1).log())
        return 2 * residual, residual + adjoint

    def linearize(self, U: Tensor) -> Callable[[Tensor], Tensor]:
        product = self.measurements.linearize(U, self.y.to(U.dtype))
        scale = 2 / self.measurements.n
        return lambda Delta: product(Delta) * scale

    def predictor_gradient_kernel(self, Q: Tensor) -> Tensor:
        e = self.measurements.apply_kernel(Q) - self.y
        return self.measurements.adjoint_kernel(e) / self.measurements.n

    def _convert(self, **named: Array) -> tuple[Tensor, ...]:
        admitted = dict(zip(named, self.measurements.admit(**named), strict=True))
        *converted, _ = unified(**admitted, y=self.y)
        return tuple(converted)

    def __repr__(self) -> str:
        return f"LeastSquares({self.measurements!r})"


class PopulationRisk(Objective):
    """Exact Gaussian population objective `||E||_F^2 + tr(E)^2/2`, `E = UU' - Q*`.

    That is `<E, T(E)>/2` with T of Lemma 3.1 (`lem:gaussian-population-operator`) and
    `Q* = U* U*'`, `U_star[..., d, r*]`. No d x d matrix is formed. With the aligned difference
    `D = U - U*R` and `W = U + U*R`, `E = (DW' + WD')/2`. The relative error is therefore that of D,
    about `eps ||U|| / ||D||`; expanding the squared norms would cancel and lose twice as many
    digits.

    >>> from posquad import PopulationRisk
    >>> float(PopulationRisk(np.array([[1.0], [0.0]])).loss(np.array([[2.0], [0.0]])))
    13.5
    """

    def __init__(self, U_star: Array) -> None:
        (self.U_star,) = tensors(U_star=U_star)
        require_factor("U_star", self.U_star)
        self.d = self.U_star.shape[-2]
        self.batch_shape = self.U_star.shape[:-2]

    def value_and_gradient(self, U: Tensor) -> tuple[Tensor, Tensor]:
        D, W = self.difference(U)
        C = D.mT @ W  # [..., k, k], symmetric by the alignment
        trace = C.diagonal(dim1=-2, dim2=-1).sum(-1)
        norm = ((D.mT @ D) * (W.mT @ W)).sum((-2, -1)) + (C * C.mT).sum((-2, -1))
        value = norm / 2 + trace.square() / 2
        return value, 2 * self._gradient_product(D, W, U)

    def log_sizes(self, U: Tensor) -> tuple[Tensor, Tensor]:
        factor = U.abs().amax((-2, -1)).log()
        predictor = 2 * torch.maximum(factor, self.U_star.to(U.dtype).abs().amax((-2, -1)).log())
        return 2 * predictor, predictor + factor

    def linearize(self, U: Tensor) -> Callable[[Tensor], Tensor]:
        D, W = self.difference(U)
        S = U.mT @ U

        def hessian(Delta: Tensor) -> Tensor:
            return population_product(U, S, Delta) + 2 * self._gradient_product(D, W, Delta)

        return hessian

    def difference(self, U: Tensor) -> tuple[Tensor, Tensor]:
        """Aligned D and W; the factor with fewer columns is padded with zero columns."""
        columns = max(U.shape[-1], self.U_star.shape[-1])
        u, target = _widen(U, columns), _widen(self.U_star.to(U.dtype), columns)
        # E = (DW' + WD')/2 for every orthogonal R, so R needs no derivative.
        aligned = target @ polar_rotation((target.mT @ u).detach())
        return u - aligned, u + aligned

    @staticmethod
    def _gradient_product(D: Tensor, W: Tensor, V: Tensor) -> Tensor:
        """`G V` with `G = 2E + tr(E) I`."""
        trace = (D * W).sum((-2, -1))[..., None, None]
        return D @ (W.mT @ V) + W @ (D.mT @ V) + trace * V

    def predictor_gradient_kernel(self, Q: Tensor) -> Tensor:
        E = Q - self.U_star @ self.U_star.mT
        trace = E.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
        return 2 * E + trace * torch.eye(self.d, dtype=E.dtype, device=E.device)

    def _convert(self, **named: Array) -> tuple[Tensor, ...]:
        arguments = {name: converted_tensor(name, value) for name, value in named.items()}
        *converted, _ = unified(**arguments, U_star=self.U_star)
        return tuple(converted)


class SmoothObjective(Objective):
    """Any smooth `ell(Q)`, differentiated by autograd; for instance a Huber or Poisson loss.

    `function` maps `Q[..., d, d]` to a loss `[...]` by torch operations that are twice
    differentiable. Q is formed in full. The gradient is projected onto symmetric matrices, so it
    does not depend on the values of `function` at matrices that are not symmetric.

    >>> from posquad import SmoothObjective
    >>> objective = SmoothObjective(lambda Q: (Q - torch.eye(2)).square().sum((-2, -1)), 2)
    >>> objective.gradient(np.array([[2.0], [0.0]]))
    array([[24.],
           [ 0.]])
    """

    def __init__(self, function: Callable[[Tensor], Tensor], d: int) -> None:
        require_callable("function", function, "ell(Q)")
        self.function = function
        self.d = positive_integer("d", d)

    def value_and_gradient(self, U: Tensor) -> tuple[Tensor, Tensor]:
        value, G = self._differentiate(U @ U.mT, records_gradient(U))
        return value, 2 * G @ U

    def value(self, U: Tensor) -> Tensor:
        return self._evaluate(U @ U.mT)

    def loss_scale(self, U: Tensor) -> Tensor:
        """Infinity: ell may contain any constant, so only a loss that is not finite diverges."""
        return torch.full(U.shape[:-2], torch.inf, dtype=U.dtype, device=U.device)

    def log_sizes(self, U: Tensor) -> tuple[Tensor, Tensor]:
        """Sizes as in `Objective`, but +-inf for the loss, which may contain any constant.

        Where G is zero and `UU'` underflows, the size of `UU'` is used instead of that of the
        gradient.
        """
        value, G = self._differentiate(U @ U.mT, create_graph=False)
        factor = U.abs().amax((-2, -1)).log()
        gradient = G.abs().amax((-2, -1)).log() + factor
        hidden = gradient.isneginf() & (2 * factor < math.log(tiny(U)))
        loss = torch.where(value.isinf(), torch.inf, -torch.inf).to(gradient)
        return loss, torch.where(hidden, 2 * factor, gradient)

    def linearize(self, U: Tensor) -> Callable[[Tensor], Tensor]:
        tracked = records_gradient(U)
        with torch.inference_mode(False), torch.enable_grad():
            Q = U @ U.mT if tracked else (U @ U.mT).detach().clone().requires_grad_(True)
            g = self._first(Q, self._evaluate(Q), create_graph=True)

        def hessian(Delta: Tensor) -> Tensor:
            batch = broadcast_shape(U.shape[:-2], Delta.shape[:-2])
            if batch[len(batch) - (U.ndim - 2) :] != U.shape[:-2]:  # U itself must be expanded
                return self.linearize(U.expand(*batch, *U.shape[-2:]))(Delta)
            half = Delta @ U.mT
            xi = half + half.mT
            create = tracked or records_gradient(Delta)
            # The other leading dimensions of Delta are directions at the same points.
            flat = xi.reshape(xi.shape[: xi.ndim - Q.ndim].numel(), *Q.shape)
            images = [self._second(g, Q, direction, create) for direction in flat]
            curved = torch.stack(images).reshape(xi.shape) if images else torch.zeros_like(xi)
            G = symmetric_part(g if create else g.detach())
            return 2 * (symmetric_part(curved) @ U + G @ Delta)

        return hessian

    def predictor_gradient_kernel(self, Q: Tensor) -> Tensor:
        return self._differentiate(Q, records_gradient(Q))[1]

    def _differentiate(self, Q: Tensor, create_graph: bool) -> tuple[Tensor, Tensor]:
        with torch.inference_mode(False), torch.enable_grad():
            q = Q if create_graph else Q.detach().clone().requires_grad_(True)
            value = self._evaluate(q)
            g = self._first(q, value, create_graph)
        return (value if create_graph else value.detach()), symmetric_part(g)

    def _evaluate(self, Q: Tensor) -> Tensor:
        value = self.function(Q)
        if not isinstance(value, Tensor) or value.shape != Q.shape[:-2]:
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ShapeError(
                "function",
                expected=f"a tensor of shape {tuple(Q.shape[:-2])}, one loss per matrix",
                got=str(got),
            )
        return value

    @staticmethod
    def _first(Q: Tensor, value: Tensor, create_graph: bool) -> Tensor:
        if not value.requires_grad or not value.is_floating_point():
            raise DtypeError(
                "function",
                expected="a real loss computed from Q by differentiable torch operations",
                got=f"a {value.dtype} result that torch cannot differentiate by Q",
            )
        return torch.autograd.grad(
            value.sum(), Q, create_graph=create_graph, allow_unused=True, materialize_grads=True
        )[0]

    @staticmethod
    def _second(g: Tensor, Q: Tensor, xi: Tensor, create_graph: bool) -> Tensor:
        if not g.requires_grad:  # ell is affine: its gradient does not depend on Q
            return torch.zeros_like(xi)
        with torch.inference_mode(False), torch.enable_grad():
            return torch.autograd.grad(
                (g * xi).sum(),
                Q,
                retain_graph=True,
                create_graph=create_graph,
                allow_unused=True,
                materialize_grads=True,
            )[0]


def require_objective(objective: object) -> None:
    """Require an objective."""
    expected = "an Objective such as LeastSquares(RankOne(X), y)"
    require_instance("objective", objective, Objective, expected)


def _widen(U: Tensor, columns: int) -> Tensor:
    return torch.nn.functional.pad(U, (0, columns - U.shape[-1]))
