"""`recover`: find a predictor from quadratic measurements, without the choice of a solver."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from posquad.certificates import certifier
from posquad.core.arguments import require_boolean
from posquad.core.arrays import (
    Array,
    converted_tensor,
    like,
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
from posquad.problems.measurements import RankOne
from posquad.problems.objectives import LeastSquares
from posquad.problems.rows.source import Rows
from posquad.recovery import ranks
from posquad.recovery.budget import Budget, History
from posquad.recovery.candidates import Task
from posquad.recovery.losses import LossName, chosen_loss
from posquad.recovery.other_losses import recover_by_reweighting
from posquad.recovery.pipeline import Pipeline
from posquad.recovery.result import Recovery
from posquad.recovery.streams.checkpoint import Checkpoint, admitted_checkpoint, open_keeper
from posquad.recovery.streams.entry import (
    MEMORY_ENTRIES,
    MOMENT_MOST,
    admitted_responses,
    moments_pay,
    own_responses,
    recover_by_moments,
    recover_by_passes,
    recover_collected,
)
from posquad.recovery.streams.gather import kept_rows
from posquad.recovery.tuning import DEFAULT, Tuning
from posquad.recovery.wanted import Wanted

__all__ = ["Recovery", "recover"]


def recover(
    X: Array | Rows,
    y: Array | None,
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
    diagnose: bool = True,
    start: Array | None = None,
    tuning: Tuning | None = None,
    loss: LossName = "least-squares",
    scale: float | None = None,
    checkpoint: Checkpoint | str | os.PathLike[str] | None = None,
) -> Recovery:
    """Find the positive semidefinite Q of low rank with `x_i'Q x_i = y_i`, and say how sure it is.

    Chooses and combines the solvers of `posquad.recovery` by the size of the problem and the
    progress of the search, whitens inputs that are not isotropic, and restarts until the responses
    are reproduced or the best fit is known. For large problems, memory is that of X plus
    O(nr + d^2), because whitened inputs are a view; up to 2^24 entries of X there is also a copy in
    single precision. n x n matrices are formed up to n = 1500; at rank d, systems of size
    min(n, d(d+1)/2) up to 4000 if cheaper steps do not prove the optimum.

    Args:
        X: inputs `[..., n, d]`; leading dimensions are a batch of problems, solved together. What
            depends on X alone is computed once if all problems of a batch have the same X. Or a
            source of rows (`posquad.problems.rows`), which need not fit into memory; see
            `docs/large.md`.
        y: responses `[..., n]`; noisy or negative ones are fitted by least squares. The batches of
            X, y and weights broadcast: many responses `y[B, n]` may share one `X[n, d]`. None takes
            those of a source that has them (`rows.from_iterator`).
        rank: rank of Q. A lower rank is returned if it suffices. At rank d the problem is convex:
            with too few samples, any matrix that reproduces the responses may be returned, and
            lower ranks are not searched. None chooses the rank, and reports `rank_confidence` and,
            for one problem, the `rank_path` of ranks tried.
        weights: weights of the squared errors, `[..., n]`, nonnegative; zero leaves a sample out.
            None takes those of a source that has them.
        seed: seed of the restarts; the same call gives the same answer.
        tolerance: relative residual at which responses count as reproduced; by default 1e-10, or
            1e-5 if X or y is float32.
        max_rank: highest rank tried if none is given; by default 12.
        max_starts: maximum number of starts per problem; by default 200,000 / p, between 20 and
            2000.
        max_steps, time_limit: maximum number of steps and of seconds of the whole call. When one is
            reached, the best answer so far is returned. Ctrl-C raises `posquad.Interrupted`, with
            the best answer so far as its `result`.
        precision: "float64" computes and returns float64 for any input, and converts a large
            float32 X of one problem block by block; "input" keeps float32.
        progress: called with a `Progress` at every step.
        certify: also return a `certificate` of what can be proved about the answer to one problem:
            `posquad.certify` at `U[:, :rank]`, for the samples of positive weight. It is None if
            there is no factor to certify (Q = 0) or the budget is used up.
        diagnose: False leaves out the curvature, the estimate of the error and the search for a
            second solution, which take about half the time of a small problem at rank d. It is
            then not known whether the data determine the answer: `curvature` and `error_estimate`
            are NaN, `others` is 0, and a problem whose responses are reproduced has the status
            LOSS_REACHED in place of RECOVERED or NOT_IDENTIFIED. The answer itself, its residual,
            its bound and the status BEST_FIT are the same.
        start: a factor `[..., d, k]`, k at most the rank, from which the search begins: a known
            approximation, or the answer to slightly different data. If the rank is not given, it is
            the start of rank k, and its best approximations are those of lower ranks.
        tuning: constants of the search, for experts (`posquad.recovery.tuning`).
        loss: "least-squares"; "huber" or "geman-mcclure" for responses with outliers, of which
            the second gives gross ones no weight, while many of one sign bias the first (see
            `docs/measured.md`); "poisson" for counts with means `x_i'Qx_i`. The last three are
            minimised by least squares with changing weights
            (`posquad.recovery.losses`); `weights` multiply the loss of a sample.
        scale: standard deviation of normal noise without outliers, for a robust loss; by default
            the median absolute error at the answer over 0.6745 (MAD).
        checkpoint: a file in which the state of long work on the rows of a file is saved every five
            minutes, or a `posquad.recovery.Checkpoint` with another interval. If the process is
            killed, the same call goes on from the last state, to the same answer: the same bits on
            the same machine with the same number of threads. The file is deleted at the end.

    Returns:
        `Recovery`. `status` is RECOVERED only if the responses are reproduced, there are at least
        `needed` independent samples, the effective spectrum has no kernel, and a second solution is
        `excluded` or was not found from `others` further starts. It is CERTIFIED only if
        `certificate.proved`: then no other matrix, of any rank, reproduces the responses.
        `docs/statuses.md` has the details.

    >>> rng = np.random.default_rng(0)
    >>> U = rng.standard_normal((10, 2))
    >>> X = rng.standard_normal((24, 10))
    >>> found = recover(X, ((X @ U) ** 2).sum(1), rank=2)
    >>> found.status.name, bool(np.abs(found.Q.dense() - U @ U.T).max() < 1e-12)
    ('RECOVERED', True)
    """
    if isinstance(X, Rows):  # before one of several processes refuses an argument alone
        fact = {"rank": rank, "seed": seed, "tolerance": tolerance, "max_rank": max_rank}
        fact |= {"max_starts": max_starts, "max_steps": max_steps, "time_limit": time_limit}
        fact |= {"certify": certify, "diagnose": diagnose, "start": start, "tuning": tuning}
        fact |= {
            "loss": loss,
            "scale": scale,
            "precision": precision,
            "y": "given" if y is not None else None,
        }
        X.agree(fact=fact)
    require_boolean(certify=certify, diagnose=diagnose)
    wanted = Wanted(rank, max_rank, max_starts, seed, tolerance)
    device = None
    if isinstance(X, Rows):
        y, weights = own_responses(X, y, weights)
        if not X.is_shared:  # before the rows of a small one are read
            checkpoint = admitted_checkpoint(checkpoint, X)
        device, X = X.device, X.to(device="cpu")  # passes over the rows are made on their device
    elif checkpoint is not None:
        expected = "None unless X is a source of rows in files (posquad.problems.rows)"
        raise DomainError("checkpoint", expected=expected, got=type(X).__name__)
    if isinstance(X, Rows) and _fits(X) and not X.is_shared:
        responses, w = admitted_responses(X, y, weights)
        inputs = X.read_all()
        X.require_finite(slice(0, len(inputs)), inputs)
        X, y = inputs.numpy(), responses.numpy()
        weights = None if w is None else w.numpy()
    if isinstance(X, Rows):
        _require_plain(
            certify=bool(certify),
            diagnose=bool(diagnose),
            start=start,
            precision=precision,
            tuning=tuning,
        )
        if chosen_loss(loss, scale) is not None:
            expected = "'least-squares' for a source that is not read into memory"
            raise DomainError("loss", expected=expected, got=repr(loss))
        responses, w = admitted_responses(X, y, weights)
        narrow = torch.tensor(float(torch.float32 in (X.dtype, responses.dtype)))
        level = wanted.level(X.d, narrow=bool(X.largest(narrow)))  # the same for everyone
        progress = X.watched(progress)
        history = History(Budget(max_steps=max_steps, time_limit=time_limit), progress)

        def in_memory(X: Tensor, y: Tensor, weights: Tensor | None) -> Recovery:
            return recover(
                X.numpy(),
                y.numpy(),
                rank,
                weights=None if weights is None else weights.numpy(),
                seed=seed,
                tolerance=tolerance,
                max_rank=max_rank,
                max_starts=max_starts,
                max_steps=max_steps,
                time_limit=time_limit,
                progress=progress,
            )

        options = {**wanted._asdict(), "max_steps": max_steps, "call": "recover"}
        keeper = open_keeper(checkpoint, X, responses, w, options)
        with torch.no_grad(), X.together():
            if _fits(X):
                found = recover_collected(X, responses, w, in_memory)
            elif moments_pay(X):
                found = recover_by_moments(X, responses, w, wanted, level, history, keeper)
            else:
                rows = X.to(device=device)
                found = recover_by_passes(rows, responses, w, level, history, in_memory, keeper)
        keeper.end()
        return found
    if tuning is not None:
        require_instance("tuning", tuning, Tuning, "posquad.recovery.tuning.Tuning")
    other = chosen_loss(loss, scale)
    most = (tuning or DEFAULT).sizes.view_entries if other is None else math.inf
    inputs, responses, w, narrow = _admitted(X, y, weights, precision, most)
    if certify and not diagnose:
        expected = "True with certify=True: a certificate needs an answer that is diagnosed"
        raise DomainError("diagnose", expected=expected, got="False")
    if certify and responses.ndim > 1:
        expected = "False for a batch: a certificate is about one problem"
        raise DomainError("certify", expected=expected, got=f"batch {tuple(responses.shape[:-1])}")
    d = inputs.shape[-1]
    level = wanted.level(d, narrow=narrow)
    if other is not None:
        options = {"rank": rank, "start": start, "tolerance": level, "seed": seed}
        options |= {"max_rank": max_rank, "max_starts": max_starts, "max_steps": max_steps}
        options |= {"time_limit": time_limit, "precision": precision, "progress": progress}
        options |= {"tuning": tuning, "diagnose": diagnose}
        given = (X, inputs, responses, w)
        found = recover_by_reweighting(recover, other, given, options)
        return _certified(found, inputs, responses, w, level) if certify else found
    history = History(Budget(max_steps=max_steps, time_limit=time_limit), progress)
    first = None if start is None else _given_start(start, inputs, responses, rank)
    task = Task(level, seed, history)
    call = Pipeline(task, rank, max_rank, max_starts, tuning or DEFAULT, first, diagnose)
    batch = responses.shape[:-1]
    small = inputs.shape[-2] * d <= call.tuning.sizes.thread_entries
    answers = None
    try:
        with torch.no_grad(), one_torch_thread(when=small):
            answers = call.answers(inputs, responses, None if weights is None else w)
        found = answers.recovery(batch, X, history)
        if call.path and not batch:
            path = torch.tensor(call.path, dtype=torch.float64).T
            rows = (path[0].long(), path[1], path[2])
            found = replace(found, rank_path=ranks.RankPath(*(like(X, row) for row in rows)))
        if call.farkas is not None and not batch:
            # Working responses are those of the user times the square root of the relative weight.
            z = call.farkas.to(w.device)
            z = z if weights is None else z * (w / w.mean()).sqrt()
            found = replace(found, farkas=like(X, z))
    except KeyboardInterrupt as stop:
        if call.given is None:  # nothing has begun
            raise
        best = call.unfinished_answers() if answers is None else answers
        raise Interrupted(best.recovery(batch, X, history)) from stop
    if certify and not history.budget.spent:
        return _certified(found, inputs, responses, w, level)
    return found


def _fits(source: Rows) -> bool:
    """Tell whether a source is better read into memory: few rows, or few entries in wide ones."""
    few = source.d > MOMENT_MOST and source.size <= MEMORY_ENTRIES
    return few or source.n <= kept_rows(source.d)


def _require_plain(**given: object) -> None:
    """Refuse arguments that need all rows in memory."""
    plain = {"certify": False, "diagnose": True, "start": None}
    plain |= {"precision": "float64", "tuning": None}
    for name, value in given.items():
        if value is not plain[name] and not (name == "precision" and value == "float64"):
            expected = f"{plain[name]!r} for a source that is not read into memory"
            got = repr(value) if isinstance(value, bool | str) else type(value).__name__
            raise DomainError(name, expected=expected, got=got)


def _certified(found: Recovery, X: Tensor, y: Tensor, w: Tensor, level: float) -> Recovery:
    """Return the answer with its certificate, if its factor can be certified.

    Ctrl-C raises `Interrupted` with the answer.
    """
    if int(found.rank) == 0:
        return found
    kept = w > 0
    U = torch.as_tensor(found.U[:, : int(found.rank)]).to(y)
    U = U.double()  # in single precision fourth powers of the inputs may overflow
    objective = LeastSquares(RankOne(X[kept].double()), y[kept].double())
    try:
        certificate = certifier.certify(objective, U, tolerance=level)
    except PosquadError:  # the factor does not have full rank
        return found
    except KeyboardInterrupt as stop:
        raise Interrupted(found) from stop
    status = Status.CERTIFIED if certificate.proved else found.status
    return replace(found, certificate=certificate, status=status)


def _given_start(start: Array, X: Tensor, y: Tensor, rank: int | None) -> Tensor:
    """Return a start `[..., d, k]` of the batch of X, as checked tensors."""
    U = converted_tensor("start", start).to(y)
    require_factor("start", U)
    require_shape("start", U, (X.shape[-1], U.shape[-1]), "(..., d, k)")
    if require_batch(X=X.shape[:-2], start=U.shape[:-2]) != X.shape[:-2]:
        expected = f"a batch that broadcasts to that of X, {tuple(X.shape[:-2])}"
        raise ShapeError("start", expected=expected, got=f"batch {tuple(U.shape[:-2])}")
    if rank is not None and U.shape[-1] > rank:
        expected = f"at most rank = {rank} columns"
        raise DomainError("start", expected=expected, got=f"{U.shape[-1]}")
    return U.expand(*X.shape[:-2], *U.shape[-2:])


def _admitted(
    X: Array, y: Array | None, weights: Array | None, precision: str, most: float
) -> tuple[Tensor, Tensor, Tensor, bool]:
    """Return checked tensors of one batch shape, and whether any of them was float32.

    Float32 inputs of one problem with more than `most` entries stay float32.
    """
    if precision not in ("float64", "input"):
        raise DomainError("precision", expected="'float64' or 'input'", got=repr(precision))
    if y is None:
        raise DomainError("y", expected="responses, one per row of X", got="None")
    given = {"X": converted_tensor("X", X), "y": converted_tensor("y", y)}
    if weights is not None:
        given["weights"] = converted_tensor("weights", weights)
    narrow = any(t.dtype == torch.float32 for t in given.values())
    wide, inputs = precision == "float64", given["X"]
    one = inputs.ndim == 2 and all(t.ndim == 1 for name, t in given.items() if name != "X")
    kept = wide and one and inputs.numel() > most
    if kept:
        given["X"] = inputs[:0]
    if wide:
        given = {name: tensor.to(torch.float64) for name, tensor in given.items()}
    first, responses, *rest = unified(**given)
    inputs = inputs if kept else first
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
    w = rest[0] if rest else responses.new_ones(n)
    return (
        inputs.detach().expand(*batch, *inputs.shape[-2:]),
        responses.detach().expand(*batch, n),
        w.detach().expand(*batch, n),
        narrow,
    )
