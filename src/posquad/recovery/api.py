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
    require_factor,
    require_instance,
    require_shape,
    unified,
)
from posquad.core.errors import DomainError, Interrupted, PosquadError, ShapeError
from posquad.core.progress import Progress
from posquad.core.status import Status
from posquad.core.threads import one_torch_thread
from posquad.geometry import dimension
from posquad.problems.measurements import RankOne
from posquad.problems.objectives import LeastSquares
from posquad.recovery import ranks
from posquad.recovery.budget import Budget, History
from posquad.recovery.diagnose import Diagnosis, diagnose_any, needed_samples, status_codes
from posquad.recovery.others import find_second_solution
from posquad.recovery.prepare import has_uneven_rows, looks_nongeneric, normalize_rows, prepare
from posquad.recovery.result import Answers, Recovery, blank_answers
from posquad.recovery.search import Candidates, Task, search
from posquad.recovery.shared import Shared
from posquad.recovery.tuning import DEFAULT, Tuning

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
    start: Array | None = None,
    tuning: Tuning | None = None,
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
        max_starts: maximum number of starts per problem; by default 100,000 / p, between 20 and
            2000.
        max_steps, time_limit: maximum number of steps and of seconds of the whole call. When one is
            reached, the best answer so far is returned. Ctrl-C raises `posquad.Interrupted`, with
            the best answer so far as its `result`.
        precision: "float64" computes and returns float64 for any input; "input" keeps float32.
        progress: called with a `Progress` at every step.
        certify: also return a `certificate` of what can be proved about the answer to one problem:
            `posquad.certify` at `U[:, :rank]`, for the samples of positive weight. It is None if
            there is no factor to certify (Q = 0) or the budget is used up.
        start: a factor `[..., d, k]`, k at most the rank, from which the search begins: a known
            approximation, or the answer to slightly different data.
        tuning: constants of the search, for experts (`posquad.recovery.tuning`).

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
    d = inputs.shape[-1]
    if rank is not None and positive_integer("rank", rank) > d:
        raise DomainError("rank", expected=f"at most d = {d}", got=str(rank))
    if max_rank is not None:
        positive_integer("max_rank", max_rank)
    if positive_integer("seed", seed, zero=True) >= 2**63:
        raise DomainError("seed", expected="an integer below 2^63", got=str(seed))
    level = reproduction_level(tolerance, narrow=narrow)
    if tuning is not None:
        require_instance("tuning", tuning, Tuning, "posquad.recovery.tuning.Tuning")
    if max_starts is not None:
        positive_integer("max_starts", max_starts)
    history = History(Budget(max_steps=max_steps, time_limit=time_limit), progress)
    first = None if start is None else _given_start(start, inputs, rank)
    task = Task(level, seed, history)
    call = _Call(task, rank, max_rank, max_starts, tuning or DEFAULT, first)
    batch = responses.shape[:-1]
    small = inputs.shape[-2] * d <= call.tuning.sizes.thread_entries
    with torch.no_grad(), one_torch_thread(when=small):
        try:
            answers = call.answers(inputs, responses, None if weights is None else w)
        except KeyboardInterrupt as stop:
            raise Interrupted(call.unfinished_answers().recovery(batch, X, history)) from stop
    found = answers.recovery(batch, X, history)
    if call.path and not batch:
        path = torch.tensor(call.path, dtype=torch.float64).T
        rows = (path[0].long(), path[1], path[2])
        found = replace(found, rank_path=ranks.RankPath(*(like(X, row) for row in rows)))
    if call.farkas is not None and not batch:
        # Working responses are those of the user times the square root of the relative weight.
        z = call.farkas if weights is None else call.farkas * (w / w.mean()).sqrt()
        found = replace(found, farkas=like(X, z))
    if certify and not history.budget.spent:
        try:
            return _certified(found, inputs, responses, w, level)
        except KeyboardInterrupt as stop:
            raise Interrupted(found) from stop
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


def _certified(found: Recovery, X: Tensor, y: Tensor, w: Tensor, level: float) -> Recovery:
    """Return the answer with its certificate, if its factor can be certified."""
    if int(found.rank) == 0:
        return found
    kept = w > 0
    U = torch.as_tensor(found.U[:, : int(found.rank)]).to(X)
    U = U.double()  # in single precision fourth powers of the inputs may overflow
    objective = LeastSquares(RankOne(X[kept].double()), y[kept].double())
    try:
        certificate = certifier.certify(objective, U, tolerance=level)
    except PosquadError:  # the factor does not have full rank
        return found
    status = Status.CERTIFIED if certificate.proved else found.status
    return replace(found, certificate=certificate, status=status)


