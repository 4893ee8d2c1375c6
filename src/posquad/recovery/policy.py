"""`recover`: the default that needs no choice, from quadratic measurements to a predictor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from posquad._arrays import (
    Array,
    converted_tensor,
    like,
    positive_integer,
    positive_number,
    require_batch,
    require_shape,
    unified,
)
from posquad._results import Result
from posquad.errors import DomainError, ShapeError
from posquad.recovery import _ranks
from posquad.recovery._diagnosis import Diagnosis, diagnose, needed_samples, verdict
from posquad.recovery._fit import Watch
from posquad.recovery._preparation import Prepared, prepare
from posquad.recovery._search import Search
from posquad.recovery.predictor import Predictor
from posquad.status import Status, from_codes
from posquad.trajectory import Progress

__all__ = ["Recovery", "recover"]


@dataclass(frozen=True, eq=False, repr=False)
class Recovery(Result):
    """What `recover` found, and what may be said about it; `...` is the batch of problems."""

    U: Any  # [..., d, k]  orthogonal columns, descending; k the largest rank found
    Q: Predictor  # UU', as an operator; Q.dense() forms the matrix
    status: Status | list  # RECOVERED, NOT_IDENTIFIED, BEST_FIT, STALLED, UNDETERMINED, ...
    certificate: Any  # None; `posquad.certify` fills it
    history: Any  # [T, ...]  best relative residual of each step of the search
    residual: Any  # [...]  ||A(Q) - y|| / ||y||, weighted if weights were given
    rank: Any  # [...]  rank found
    rank_confidence: Any  # [...]  1 if given or certain; else the weight against other ranks
    curvature: Any  # [..., 2]  ends of the effective spectrum at U over lambda_1(Q), for inputs
    #     made isotropic; low values amplify noise; NaN where not known
    error_estimate: Any  # [...]  of ||Q - Q*||_F / ||Q||_F, to first order, from the residual
    samples: Any  # [...]  distinct samples
    needed: Any  # [...]  p + 1 of the rank found, or d(d+1)/2 where that is less
    starts: Any  # [...]  starts used
    steps: int  # steps of the search, all starts of a round together

    @property
    def message(self) -> str | list:
        """Cause and remedy in words, for one problem or each of a batch."""
        return _messages(self.status)


def recover(
    X: Array,
    y: Array,
    rank: int | None = None,
    *,
    weights: Array | None = None,
    seed: int = 0,
    tolerance: float | None = None,
    max_starts: int = 2000,
    max_steps: int = 100_000,
    time_limit: float | None = None,
    precision: Literal["float64", "input"] = "float64",
    progress: Callable[[Progress], None] | None = None,
) -> Recovery:
    """Find the positive semidefinite Q of low rank with `x_i'Q x_i = y_i`, and say how sure it is.

    Chooses and chains the solvers of `posquad.recovery` by the size of the problem and by what
    happens; whitens inputs that are not isotropic; starts again where a run ends above the
    tolerance; stops when certain. Nothing larger than X (a copy where it must be whitened) plus
    O(nr + dr) is formed for large problems, n x n matrices up to n = 1500.

    Args:
        X: inputs `[..., n, d]`; leading dimensions are a batch of problems, solved together.
        y: responses `[..., n]`; noisy or negative ones are fitted by least squares.
        rank: of Q. If it is more than the data need, the lower rank is found. None: chosen, with
            `rank_confidence`.
        weights: of the squared errors, `[..., n]`, nonnegative; zero leaves a sample out.
        seed: of the restarts; the same call gives the same answer.
        tolerance: relative residual at which responses count as reproduced, by default 1e-10, or
            1e-5 if X or y come in float32.
        max_starts, max_steps, time_limit: budget a problem (a batch shares steps and seconds). When
            it is spent, or at Ctrl-C, the best so far comes back.
        precision: "float64" computes and answers in float64 whatever comes; "input" keeps float32.
        progress: called with a `Progress` at every step.

    Returns:
        `Recovery`. `status` is RECOVERED only if the responses are reproduced, there are at least
        `needed` distinct samples and the effective spectrum has no kernel.

    >>> rng = np.random.default_rng(0)
    >>> U = rng.standard_normal((10, 2))
    >>> X = rng.standard_normal((24, 10))
    >>> found = recover(X, ((X @ U) ** 2).sum(1), rank=2)
    >>> found.status.name, bool(np.abs(found.Q.dense() - U @ U.T).max() < 1e-12)
    ('RECOVERED', True)
    """
    inputs, responses, w, narrow = _admitted(X, y, weights, precision)
    n, d = inputs.shape[-2:]
    if rank is not None and positive_integer("rank", rank) > d:
        raise DomainError("rank", expected=f"at most d = {d}", got=str(rank))
    seed = positive_integer("seed", seed, zero=True)
    default = 1e-5 if narrow else 1e-10
    level = default if tolerance is None else positive_number("tolerance", tolerance)
    positive_integer("max_starts", max_starts)
    watch = Watch(max_steps=max_steps, time_limit=time_limit, progress=progress)
    batch = responses.shape[:-1]
    policy = _Policy(level, seed, max_starts, watch)
    with torch.no_grad():
        flat = inputs.reshape(-1, n, d), responses.reshape(-1, n), w.reshape(-1, n)
        uniform = weights is None
        answers = policy.batch(*flat, rank, uniform) if batch else None
        if answers is None:
            answers = _Answers.stacked([policy.single(inputs, responses, w, rank, uniform)])
    return answers.recovery(batch, X, watch)


@dataclass
class _Answers:
    """Answers to a flat batch of problems."""

    U: Tensor  # [B, d, k] in the user's coordinates
    codes: Tensor  # [B]
    residual: Tensor
    rank: Tensor
    confidence: Tensor
    curvature: Tensor  # [B, 2]
    error: Tensor
    samples: Tensor
    needed: Tensor
    starts: Tensor

    @staticmethod
    def stacked(parts: list[_Answers]) -> _Answers:
        """Several answers as one batch; factors get zero columns up to the widest."""
        widest = max(part.U.shape[-1] for part in parts)
        padded = [torch.nn.functional.pad(p.U, (0, widest - p.U.shape[-1])) for p in parts]
        rest = {
            name: torch.cat([getattr(part, name) for part in parts])
            for name in vars(parts[0])
            if name != "U"
        }
        return _Answers(U=torch.cat(padded), **rest)

    def put(self, index: int, other: _Answers) -> None:
        """Replace one answer (of at most as many columns)."""
        for name, value in vars(other).items():
            if name == "U":
                value = torch.nn.functional.pad(value, (0, self.U.shape[-1] - value.shape[-1]))
            getattr(self, name)[index] = value[0]

    def recovery(self, batch: torch.Size, model: Array, watch: Watch) -> Recovery:
        left, s, _ = torch.linalg.svd(self.U, full_matrices=False)
        widest = max(1, int(self.rank.max())) if len(self.rank) else self.U.shape[-1]
        U = (left * s[..., None, :])[..., :widest]
        beyond = torch.arange(widest, device=U.device) >= self.rank[:, None]
        U = torch.where(beyond[:, None, :], 0.0, U)
        history = torch.stack([h.amin() for h in watch.history if h.numel()] or [U.new_zeros(())])

        def out(value: Tensor) -> Any:
            shaped = value.reshape(batch + value.shape[1:])
            return like(model, shaped)

        factor = out(U)
        return Recovery(
            U=factor,
            Q=Predictor(factor),
            status=from_codes(self.codes.reshape(batch)),
            certificate=None,
            history=like(model, history),
            residual=out(self.residual),
            rank=out(self.rank),
            rank_confidence=out(self.confidence),
            curvature=out(self.curvature),
            error_estimate=out(self.error),
            samples=out(self.samples),
            needed=out(self.needed),
            starts=out(self.starts),
            steps=max(watch.steps, 0),
        )


@dataclass
class _Policy:
    tolerance: float
    seed: int
    max_starts: int
    watch: Watch

    def batch(
        self, X: Tensor, y: Tensor, w: Tensor, rank: int | None, uniform: bool
    ) -> _Answers:
        """Together where one rank and one shape serve all, and one by one what is special."""
        n, d = X.shape[-2:]
        count = len(X)
        special = torch.ones(count, dtype=torch.bool, device=X.device)
        answers = _blank(X, rank or 1)
        if rank is not None and n >= needed_samples(d, rank) and count:
            prepared = prepare(X, y, None if uniform else w)
            regular = (prepared.span == d) & (y != 0).any(-1)
            search = self._search(prepared, rank, self.max_starts)
            search.run()
            squares = torch.linalg.svdvals(search.U).square()
            full = squares[..., -1] > _ranks._NEGLIGIBLE * squares[..., 0]
            special = ~(regular & full)
            search.U[special] = torch.eye(d, rank).to(X)
            answers = self._answers(prepared, search, 1.0)
        for index in special.nonzero()[:, 0].tolist():
            one = self.single(X[index], y[index], w[index], rank, uniform)
            short = one.U.shape[-1] - answers.U.shape[-1]
            if short > 0:
                answers.U = torch.nn.functional.pad(answers.U, (0, short))
            answers.put(index, one)
        return answers

    def single(
        self, X: Tensor, y: Tensor, w: Tensor, rank: int | None, uniform: bool
    ) -> _Answers:
        """One problem `X[n, d]`."""
        prepared = prepare(X, y, None if uniform else w)
        if not bool(y.any()) or int(prepared.span) == 0:
            return self._zero(prepared, X)
        n, d = prepared.problem.X.shape[-2:]
        distinct = int(prepared.distinct)

        def solve(k: int, starts: int) -> Search:
            search = self._search(prepared, k, starts)
            search.run()
            return search

        if rank is None:
            search, sure = _ranks.chosen(solve, n, d, distinct, self.max_starts)
        else:
            k = min(rank, d)
            few = distinct < needed_samples(d, k)  # any interpolant will do: it is not unique
            search, sure = solve(k, min(self.max_starts, 16) if few else self.max_starts), 1.0
        search = _ranks.lowered(search, solve, distinct)
        one = Prepared(
            prepared.problem.single(),
            None if prepared.transform is None else prepared.transform[None],
            prepared.scale[None],
            prepared.span[None],
            prepared.distinct[None],
        )
        return self._answers(one, search, sure, ambient=X.shape[-1])

    def _search(self, prepared: Prepared, rank: int, starts: int) -> Search:
        generator = torch.Generator().manual_seed(self.seed)
        return Search(prepared.problem, rank, self.tolerance, self.watch, generator, starts)

    def _answers(
        self, prepared: Prepared, search: Search, sure: float, ambient: int | None = None
    ) -> _Answers:
        U = search.U.reshape(-1, *search.U.shape[-2:])
        residual = search.residual.reshape(-1)
        found = _diagnosed(prepared, U, residual)
        codes = verdict(
            found,
            residual,
            tolerance=self.tolerance,
            distinct=prepared.distinct,
            deficient=prepared.span < (ambient or prepared.problem.d),
            settled=search.settled.reshape(-1),
            interrupted=self.watch.spent,
        )
        count = len(U)

        def filled(value: float) -> Tensor:
            return torch.full((count,), value, dtype=U.dtype, device=U.device)

        return _Answers(
            U=prepared.restore(U),
            codes=codes,
            residual=residual,
            rank=torch.full((count,), search.rank, device=U.device),
            confidence=filled(sure),
            curvature=torch.stack([found.low, found.high], dim=-1),
            error=found.error,
            samples=prepared.distinct,
            needed=torch.full((count,), found.needed, device=U.device),
            starts=search.starts.reshape(-1),
        )

    def _zero(self, prepared: Prepared, X: Tensor) -> _Answers:
        """`y = 0` on inputs that span the space: Qx_i = 0 for all i, and Q = 0 is proved."""
        answers = _blank(X[None], 1)
        answers.samples = prepared.distinct[None]
        answers.needed = torch.full_like(answers.rank, X.shape[-1])
        if bool(prepared.problem.y.any()):  # inputs are zero, responses are not
            answers.residual = torch.ones_like(answers.residual)
        spans = int(prepared.span) == X.shape[-1]
        status = Status.RECOVERED if spans else Status.UNDETERMINED
        answers.codes = torch.full_like(answers.rank, status.code)
        return answers


def _blank(X: Tensor, columns: int) -> _Answers:
    count, _, d = X.shape
    zero = X.new_zeros(count)
    none = torch.zeros(count, dtype=torch.int64, device=X.device)
    return _Answers(
        U=X.new_zeros(count, d, columns),
        codes=none + Status.STALLED.code,
        residual=zero.clone(),
        rank=none.clone(),
        confidence=zero + 1,
        curvature=X.new_full((count, 2), torch.nan),
        error=zero.clone(),
        samples=none.clone(),
        needed=none.clone(),
        starts=none.clone(),
    )


def _diagnosed(prepared: Prepared, U: Tensor, residual: Tensor) -> Diagnosis:
    """The diagnosis, at a stand-in where the factor has no full rank (nothing is known there)."""
    s = torch.linalg.svdvals(U)
    full = torch.isfinite(s).all(-1) & (s[..., -1] > 1e-7 * s[..., 0])
    safe = torch.where(full[..., None, None], U, torch.eye(*U.shape[-2:]).to(U))
    found = diagnose(prepared.problem, safe, residual)
    nothing = torch.full_like(found.low, torch.nan)
    return Diagnosis(
        low=torch.where(full, found.low, nothing),
        high=torch.where(full, found.high, nothing),
        error=torch.where(full, found.error, torch.inf),
        needed=found.needed,
        free=found.free & full,
    )


def _admitted(
    X: Array, y: Array, weights: Array | None, precision: str
) -> tuple[Tensor, Tensor, Tensor, bool]:
    """Checked tensors of one batch shape, and whether any came in float32."""
    if precision not in ("float64", "input"):
        raise DomainError("precision", expected="'float64' or 'input'", got=repr(precision))
    given = {"X": converted_tensor("X", X), "y": converted_tensor("y", y)}
    if weights is not None:
        given["weights"] = converted_tensor("weights", weights)
    narrow = any(t.dtype == torch.float32 for t in given.values())
    if precision == "float64":
        given = {name: tensor.to(torch.float64) for name, tensor in given.items()}
    inputs, responses, *rest = unified(**given)
    if inputs.ndim < 2 or 0 in inputs.shape[-2:]:
        got = f"shape {tuple(inputs.shape)}"
        raise ShapeError("X", expected="shape (..., n, d) with n, d >= 1", got=got)
    n = inputs.shape[-2]
    require_shape("y", responses, (n,), "(..., n), one response a row of X")
    shapes = {"X": inputs.shape[:-2], "y": responses.shape[:-1]}
    if rest:
        require_shape("weights", rest[0], (n,), "(..., n), one weight a row of X")
        shapes["weights"] = rest[0].shape[:-1]
        if bool((rest[0] < 0).any()) or not bool((rest[0].amax(-1) > 0).all()):
            expected = "nonnegative weights, not all zero"
            raise DomainError("weights", expected=expected, got=f"least {float(rest[0].min()):.3g}")
    batch = require_batch(**shapes)
    w = rest[0] if rest else torch.ones_like(responses)
    return (
        inputs.detach().expand(*batch, *inputs.shape[-2:]),
        responses.detach().expand(*batch, n),
        w.detach().expand(*batch, n),
        narrow,
    )


def _messages(status: Status | list) -> str | list:
    return status.value if isinstance(status, Status) else [_messages(s) for s in status]
