"""`recover`: find a predictor from quadratic measurements, without the choice of a solver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from posquad.certificates import certifier
from posquad.core.arrays import (
    Array,
    converted_tensor,
    like,
    positive_integer,
    positive_number,
    require_batch,
    require_shape,
    unified,
)
from posquad.core.errors import DomainError, PosquadError, ShapeError
from posquad.core.progress import Progress
from posquad.core.status import Status
from posquad.geometry import dimension
from posquad.problems.measurements import RankOne
from posquad.problems.objectives import LeastSquares
from posquad.recovery import ranks
from posquad.recovery.budget import Budget, History
from posquad.recovery.diagnose import diagnose_any, needed_samples, status_codes
from posquad.recovery.prepare import Prepared, looks_nongeneric, normalize_rows, prepare
from posquad.recovery.problem import Problem
from posquad.recovery.result import Answers, Recovery, blank_answers
from posquad.recovery.search import Search, find_second_solution

__all__ = ["Recovery", "recover", "reproduction_level"]


def recover(
    X: Array,
    y: Array,
    rank: int | None = None,
    *,
    weights: Array | None = None,
    seed: int = 0,
    tolerance: float | None = None,
    max_rank: int | None = None,
    max_starts: int | None = None,
    max_steps: int = 100_000,
    time_limit: float | None = None,
    precision: Literal["float64", "input"] = "float64",
    progress: Callable[[Progress], None] | None = None,
    certify: bool = False,
) -> Recovery:
    """Find the positive semidefinite Q of low rank with `x_i'Q x_i = y_i`, and say how sure it is.

    Chooses and combines the solvers of `posquad.recovery` by the size of the problem and the
    progress of the search, whitens inputs that are not isotropic, and restarts until the responses
    are reproduced or the best fit is known. For large problems, memory is that of X (and a copy if
    it is whitened) plus O(nr + dr); n x n matrices are formed up to n = 1500.

    Args:
        X: inputs `[..., n, d]`; leading dimensions are a batch of problems, solved together.
        y: responses `[..., n]`; noisy or negative ones are fitted by least squares.
        rank: rank of Q. A lower rank is returned if it suffices. None chooses the rank, and reports
            `rank_confidence` and, for one problem, the `rank_path` of ranks tried.
        weights: weights of the squared errors, `[..., n]`, nonnegative; zero leaves a sample out.
        seed: seed of the restarts; the same call gives the same answer.
        tolerance: relative residual at which responses count as reproduced; by default 1e-10, or
            1e-5 if X or y is float32.
        max_rank: highest rank tried if none is given; by default 12.
        max_starts: most starts per problem; by default 100,000 / p, between 20 and 2000.
        max_steps, time_limit: most steps and seconds of the whole call. When they are used up, or
            at Ctrl-C, the best answer so far is returned.
        precision: "float64" computes and returns float64 for any input; "input" keeps float32.
        progress: called with a `Progress` at every step.
        certify: also return a `certificate` of what can be proved about the answer to one problem:
            `posquad.certify` at `U[:, :rank]`, for the samples of positive weight. It is None if
            there is no factor to certify (Q = 0) or the budget is used up.

    Returns:
        `Recovery`. `status` is RECOVERED only if the responses are reproduced, there are at least
        `needed` independent samples and the effective spectrum has no kernel. It is CERTIFIED only
        if `certificate.proved`: then no other matrix, of any rank, reproduces the responses.

    >>> rng = np.random.default_rng(0)
    >>> U = rng.standard_normal((10, 2))
    >>> X = rng.standard_normal((24, 10))
    >>> found = recover(X, ((X @ U) ** 2).sum(1), rank=2)
    >>> found.status.name, bool(np.abs(found.Q.dense() - U @ U.T).max() < 1e-12)
    ('RECOVERED', True)
    """
    inputs, responses, w, narrow = _admitted(X, y, weights, precision)
    if certify and responses.ndim > 1:
        expected = "False for a batch: a certificate is about one problem"
        raise DomainError("certify", expected=expected, got=f"batch {tuple(responses.shape[:-1])}")
    n, d = inputs.shape[-2:]
    if rank is not None and positive_integer("rank", rank) > d:
        raise DomainError("rank", expected=f"at most d = {d}", got=str(rank))
    if max_rank is not None:
        positive_integer("max_rank", max_rank)
    if positive_integer("seed", seed, zero=True) >= 2**63:
        raise DomainError("seed", expected="an integer below 2^63", got=str(seed))
    level = reproduction_level(tolerance, narrow=narrow)
    if max_starts is None:
        # In larger problems a start is more expensive, and there are fewer spurious minima.
        max_starts = max(20, min(2000, 100_000 // dimension(d, rank or 1)))
    positive_integer("max_starts", max_starts)
    history = History(Budget(max_steps=max_steps, time_limit=time_limit), progress)
    batch = responses.shape[:-1]
    policy = _Policy(level, seed, max_starts, max_rank, history)
    with torch.no_grad():
        flat = inputs.reshape(-1, n, d), responses.reshape(-1, n), w.reshape(-1, n)
        uniform = weights is None
        if not batch:
            answers = policy.single(inputs, responses, w, rank, uniform)
        else:
            size = max(1, _chunk_entries(inputs) // (n * d * (rank or 1)))
            parts = zip(*(tensor.split(size) for tensor in flat), strict=True)
            answers = Answers.stacked([policy.batch(a, b, c, rank, uniform) for a, b, c in parts])
    found = answers.recovery(batch, X, history)
    if policy.tried and not batch:
        path = torch.tensor(policy.tried, dtype=torch.float64).T
        rows = (path[0].long(), path[1], path[2])
        found = replace(found, rank_path=ranks.RankPath(*(like(X, row) for row in rows)))
    if certify and not history.budget.spent:
        return _certified(found, inputs, responses, w)
    return found


def reproduction_level(tolerance: float | None, *, narrow: bool) -> float:
    """Return the relative residual at which responses count as reproduced.

    `narrow` says whether inputs or responses are float32.

    >>> reproduction_level(None, narrow=False), reproduction_level(None, narrow=True)
    (1e-10, 1e-05)
    """
    if tolerance is None:
        return 1e-5 if narrow else 1e-10
    return positive_number("tolerance", tolerance)


def _certified(found: Recovery, X: Tensor, y: Tensor, w: Tensor) -> Recovery:
    """Return the answer with its certificate, if its factor can be certified."""
    if int(found.rank) == 0:
        return found
    kept = w > 0
    U = torch.as_tensor(found.U[:, : int(found.rank)]).to(X)
    try:
        certificate = certifier.certify(LeastSquares(RankOne(X[kept]), y[kept]), U)
    except (PosquadError, KeyboardInterrupt):  # the factor has no full rank, or Ctrl-C
        return found
    status = Status.CERTIFIED if certificate.proved else found.status
    return replace(found, certificate=certificate, status=status)


def _chunk_entries(X: Tensor) -> int:
    """Return the entries of a Jacobian up to which problems are solved together.

    On a CPU they fit in cache.
    """
    return 2**18 if X.device.type == "cpu" else 2**27


@dataclass
class _Policy:
    """The decisions of one call of `recover`: which problems to solve how, and at which rank."""

    tolerance: float
    seed: int
    max_starts: int
    max_rank: int | None
    history: History
    tried: list[tuple[int, float, float]] = field(default_factory=list)  # for the last problem

    @property
    def budget(self) -> Budget:
        return self.history.budget

    def batch(self, X: Tensor, y: Tensor, w: Tensor, rank: int | None, uniform: bool) -> Answers:
        """Solve the regular problems of a batch jointly, and the irregular ones one by one."""
        n, d = X.shape[-2:]
        count = len(X)
        special = torch.ones(count, dtype=torch.bool, device=X.device)
        answers = blank_answers(X, rank or 1)
        if rank is not None and n >= needed_samples(d, rank) and count:
            weights = None if uniform else w
            even = normalize_rows(X, y, weights)
            first = prepare(X, y, weights) if even is None else even
            generic = first.linear | ~looks_nongeneric(X)
            enough = first.distinct >= needed_samples(d, rank)
            special = ~((first.span == d) & (y != 0).any(-1) & generic & enough)
            answers, lower = self._solve_jointly(first, rank)
            special |= lower
            again = (~special & (answers.residual > self.tolerance)).nonzero()[:, 0]
            if even is not None and len(again) and not self.budget.spent:
                given = prepare(X, y, weights).select(again)
                second, lower = self._solve_jointly(given, rank)
                special[again] |= lower
                answers.put(again, second)
        for index in special.nonzero()[:, 0].tolist():
            one = self.single(X[index], y[index], w[index], rank, uniform)
            short = one.U.shape[-1] - answers.U.shape[-1]
            if short > 0:
                answers.U = torch.nn.functional.pad(answers.U, (0, short))
            answers.put(index, one)
        return answers

    def _solve_jointly(self, prepared: Prepared, rank: int) -> tuple[Answers, Tensor]:
        """Solve a batch at one rank; return the answers, and which of them have a lower rank."""
        search = self._search(prepared, rank, self.max_starts)
        search.run()
        squares = torch.linalg.svdvals(search.U).square()
        full = squares[..., -1] > ranks.NEGLIGIBLE * squares[..., 0]
        answers = self._answers(prepared, search, 1.0, prepared.problem.d)
        return answers, (search.residual <= self.tolerance) & ~full

    def single(self, X: Tensor, y: Tensor, w: Tensor, rank: int | None, uniform: bool) -> Answers:
        """Solve one problem, `X[n, d]`."""
        weights = None if uniform else w
        even = normalize_rows(X, y, weights)
        prepared = prepare(X, y, weights) if even is None else even
        if not bool(prepared.problem.y.any()) or int(prepared.span) == 0:
            return self._zero(prepared, X)
        search, sure = self._solved(prepared, rank)
        if even is not None and float(search.residual) > self.tolerance and not self.budget.spent:
            # No matrix interpolates, so the best fit depends on lengths and weights.
            prepared = prepare(X, y, weights)
            search, sure = self._solved(prepared, rank)
        answers = self._answers(prepared.one(), search, sure, X.shape[-1])
        special = bool(looks_nongeneric(X)) or int(prepared.distinct) < int(prepared.count)
        recovered = int(answers.codes) == Status.RECOVERED.code
        if recovered and special and not bool(prepared.linear):
            apart = max(1e-5, 100 * float(answers.error))
            if find_second_solution(search, prepared.transform, apart):
                answers.codes = torch.full_like(answers.codes, Status.NOT_IDENTIFIED.code)
            elif self.budget.spent:
                answers.codes = torch.full_like(answers.codes, Status.INTERRUPTED.code)
        return answers

    def _solved(self, prepared: Prepared, rank: int | None) -> tuple[Search, float]:
        """Search at the given or chosen rank; return the search and the confidence in the rank."""
        n, d = int(prepared.count), prepared.problem.d
        distinct = int(prepared.distinct)

        def solve(k: int, starts: int) -> Search:
            search = self._search(prepared, k, starts)
            search.run()
            return search

        if rank is None:
            search, sure, self.tried = ranks.choose_rank(
                solve, n, d, distinct, self.max_starts, self.max_rank
            )
        else:
            k = min(rank, d)
            few = distinct < needed_samples(d, k)  # not unique: any interpolant will do
            search, sure = solve(k, min(self.max_starts, 200) if few else self.max_starts), 1.0
        search = ranks.lower_if_possible(search, solve, distinct)
        return ranks.raise_if_better(search, solve, distinct, n, min(rank or d, d)), sure

    def _search(self, prepared: Prepared, rank: int, starts: int) -> Search:
        generator = torch.Generator().manual_seed(self.seed)
        return Search(prepared.problem, rank, self.tolerance, self.history, generator, starts)

    def _answers(self, prepared: Prepared, search: Search, sure: float, ambient: int) -> Answers:
        """Diagnose what a search found, and return the answers in the user's coordinates."""
        U = search.U.reshape(-1, *search.U.shape[-2:])
        residual = search.residual.reshape(-1)
        found = diagnose_any(prepared, U, residual, self.budget)
        codes = status_codes(
            found,
            residual,
            rank=search.rank,
            tolerance=self.tolerance,
            prepared=prepared,
            ambient=ambient,
            settled=search.settled.reshape(-1),
            interrupted=self.budget.spent,
        )
        count = len(U)

        def filled(value: float) -> Tensor:
            return torch.full((count,), value, dtype=U.dtype, device=U.device)

        return Answers(
            U=prepared.restore(U),
            codes=codes,
            residual=prepared.given_residual(U, residual),
            rank=torch.where(
                residual <= self.tolerance, search.rank, _numerical_rank(prepared.problem, U)
            ),
            confidence=filled(sure),
            curvature=torch.stack([found.low, found.high], dim=-1),
            error=found.error,
            samples=prepared.distinct,
            needed=torch.full((count,), found.needed, device=U.device),
            starts=search.starts.reshape(-1),
        )

    def _zero(self, prepared: Prepared, X: Tensor) -> Answers:
        """Return Q = 0, for responses or inputs that are all zero.

        If `y = 0` and the inputs span the space, Q = 0 is the only answer: Qx_i = 0 for all i.
        """
        answers = blank_answers(X[None], 1)
        answers.samples = prepared.distinct[None]
        answers.needed = torch.full_like(answers.rank, X.shape[-1])
        if bool(prepared.problem.y.any()):  # the inputs are zero, but not the responses
            answers.residual = torch.ones_like(answers.residual)
        spans = int(prepared.span) == X.shape[-1]
        status = Status.RECOVERED if spans else Status.UNDETERMINED
        answers.codes = torch.full_like(answers.rank, status.code)
        return answers


def _numerical_rank(problem: Problem, U: Tensor) -> Tensor:
    """Return the numerical rank of U; 0 if its predictions are negligible beside the responses."""
    squares = torch.linalg.svdvals(U).square()
    matters = squares > ranks.NEGLIGIBLE * squares[..., :1]
    predicted = squares[..., 0] * problem.operator.squared_lengths.mean(-1)
    nothing = predicted <= ranks.NEGLIGIBLE * problem.y.abs().mean(-1)
    return torch.where(nothing, 0, matters.sum(-1))


def _admitted(
    X: Array, y: Array, weights: Array | None, precision: str
) -> tuple[Tensor, Tensor, Tensor, bool]:
    """Return checked tensors of one batch shape, and whether any of them was float32."""
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
    require_shape("y", responses, (n,), "(..., n), one response per row of X")
    shapes = {"X": inputs.shape[:-2], "y": responses.shape[:-1]}
    if rest:
        require_shape("weights", rest[0], (n,), "(..., n), one weight per row of X")
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
