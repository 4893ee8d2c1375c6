"""L-BFGS on a source of rows with one read of X per iteration.

Along U + tD the error of a row is `s0 + t s1 + t^2 s2`, where `Z = XU`, `P = XD`,
`s0 = rowsum(Z^2) - y`, `s1 = 2 rowsum(ZP)` and `s2 = rowsum(P^2)`. The loss is a quartic in t, and

    G(t) = X'(s0 Z) + t X'(s1 Z + s0 P) + t^2 X'(s2 Z + s1 P) + t^3 X'(s2 P)

is half its gradient. One pass gives all of these sums, hence the exact line search and the exact
gradient at its end. The metric is that of `posquad.recovery.solvers.lbfgs`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from posquad.core.linalg import symmetric_part
from posquad.core.twofold import from_doubles
from posquad.geometry.horizontal import horizontal_part
from posquad.geometry.population import population_solve
from posquad.problems.fused import fused_line
from posquad.problems.rows.operator import RankOneRows
from posquad.recovery.solvers.fit import inner, regularized_frame
from posquad.recovery.solvers.quartic import least_step

_MEMORY = 8  # pairs kept
_PATIENCE = 3  # steps without progress after which a run ends
_LEAST_VARIANCE = 1e-10  # of a direction, over the largest, for the metric


@dataclass(frozen=True)
class Line:
    """Sums over all rows along a line: the loss is `l0 + 2 c0 t + c1 t^2 + ...`."""

    loss: float  # sum of w e^2 at t = 0
    cubic: Tensor  # [4]  half the derivative of the loss, by powers of t
    gradients: Tensor  # [4, d, r]  G(t) by powers of t

    def step(self) -> float:
        """Return the t >= 0 of least loss."""
        return float(least_step(*self.cubic))

    def loss_at(self, t: float) -> float:
        """Return the sum of squared errors at t."""
        c0, c1, c2, c3 = self.cubic.tolist()
        return max(self.loss + t * (2 * c0 + t * (c1 + t * (2 * c2 / 3 + t * c3 / 2))), 0.0)

    def gradient_at(self, t: float) -> Tensor:
        """Return G(t), `[d, r]`."""
        g0, g1, g2, g3 = self.gradients
        return g0 + t * (g1 + t * (g2 + t * g3))


def sweep_line(
    operator: RankOneRows, y: Tensor, weights: Tensor | None, U: Tensor, D: Tensor
) -> Line:
    """Return the sums along U + tD, in one pass over the rows."""
    whole = from_doubles(U.new_zeros(5 + 4 * U.numel()))  # no rounding depends on who holds rows
    for place, taken in operator.source.blocks():
        sums, gradients = U.new_zeros(5), U.new_zeros(4, *U.shape)
        for rows, block in operator.split(place, taken):
            w = None if weights is None else weights[rows]
            (s0, s1, s2), terms = _line_of_block(block, U, D, y[rows], w)
            gradients += terms
            w0, w1, w2 = (s0, s1, s2) if w is None else (w * s for s in (s0, s1, s2))
            sums += torch.stack(
                [w0 @ s0, w0 @ s1, w1 @ s1 + 2 * (w0 @ s2), 3 * (w1 @ s2), 2 * (w2 @ s2)]
            )
        whole = whole + from_doubles(torch.cat([sums, gradients.reshape(-1)]))
    packed = operator.source.total_twofold(whole).high
    return Line(float(packed[0]), packed[1:5], packed[5:].view(4, *U.shape))


def _line_of_block(
    X: Tensor, U: Tensor, D: Tensor, y: Tensor, w: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return s0, s1 and s2 of a block of rows, `[3, n]`, and its terms of G, `[4, d, r]`."""
    fused = fused_line(X, U, D, y, w)
    if fused is not None:
        return fused
    Z, P = (X @ torch.cat([U, D], dim=-1)).tensor_split(2, dim=-1)
    s0, s1, s2 = Z.square().sum(-1) - y, 2 * (Z * P).sum(-1), P.square().sum(-1)
    w0, w1, w2 = (s[:, None] if w is None else (w * s)[:, None] for s in (s0, s1, s2))
    right = torch.cat([w0 * Z, w1 * Z + w0 * P, w2 * Z + w1 * P, w2 * P], dim=-1)
    terms = (X.T @ right).view(len(U), 4, -1).permute(1, 0, 2)
    return torch.stack([s0, s1, s2]), terms