def _given_start(start: Array, X: Tensor, rank: int | None) -> Tensor:
    """Return a start `[..., d, k]` of the batch of X, as checked tensors."""
    U = converted_tensor("start", start).to(X)
    require_factor("start", U)
    require_shape("start", U, (X.shape[-1], U.shape[-1]), "(..., d, k)")
    if require_batch(X=X.shape[:-2], start=U.shape[:-2]) != X.shape[:-2]:
        expected = f"a batch that broadcasts to that of X, {tuple(X.shape[:-2])}"
        raise ShapeError("start", expected=expected, got=f"batch {tuple(U.shape[:-2])}")
    if rank is not None and U.shape[-1] > rank:
        expected = f"at most rank = {rank} columns"
        raise DomainError("start", expected=expected, got=f"{U.shape[-1]}")
    return U.expand(*X.shape[:-2], *U.shape[-2:])


@dataclass
class _Call:
    """One call of `recover`: the stages in order, for one problem or a batch.

    Every stage is a function of values: `prepare` gives a `Prepared`, which with everything that
    does not depend on the rank is a `Shared`; `search` gives `Candidates`, `diagnose_any` a
    `Diagnosis`; together they are the answer. Only an interrupted call needs what is kept here.
    """

    task: Task
    rank: int | None
    max_rank: int | None
    max_starts: int | None
    tuning: Tuning
    start: Tensor | None = None
    path: list[tuple[int, float, float]] = field(default_factory=list)  # of the last problem
    farkas: Tensor | None = None  # of the last problem
    current: tuple[Shared, Tensor] | None = None  # what is being solved, and its flat indices

    @property
    def budget(self) -> Budget:
        return self.task.history.budget

    def answers(self, X: Tensor, y: Tensor, weights: Tensor | None) -> Answers:
        """Return the answers to all problems, `X[..., n, d]`, as a flat batch."""
        n, d = X.shape[-2:]
        self.unfinished = blank_answers(X.reshape(-1, n, d), self.rank or 1)
        self.unfinished.codes[:] = Status.INTERRUPTED.code
        self.unfinished.residual[:] = 1.0  # of Q = 0
        self.unfinished.error[:] = torch.nan
        if X.ndim == 2:
            return self._single(X, y, weights, self.start, 0)
        sizes = self.tuning.sizes
        most = sizes.batch_entries if X.device.type == "cpu" else sizes.batch_entries_elsewhere
        size = max(1, most // (n * d * (self.rank or 1)))
        flat = [X.reshape(-1, n, d), y.reshape(-1, n)]
        rest = [
            None if t is None else t.reshape(-1, *t.shape[X.ndim - 2 :])
            for t in (weights, self.start)
        ]
        parts = []
        for begin in range(0, len(flat[0]), size):
            part = slice(begin, begin + size)
            w, start = (None if t is None else t[part] for t in rest)
            parts.append(self._batch(flat[0][part], flat[1][part], w, start, begin))
        return Answers.stacked(parts) if parts else self.unfinished

    def unfinished_answers(self) -> Answers:
        """Return the answers that were complete at an interruption, and the best of the others."""
        best = self.task.history.best
        if best is not None and self.current is not None:
            shared, where = self.current
            found = best if best.residual.ndim else best.one()
            U = shared.prepared.restore(best.U)
            put = blank_answers(U.reshape(-1, *U.shape[-2:]).mT, best.rank)
            put.U, put.starts = U.reshape(put.U.shape), found.starts
            put.residual = shared.prepared.given_residual(best.U, best.residual).reshape(-1)
            put.rank = torch.where(put.U.any(-1).any(-1), best.rank, 0)
            put.error, put.codes = put.curvature[:, 0], put.codes * 0 + Status.INTERRUPTED.code
            self.unfinished.put(where, put)
        return self.unfinished

    def _begin(self, shared: Shared, where: Tensor) -> None:
        """Remember what is being solved."""
        self.current, self.task.history.best = (shared, where), None

    def _batch(
        self, X: Tensor, y: Tensor, weights: Tensor | None, start: Tensor | None, begin: int
    ) -> Answers:
        """Solve the regular problems of a batch jointly, and the others one by one.

        `begin` is the flat index of the first one.
        """
        n, d = X.shape[-2:]
        rank, acceptance = self.rank, self.tuning.acceptance
        answers = blank_answers(X, rank or 1)
        special = torch.ones(len(X), dtype=torch.bool, device=X.device)
        if rank is not None and n >= needed_samples(d, rank) and start is None and len(X):
            special = has_uneven_rows(X, weights, acceptance) | looks_nongeneric(X)
            special = special | ~(y != 0).any(-1) | ~(X != 0).any(-1).any(-1)
        regular = (~special).nonzero()[:, 0]
        if len(regular):
            w = None if weights is None else weights[regular]
            shared = Shared(prepare(X[regular], y[regular], w, acceptance), self.tuning)
            self._begin(shared, begin + regular)
            alone = (shared.prepared.span < d) | (shared.distinct < needed_samples(d, rank or 1))
            found = search(shared, rank or 1, self.task, self._starts(d, rank or 1))
            squares = torch.linalg.svdvals(found.U).square()
            full = squares[..., -1] > acceptance.negligible * squares[..., 0]
            reproduced = found.residual <= self.task.tolerance
            nearly = found.residual > acceptance.nearly * self.task.tolerance
            repeated = shared.distinct < shared.prepared.count.clamp_max(d * (d + 1) // 2)
            alone = alone | repeated | (reproduced & (~full | nearly))
            answers.put(regular, self._judged(shared, found, 1.0, d, nongeneric=False))
            done = regular[~alone]
            self.unfinished.put(begin + done, answers.select(done))
            special[regular] = alone
        for index in special.nonzero()[:, 0].tolist():
            w, first = (None if t is None else t[index] for t in (weights, start))
            single = self._single(X[index], y[index], w, first, begin + index)
            answers.put(torch.tensor([index], device=X.device), single)
            self.unfinished.put(torch.tensor([begin + index], device=X.device), single)
        return answers

    def _single(
        self, X: Tensor, y: Tensor, weights: Tensor | None, start: Tensor | None, index: int
    ) -> Answers:
        """Solve one problem, `X[n, d]`, of this flat index."""
        acceptance = self.tuning.acceptance
        even = normalize_rows(X, y, weights, acceptance)
        prepared = prepare(X, y, weights, acceptance) if even is None else even
        shared = Shared(prepared, self.tuning)
        if not bool(prepared.problem.y.any()) or int(prepared.span) == 0:
            return self._zero(shared, X)
        self._begin(shared, torch.tensor([index], device=X.device))
        found, sure = self._solved(shared, start)
        reproduced = float(found.residual) <= self.task.tolerance
        if even is not None and not reproduced and not self.budget.spent:
            # No matrix interpolates, so the best fit depends on lengths and weights.
            shared = Shared(prepare(X, y, weights, acceptance), self.tuning)
            self._begin(shared, torch.tensor([index], device=X.device))
            found, sure = self._solved(shared, start)
        repeated = int(shared.distinct) < int(shared.prepared.count)
        nongeneric = repeated or bool(looks_nongeneric(X))
        return self._judged(shared, found, sure, X.shape[-1], nongeneric=nongeneric)

    def _starts(self, d: int, rank: int) -> int:
        if self.max_starts is not None:
            return self.max_starts
        return self.tuning.schedule.max_starts(dimension(d, rank))

    def _solved(self, shared: Shared, start: Tensor | None) -> tuple[Candidates, float]:
        """Search at the given or chosen rank; return what was found and the confidence in it."""
        d, task = shared.problem.d, self.task
        first = None if start is None else shared.prepared.enter(start)

        def solve(
            rank: int, starts: int, start: Tensor | None = None, *, rough: bool = False
        ) -> Candidates:
            if start is None and first is not None and first.shape[-1] <= rank:
                start = ranks.with_columns(shared, first, rank)
            return search(shared, rank, task, starts, start, rough=rough)

        if self.rank is None:
            most = self._starts(d, 1)
            choice = ranks.choose_rank(solve, shared, task, most, self.max_rank)
            found, sure, self.path = choice
        else:
            k = min(self.rank, d)
            starts = self._starts(d, k)
            if int(shared.distinct) < needed_samples(d, k):  # not unique: any interpolant will do
                starts = min(starts, self.tuning.schedule.undetermined_starts)
            found, sure = solve(k, starts), 1.0
        found = ranks.lower_if_possible(found, solve, shared, task)
        most = min(self.rank or d, d)
        return ranks.raise_if_better(found, solve, shared, task, most), sure

    def _judged(
        self, shared: Shared, found: Candidates, sure: float, ambient: int, *, nongeneric: bool
    ) -> Answers:
        """Diagnose what was found, and return the answers in the user's coordinates."""
        task, residual = self.task, found.residual
        task.history.best = found
        diagnosis = diagnose_any(shared, found, self.budget)
        codes = status_codes(diagnosis, found, shared, task, ambient=ambient)
        another, others = self._others(shared, found, diagnosis, codes, nongeneric=nongeneric)
        codes = torch.where(another, Status.NOT_IDENTIFIED.code, codes)
        if self.budget.spent:  # whether there is another solution is not known
            unsure = (codes == Status.RECOVERED.code) & ~shared.linear
            codes = torch.where(unsure, Status.INTERRUPTED.code, codes)
        rank = torch.where(residual <= task.tolerance, found.rank, _numerical_rank(shared, found.U))
        U, given = (
            shared.prepared.restore(found.U),
            shared.prepared.given_residual(found.U, residual),
        )
        worse = given > 1  # than Q = 0, in the user's lengths: the search was ended early
        U = torch.where(worse[..., None, None], 0.0, U)
        # A bound for rows of length one is none for the user's rows.
        even = shared.prepared.rows is not None
        answers = Answers(
            U=U,
            codes=codes,
            residual=given.clamp_max(1.0),
            rank=torch.where(worse, 0, rank),
            confidence=torch.full_like(residual, sure),
            curvature=torch.stack([diagnosis.low, diagnosis.high], dim=-1),
            error=diagnosis.error,
            samples=shared.distinct,
            needed=torch.full_like(rank, diagnosis.needed),
            starts=found.starts,
            others=others,
            bound=torch.zeros_like(found.bound) if even else found.bound,
        )
        if found.farkas is not None and not residual.ndim and not even:
            self.farkas = found.farkas
        return answers if residual.ndim else answers.one()

    def _others(
        self,
        shared: Shared,
        found: Candidates,
        diagnosis: Diagnosis,
        codes: Tensor,
        *,
        nongeneric: bool,
    ) -> tuple[Tensor, Tensor]:
        """Seek a second solution of the problems that would be called recovered.

        Return where there is one, and the number of starts. If the samples determine every
        symmetric matrix there is none.
        """
        open = (codes == Status.RECOVERED.code) & ~shared.linear
        count = torch.zeros_like(codes)
        none = torch.zeros_like(open)
        if not bool(open.any()) or self.budget.spent:
            return none, count
        apart = torch.clamp_min(100 * diagnosis.error, self.tuning.acceptance.apart)
        if open.ndim == 0:
            another, starts = find_second_solution(
                shared, found, self.task, apart, nongeneric=nongeneric
            )
            return another, starts
        chosen = open.nonzero()[:, 0]
        part = Shared(shared.prepared.select(chosen), self.tuning)
        another, starts = find_second_solution(
            part, found.select(chosen), self.task, apart[chosen], nongeneric=False
        )
        return none.index_copy(0, chosen, another), count.index_copy(0, chosen, starts)

    def _zero(self, shared: Shared, X: Tensor) -> Answers:
        """Return Q = 0, for responses or inputs that are all zero.

        If `y = 0` and the inputs span the space, Q = 0 is the only answer: Qx_i = 0 for all i.
        """
        prepared = shared.prepared
        answers = blank_answers(X[None], 1)
        answers.samples = shared.distinct[None]
        answers.needed = torch.full_like(answers.rank, X.shape[-1])
        if bool(prepared.problem.y.any()):  # the inputs are zero, but not the responses
            answers.residual = torch.ones_like(answers.residual)
            answers.error = torch.full_like(answers.error, torch.nan)
        spans = int(prepared.span) == X.shape[-1]
        status = Status.RECOVERED if spans else Status.UNDETERMINED
        answers.codes = torch.full_like(answers.rank, status.code)
        return answers


def _numerical_rank(shared: Shared, U: Tensor) -> Tensor:
    """Return the numerical rank of U; 0 if its predictions are negligible beside the responses."""
    problem, negligible = shared.problem, shared.tuning.acceptance.negligible
    squares = torch.linalg.svdvals(U).square()
    matters = squares > negligible * squares[..., :1]
    predicted = squares[..., 0] * problem.operator.squared_lengths.mean(-1)
    nothing = predicted <= negligible * problem.y.abs().mean(-1)
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
