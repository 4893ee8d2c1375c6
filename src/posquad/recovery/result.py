"""`Recovery`, the result of `recover`, and the answers to a flat batch that it is made from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posquad.certificates import Certificate
from posquad.core.arrays import Array, host, like
from posquad.core.errors import DomainError
from posquad.core.ranges import ANSWERS
from posquad.core.results import Result, short_words
from posquad.core.status import Status, from_codes
from posquad.recovery.budget import History
from posquad.recovery.diagnose import needed_samples
from posquad.recovery.evidence import Evidence
from posquad.recovery.losses import LossName, describe_likelihood
from posquad.recovery.psd_operator import Predictor
from posquad.recovery.ranks import RankPath
from posquad.recovery.status import grant

# Properties that `repr` shows in place of the evidence.
_TOLD = (
    "residual",
    "curvature",
    "error_estimate",
    "samples",
    "needed",
    "excluded",
    "second_starts",
)
_TOLD += ("second_starts_agreeing", "residual_bound")

# Relative difference of residuals from which the answer is a record of its own in the history. A
# definition.
_RECORDED = 1e-9
# The same in units of eps, relative to the responses. A definition: the accuracy of residuals.
_RECORDED_UNITS = 100


@dataclass(frozen=True, eq=False, repr=False)
class Recovery(Result):
    """The result of `recover`; `...` stands for the batch of problems."""

    U: Any  # [..., d, k]  orthogonal columns of descending norm; k is the largest rank found
    Q: Predictor  # UU', as an operator; Q.dense() forms the matrix
    status: Status | list  # CERTIFIED, RECOVERED, NOT_IDENTIFIED, BEST_FIT, STALLED, ...
    certificate: Certificate | None  # of U[:, :rank], if `recover(..., certify=True)`
    history: Any  # [T]  least relative residual at each start of a run and each step; of one
    #     problem, on the way to the answer: at its rank, and before at lower ones
    history_rank: Any  # [T]  rank at these steps
    rank: Any  # [...]  rank found
    rank_confidence: Any  # [...]  1 if given or certain, else the weight among the ranks tried
    starts: Any  # [...]  starts used
    evidence: Evidence  # what the status was granted from; printed, a table
    steps: int  # steps of the search; the starts of a round take a step together
    rows: int  # measurements, n; `samples` of them are independent
    rank_path: RankPath | None = None  # ranks tried, for one problem without a given rank
    farkas: Any = None  # [n]  vector that proves `residual_bound` of one problem; if the
    #     bound is positive, `posquad.certificates.proves_infeasible` checks it
    loss: LossName = "least-squares"
    scale: Any = None  # [...]  of a robust loss, given or estimated
    weights: Any = None  # [..., n]  of the squared errors at the answer, for another loss

    @property
    def residual(self) -> Any:
        """`||A(Q) - y|| / ||y||`, `[...]`, weighted if weights were given."""
        return self.evidence.residual

    @property
    def residual_bound(self) -> Any:
        """Lower bound of the residual of every positive semidefinite matrix, `[...]`, or 0."""
        return self.evidence.bound

    @property
    def curvature(self) -> Any:
        """Ends of the effective spectrum at U over `lambda_1(Q)`, `[..., 2]`; NaN if unknown.

        They are those for whitened measurements and fitted responses. Low curvature amplifies
        noise.
        """
        return self.evidence.curvature

    @property
    def error_estimate(self) -> Any:
        """First-order estimate of `||Q - Q*||_F / ||Q||_F` from the residual, `[...]`."""
        return self.evidence.error

    @property
    def samples(self) -> Any:
        """Independent samples, the dimension of the span of the A_i, `[...]`."""
        return self.evidence.samples

    @property
    def needed(self) -> Any:
        """Samples needed: p + 1 at the rank found, or d(d+1)/2 if that is less, `[...]`."""
        return self.evidence.needed

    @property
    def excluded(self) -> Any:
        """Whether a dual matrix excludes every other solution, up to rounding, `[...]`."""
        return self.evidence.excluded

    @property
    def second_starts(self) -> Any:
        """Starts from which a second solution was sought, `[...]`; 0 if none was."""
        return self.evidence.second_starts

    @property
    def second_starts_agreeing(self) -> Any:
        """Those of the `second_starts` that ended at the answer again, `[...]`.

        Starts that were made from the answer do not count. A search in which hardly any agreed says
        little.
        """
        return self.evidence.agreeing

    def _shown_fields(self) -> list[tuple[str, str]]:
        own = super()._shown_fields()
        place = [name for name, _ in own].index("evidence")
        told = [(name, short_words(getattr(self, name))) for name in _TOLD]
        told = [(k, f"{v} independent of {self.rows}" if k == "samples" else v) for k, v in told]
        return [*own[:place], *told, *own[place + 1 :]]

    @property
    def message(self) -> str | list:
        """Cause and remedy in words, for one problem or for each problem of a batch.

        They name the limit that ended the choice of a rank. For another loss than least squares
        they end with the likelihood that it assumes.
        """
        words = [self.rank_limit] if self.rank_limit else []
        if self.loss != "least-squares":
            words.append(f"assumed: {self.likelihood}")
        return _messages(self.status, words)

    @property
    def rank_limit(self) -> str | None:
        """What kept higher ranks from being tried, if the highest that was tried is the best.

        None also for a batch, where it is not known.
        """
        if self.rank_path is None or self.status not in (Status.BEST_FIT, Status.STALLED):
            return None
        rank, d = int(self.rank), self.U.shape[-2]
        if float(self.rank_confidence) or rank == d or rank < int(self.rank_path.rank[-1]):
            return None
        told = f"rank {rank} is the highest that was tried, and the best: "
        if int(self.samples) < needed_samples(d, rank + 1):
            return f"{told}{int(self.samples)} independent samples allow no higher one, so add some"
        return f"{told}allow higher ones by max_rank"

    @property
    def likelihood(self) -> str:
        """The assumption about the responses under which the loss is efficient, in words."""
        return describe_likelihood(self.loss)


@dataclass
class Answers:
    """Answers to a flat batch of problems."""

    U: np.ndarray  # [B, d, k] in the user's coordinates; columns beyond the rank are zero
    rank: np.ndarray  # [B]
    searched: np.ndarray  # rank of the search, before directions that contribute nothing were left
    confidence: np.ndarray
    starts: np.ndarray
    evidence: Evidence

    @property
    def codes(self) -> np.ndarray:
        """Codes of the statuses, `[B]`."""
        return grant(self.evidence)

    def each(self, change: Callable[[np.ndarray], np.ndarray]) -> Answers:
        """Return the answers with every array changed."""
        rest = {k: change(v) for k, v in vars(self).items() if k != "evidence"}
        return Answers(**rest, evidence=self.evidence.each(change))

    def one(self) -> Answers:
        """Return the answer to one problem as a batch of one."""
        return self.each(lambda value: value[None])

    def select(self, index: np.ndarray) -> Answers:
        """Return the answers at these indices, or where a mask holds."""
        return self.each(lambda value: value[index])

    def widen(self, columns: int) -> None:
        """Pad the factors with zero columns to at least this many."""
        short = columns - self.U.shape[-1]
        if short > 0:
            self.U = np.pad(self.U, ((0, 0), (0, 0), (0, short)))

    @staticmethod
    def stacked(parts: list[Answers]) -> Answers:
        """Concatenate answers; factors are padded with zero columns to the widest."""
        for part in parts:
            part.widen(max(other.U.shape[-1] for other in parts))

        def joined(first: Any, name: str) -> Any:
            return np.concatenate([getattr(part, name) for part in first])

        rest = [name for name in vars(parts[0]) if name != "evidence"]
        evidence = Evidence.stacked([part.evidence for part in parts])
        return Answers(**{name: joined(parts, name) for name in rest}, evidence=evidence)

    def put(self, index: np.ndarray, other: Answers) -> None:
        """Replace the answers at these indices."""
        self.widen(other.U.shape[-1])
        other.widen(self.U.shape[-1])
        for mine, theirs in ((self, other), (self.evidence, other.evidence)):
            for name, value in vars(theirs).items():
                if name != "evidence":
                    getattr(mine, name)[index] = value

    def require_range(self) -> None:
        """Refuse factors that the precision cannot hold with all digits."""
        low, high = ANSWERS.of(torch.from_numpy(self.U[:0]).dtype)
        sizes = abs(self.U).max((-2, -1), initial=0.0)
        outside = ~((sizes == 0) | ((sizes >= low) & (sizes <= high)))
        if outside.any():
            where = f", problem {int(outside.argmax())} of the batch" if len(sizes) > 1 else ""
            expected = f"responses and inputs whose factor has entries of {low:.0e} to {high:.0e}"
            got = f"one of size {sizes[outside][0]:.1e}{where}; rescale X or y"
            raise DomainError("y", expected=expected, got=got)

    def recovery(self, batch: torch.Size, model: Array, history: History, rows: int) -> Recovery:
        """Return a `Recovery` from `rows` samples, with arrays of the kind of `model`."""
        widest = max(1, int(self.rank.max())) if len(self.rank) else self.U.shape[-1]
        residuals, ranks = history.least_residuals(None if batch else int(self.searched[0]))
        own = self.evidence.residual
        if not batch:  # the answer may be that of a closed form, or U was rounded at the end
            reported = float(own[0])
            most = _RECORDED * reported + _RECORDED_UNITS * np.finfo(own.dtype).eps
            if not residuals or not abs(residuals[-1] - reported) <= most:
                residuals, ranks = [*residuals, reported], [*ranks, int(self.searched[0])]
        least = np.array(residuals or [0.0], dtype=own.dtype)

        def out(value: np.ndarray) -> Any:
            return like(model, value.reshape(batch + value.shape[1:]))

        factor = out(self.U[..., :widest])
        return Recovery(
            U=factor,
            Q=Predictor(factor),
            status=from_codes(self.codes.reshape(batch)),
            certificate=None,
            history=like(model, least),
            history_rank=like(model, np.array(ranks or [0], dtype=np.int64)),
            rank=out(self.rank),
            rank_confidence=out(self.confidence),
            starts=out(self.starts),
            evidence=self.evidence.each(out),
            steps=history.budget.steps,
            rows=rows,
        )


def stacked_recoveries(parts: list[Recovery], batch: torch.Size, model: Array) -> Recovery:
    """Return the results of single problems as the result of a batch of this shape.

    Arrays are of the kind of `model`; there must be at least one result.
    """

    def out(values: list[Tensor]) -> Any:
        stack = torch.stack(values)
        return like(model, stack.reshape(batch + stack.shape[1:]))

    widest = max(part.U.shape[-1] for part in parts)
    factors = [torch.as_tensor(part.U) for part in parts]
    pad = torch.nn.functional.pad
    U = out([pad(factor, (0, widest - factor.shape[-1])) for factor in factors])
    changed: dict[str, Any] = {}
    for field in fields(Recovery):
        values = [getattr(part, field.name) for part in parts]
        own = field.name in ("U", "history", "history_rank")  # of different lengths
        if isinstance(values[0], np.generic | np.ndarray | Tensor) and not own:
            changed[field.name] = out([torch.as_tensor(v) for v in values])
    changed["evidence"] = Evidence.stacked(
        [part.evidence for part in parts], lambda values: out([torch.as_tensor(v) for v in values])
    )
    codes = torch.tensor([part.status.code for part in parts if isinstance(part.status, Status)])
    for name in ("history", "history_rank"):
        column = torch.cat([torch.as_tensor(getattr(part, name)) for part in parts])
        changed[name] = like(model, column)
    changed |= {"U": U, "Q": Predictor(U), "status": from_codes(codes.reshape(batch))}
    return replace(parts[0], **changed, rank_path=None, steps=sum(part.steps for part in parts))


def _messages(status: Status | list, words: list[str]) -> str | list:
    if not isinstance(status, Status):
        return [_messages(s, words) for s in status]
    return "; ".join([status.value, *words])


def unfinished_answers(y: Tensor, d: int, columns: int) -> Answers:
    """Return answers to `y[B, n]` with Q = 0 and status INTERRUPTED, of problems not yet solved."""
    blank = blank_answers(y, d, columns)
    blank.evidence.spent[:] = True
    blank.evidence.residual[:] = 1.0  # of Q = 0
    blank.evidence.error[:] = np.nan
    return blank


def blank_answers(y: Tensor, d: int, columns: int) -> Answers:
    """Return answers to `y[B, n]` with Q = 0 and status STALLED, to be filled in."""
    count = len(y)
    dtype = host(y[:0]).dtype
    none = np.zeros(count, dtype=np.int64)
    return Answers(
        U=np.zeros((count, d, columns), dtype=dtype),
        rank=none.copy(),
        searched=none.copy(),
        confidence=np.ones(count, dtype=dtype),
        starts=none.copy(),
        evidence=Evidence.blank(count, dtype),
    )