@dataclass
class Polish:
    """A run of L-BFGS from a factor near the answer."""

    U: Tensor  # [d, r]
    loss: float  # sum of w e^2
    steps: int = 0
    converged: bool = False
    interrupted: bool = False  # by Ctrl-C
    losses: list[float] = field(default_factory=list)


def polish(
    operator: RankOneRows,
    y: Tensor,
    weights: Tensor | None,
    U: Tensor,
    metric: Tensor,
    *,
    size: float,
    level: float,
    accuracy: float,
    stopped: Callable[[float], bool],
) -> Polish:
    """Descend from `U[d, r]` until the responses are reproduced or the loss can hardly fall.

    Ctrl-C ends the run at the last complete step, and `Polish.interrupted` says so.

    Args:
        operator, y, weights: the samples of this process.
        U: a factor of full rank.
        metric: `T[d, d]` for which the inputs `T'x` have covariance near I; see `whitening`.
        size: sum of `w y^2`.
        level: relative residual at which responses count as reproduced.
        accuracy: end when the expected decrease of the loss is below this share of it.
        stopped: called with the relative residual after every step; True ends the run.
    """
    run = Polish(U, math.inf)
    try:
        _descend(run, operator, y, weights, metric, size, level, accuracy, stopped)
    except KeyboardInterrupt:
        run.interrupted = True
    return run


def _descend(
    run: Polish,
    operator: RankOneRows,
    y: Tensor,
    weights: Tensor | None,
    metric: Tensor,
    size: float,
    level: float,
    accuracy: float,
    stopped: Callable[[float], bool],
) -> None:
    n = float(operator.n)
    V = torch.linalg.solve(metric, run.U)
    pairs: list[tuple[Tensor, Tensor, float]] = []
    line = sweep_line(operator, y, weights, run.U, torch.zeros_like(run.U))
    run.loss = line.loss
    g = metric.T @ line.gradient_at(0.0) * (2 / n)
    idle = 0
    while math.isfinite(run.loss):
        residual = math.sqrt(run.loss / size) if size else 0.0
        run.losses.append(run.loss)
        basis = regularized_frame(V)
        D = -_inverse(V, g, basis, pairs)
        decrease = -float(inner(D, g)) * n
        if decrease <= 0:  # pairs from another region: discard the memory
            pairs, D = [], -_inverse(V, g, basis, [])
            decrease = -float(inner(D, g)) * n
        run.converged = residual <= level or decrease <= accuracy * run.loss
        if run.converged or idle >= _PATIENCE or stopped(residual):
            return
        line = sweep_line(operator, y, weights, metric @ V, metric @ D)
        t = line.step()
        new = metric.T @ line.gradient_at(t) * (2 / n)
        loss = line.loss_at(t)
        # The sums at t = 0 are fresh, so rounding does not gather over the steps.
        idle = idle + 1 if loss > line.loss * (1 - 1e-12) else 0
        pairs = _remembered(pairs, t * D, new - g)
        V, g = V + t * D, new
        run.U, run.loss, run.steps = metric @ V, loss, run.steps + 1


def _inverse(V: Tensor, g: Tensor, basis: object, pairs: list) -> Tensor:
    """Return the approximate inverse Hessian times g, by the two-loop recursion."""
    shares = []
    for move, turn, inverse in pairs:
        share = inverse * float(inner(move, g))
        g = g - share * turn
        shares.append(share)
    v = population_solve(basis, horizontal_part(V, g, basis))  # type: ignore[arg-type]
    for (move, turn, inverse), share in zip(reversed(pairs), reversed(shares), strict=True):
        v = v + (share - inverse * float(inner(turn, v))) * move
    return v


def _remembered(pairs: list, move: Tensor, turn: Tensor) -> list:
    product = float(inner(move, turn))
    sizes = float(torch.linalg.matrix_norm(move) * torch.linalg.matrix_norm(turn))
    if product <= torch.finfo(move.dtype).eps * sizes:
        return pairs
    return [(move, turn, 1 / product), *pairs][:_MEMORY]


def whitening(second: Tensor) -> Tensor:
    """Return `T[d, d]` for which `T'x` has covariance near I, from the second moments of x.

    >>> whitening(torch.diag(torch.tensor([4.0, 1.0]))).abs().sum(0).sort().values
    tensor([0.5000, 1.0000])
    """
    values, vectors = torch.linalg.eigh(symmetric_part(second))
    return vectors * values.clamp_min(_LEAST_VARIANCE * float(values[-1])).rsqrt()
