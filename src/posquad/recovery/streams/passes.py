"""L-BFGS on a source of rows with one read of X per iteration.

Along U + tD the error of a row is `s0 + t s1 + t^2 s2`, where `Z = XU`, `P = XD`,
`s0 = rowsum(Z^2) - y`, `s1 = 2 rowsum(ZP)` and `s2 = rowsum(P^2)`. The loss is a quartic in t, and

    G(t) = X'(s0 Z) + t X'(s1 Z + s0 P) + t^2 X'(s2 Z + s1 P) + t^3 X'(s2 P)

is half its gradient. One pass gives all of these sums, hence the exact line search and the exact
gradient at its end. The metric is that of `posquad.recovery.streams.curvature`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from posquad.core.linalg import symmetric_part
from posquad.core.twofold import Twofold, from_doubles
from posquad.problems.fused import fused_line
from posquad.problems.rows.operator import RankOneRows
from posquad.recovery.solvers.fit import inner
from posquad.recovery.solvers.quartic import least_step
from posquad.recovery.solvers.secants import Secants
from posquad.recovery.streams.curvature import Known, expected_solve

# Pairs of L-BFGS that are kept. A choice: a pass over the rows costs far more than a pair, so that
# more are kept than in memory, where a step has to be cheap.
_MEMORY = 8
# Steps without progress after which a run ends. A choice: that of rounding in memory
# (`posquad.recovery.solvers.fit.ROUNDING_PATIENCE`).
_PATIENCE = 3
# Share of the loss by which a step must lower it to make progress. Derived: sums of n squares are
# rounded by sqrt(n) eps, which is 2e-13 at n = 1e6.
_PROGRESS = 1e-12
# Least variance of a direction, over the largest, for the metric. A choice: the metric then
# stretches a direction by 1e5 at most, a third of the digits.
_LEAST_VARIANCE = 1e-10


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


class Partial(NamedTuple):
    """The sums of a pass over the first rows."""

    rows: int
    sums: Twofold  # [5 + 4dr]  of the quartic, and of G by powers of t


def sweep_line(
    operator: RankOneRows,
    y: Tensor,
    weights: Tensor | None,
    U: Tensor,
    D: Tensor,
    *,
    known: Partial | None = None,
    keep: Callable[[Partial], None] | None = None,
) -> Line:
    """Return the sums along U + tD, in one pass over the rows.

    The pass goes on from known sums; `keep` is called with those so far after every block.
    """
    if known is None:
        known = Partial(0, from_doubles(U.new_zeros(5 + 4 * U.numel())))
    begin, whole = known
    device = operator.source.device
    U, D = U.to(device), D.to(device)
    for place, taken in operator.source.blocks(begin):
        sums, gradients = U.new_zeros(5), U.new_zeros(4, *U.shape)
        for rows, block in operator.split(place, taken):
            w = None if weights is None else weights[rows].to(device)
            (s0, s1, s2), terms = _line_of_block(block, U, D, y[rows].to(device), w)
            gradients += terms
            w0, w1, w2 = (s0, s1, s2) if w is None else (w * s for s in (s0, s1, s2))
            sums += torch.stack(
                [w0 @ s0, w0 @ s1, w1 @ s1 + 2 * (w0 @ s2), 3 * (w1 @ s2), 2 * (w2 @ s2)]
            )
        whole = whole + from_doubles(torch.cat([sums, gradients.reshape(-1)]).cpu())
        if keep is not None:
            keep(Partial(place.stop, whole))
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
    """A run of L-BFGS from a factor near the answer, at the beginning of a step."""

    U: Tensor  # [d, r]  the factor
    V: Tensor  # [d, r]  the same for inputs of covariance near I: U = metric V
    slope: Tensor | None = None  # [d, r]  gradient of the mean squared error; None before a pass
    secants: Secants | None = None  # None before a step
    losses: list[float] = field(default_factory=list)  # sum of w e^2 before each step, and now
    idle: int = 0  # last steps without progress
    converged: bool = False
    partial: Partial | None = None  # of the pass that comes next
    interrupted: bool = False  # by Ctrl-C

    @property
    def loss(self) -> float:
        """The sum of w e^2; infinite before the first pass."""
        return self.losses[-1] if self.losses else math.inf

    @property
    def steps(self) -> int:
        """The number of steps."""
        return max(0, len(self.losses) - 1)

    def to_store(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return what a file keeps: plain values, and arrays by name."""
        arrays = {"U": self.U, "V": self.V}
        if self.slope is not None:
            arrays["slope"] = self.slope
        if self.secants is not None:
            arrays |= self.secants._asdict()
        numbers: dict[str, Any] = {"losses": self.losses, "idle": self.idle, "rows": None}
        if self.partial is not None:
            numbers["rows"] = self.partial.rows
            arrays |= {"sums": self.partial.sums.high, "sums_low": self.partial.sums.low}
        return numbers, {name: tensor.numpy() for name, tensor in arrays.items()}

    @classmethod
    def from_store(cls, numbers: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Polish:
        """Restore the state of a run."""
        held = {name: torch.from_numpy(array) for name, array in arrays.items()}
        run = cls(held["U"], held["V"], held.get("slope"))
        run.losses, run.idle = list(numbers["losses"]), int(numbers["idle"])
        if "moves" in held:
            run.secants = Secants(*(held[name] for name in Secants._fields))
        if numbers["rows"] is not None:
            sums = Twofold(held["sums"], held["sums_low"])
            run.partial = Partial(int(numbers["rows"]), sums)
        return run


def polish(
    operator: RankOneRows,
    y: Tensor,
    weights: Tensor | None,
    run: Polish,
    metric: Tensor,
    *,
    size: float,
    level: float,
    accuracy: float,
    stopped: Callable[[float], bool],
    known: Known | None = None,
    keep: Callable[[Polish], None] | None = None,
) -> Polish:
    """Descend until the responses are reproduced or the loss can hardly fall; return the run.

    Ctrl-C ends the run at the last complete step, and `Polish.interrupted` says so.

    Args:
        operator, y, weights: the samples of this process.
        run: where to begin: `begin_polish`, or the state of an earlier run, which is changed.
        metric: `T[d, d]` for which the inputs `T'x` have covariance near I; see `whitening`.
        size: sum of `w y^2`.
        level: relative residual at which responses count as reproduced.
        accuracy: end when the expected decrease of the loss is below this share of it.
        stopped: called with the relative residual before every step; True ends the run.
        known: rows in memory, whose curvature is part of that of all rows.
        keep: called with the state after every block of rows.
    """

    def sweep(U: Tensor, D: Tensor) -> Line:
        def keep_block(partial: Partial) -> None:
            run.partial = partial
            if keep is not None:
                keep(run)

        done, run.partial = run.partial, None
        line = sweep_line(operator, y, weights, U, D, known=done, keep=keep_block)
        run.partial = None
        return line

    try:
        _descend(run, sweep, float(operator.n), metric, size, level, accuracy, stopped, known)
    except KeyboardInterrupt:
        run.interrupted = True
    return run


def _descend(
    run: Polish,
    sweep: Callable[[Tensor, Tensor], Line],
    n: float,
    metric: Tensor,
    size: float,
    level: float,
    accuracy: float,
    stopped: Callable[[float], bool],
    known: Known | None,
) -> None:
    if run.slope is None:
        line = sweep(run.U, torch.zeros_like(run.U))
        run.losses, run.slope = [line.loss], metric.T @ line.gradient_at(0.0) * (2 / n)
    while math.isfinite(run.loss):
        V, g = run.V, run.slope
        residual = relative_residual(run.loss, size)
        solve = expected_solve(V, metric, known)
        none = Secants.none(g, _MEMORY)
        secants = run.secants or none
        D = -secants.solve(g, solve)
        decrease = -float(inner(D, g)) * n
        if decrease <= 0:  # pairs from another region: discard the memory
            secants, D = none, -none.solve(g, solve)
            decrease = -float(inner(D, g)) * n
        run.converged = residual <= level or decrease <= accuracy * run.loss
        if run.converged or run.idle >= _PATIENCE or stopped(residual):
            return
        line = sweep(metric @ V, metric @ D)
        t = line.step()
        new = metric.T @ line.gradient_at(t) * (2 / n)
        loss = line.loss_at(t)
        # The sums at t = 0 are fresh, so rounding does not gather over the steps.
        run.idle = run.idle + 1 if loss > line.loss * (1 - _PROGRESS) else 0
        run.secants = secants.with_pair(t * D, new - g)
        run.V, run.slope = V + t * D, new
        run.U = metric @ run.V
        run.losses.append(loss)


def begin_polish(U: Tensor, metric: Tensor) -> Polish:
    """Return the run that begins at a factor `U[d, r]` of full rank.

    >>> begin_polish(torch.eye(2), 2 * torch.eye(2)).V
    tensor([[0.5000, 0.0000],
            [0.0000, 0.5000]])
    """
    return Polish(U, torch.linalg.solve(metric, U))


def relative_residual(loss: float, size: float) -> float:
    """Return the relative residual of a sum of squared errors; `size` is that of Q = 0.

    >>> relative_residual(1.0, 4.0)
    0.5
    """
    return math.sqrt(loss / size) if size else 0.0


def whitening(second: Tensor) -> Tensor:
    """Return `T[d, d]` for which `T'x` has covariance near I, from the second moments of x.

    >>> whitening(torch.diag(torch.tensor([4.0, 1.0]))).abs().sum(0).sort().values
    tensor([0.5000, 1.0000])
    """
    values, vectors = torch.linalg.eigh(symmetric_part(second))
    return vectors * values.clamp_min(_LEAST_VARIANCE * float(values[-1])).rsqrt()
