"""`recover`: find a predictor from linear measurements of it, without the choice of a solver."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Literal

from posquad.core.arguments import require_boolean
from posquad.core.arrays import Array
from posquad.core.errors import DomainError
from posquad.core.progress import Progress
from posquad.problems.measurements import Measurements
from posquad.problems.rows.operator import RankOneRows
from posquad.problems.rows.source import Rows
from posquad.recovery.acceptance import Acceptance
from posquad.recovery.from_rows import recover_from_rows
from posquad.recovery.in_memory import recover_in_memory
from posquad.recovery.losses import LossName
from posquad.recovery.options import Options
from posquad.recovery.result import Recovery
from posquad.recovery.streams.checkpoint import Checkpoint

__all__ = ["Recovery", "recover"]


def recover(
    X: Array | Rows | Measurements,
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
    acceptance: Acceptance | None = None,
    loss: LossName = "least-squares",
    scale: float | None = None,
    checkpoint: Checkpoint | str | os.PathLike[str] | None = None,
) -> Recovery:
    """Find the positive semidefinite Q of low rank with `<A_i, Q> = y_i`, and say how sure it is.

    For inputs `x_i`, the rows of X, the measurements are `<A_i, Q> = x_i'Q x_i`. Other symmetric
    matrices A_i are given as `posquad.Dense(A)`.

    Chooses and combines the solvers of `posquad.recovery` by the size of the problem and the
    progress of the search, whitens measurements that are not isotropic, and restarts until the
    responses are reproduced or the best fit is known. For large problems, memory is that of X plus
    O(nr + d^2), because whitened inputs are a view; up to 2^24 entries of X there is also a copy in
    single precision. n x n matrices are formed up to n = 1500; at rank d, systems of size
    min(n, d(d+1)/2) up to 4096 if cheaper steps do not prove the optimum.

    `Dense(A)` takes the same arguments and gets the same checks and statuses as inputs. It costs
    more: a product with all A_i takes O(n d^2 r) operations instead of O(n d r), and memory is
    about ten times that of A. If no combination of the A_i is positive definite, which cannot
    happen for inputs that span the space, two things change. The least residual may only be
    approached as Q grows without bound: the status is NO_MINIMUM if a coordinate grows that no A_i
    sees alone, and the search ends at a large Q, usually as STALLED, for other directions. And
    Q = 0 need not be the only answer to y = 0, so that it is NOT_IDENTIFIED.

    Args:
        X: the measurements: inputs `[..., n, d]`, or `posquad.Dense(A)` for symmetric matrices
            `A[..., n, d, d]`, or `posquad.RankOne(X)`, which is the same as X. Leading dimensions
            are a batch of problems, solved together. What depends on the measurements alone is
            computed once if all problems of a batch have the same ones. An operator of another kind
            (`posquad.GaussianPopulation`, or a subclass of `Measurements`) is turned into `Dense`
            if its matrices have at most 2^27 entries. Or a source of rows
            (`posquad.problems.rows`), which need not fit into memory; see `docs/large.md`. An array
            `[n, d, d]` is a batch of inputs, not of matrices; a warning says so if its slices are
            symmetric.
        y: responses `[..., n]`; noisy or negative ones are fitted by least squares. The batches of
            the measurements, y and weights broadcast: many responses `y[B, n]` may share one
            `X[n, d]`. None takes those of a source that has them (`rows.from_iterator`).
        rank: rank of Q. A lower rank is returned if it suffices. At rank d the problem is convex:
            with too few samples, any matrix that reproduces the responses may be returned, and
            lower ranks are not searched. None chooses the rank, and reports `rank_confidence` and,
            for one problem, the `rank_path` of ranks tried.
        weights: weights of the squared errors, `[..., n]`, nonnegative; zero leaves a sample out.
            None takes those of a source that has them.
        seed: seed of the restarts; the same call gives the same answer.
        tolerance: relative residual at which responses count as reproduced; by default 1e-10, or
            1e-5 if the measurements or y are float32.
        max_rank: highest rank tried if none is given; by default as high as d and the samples
            allow.
        max_starts: maximum number of starts per problem; by default 200,000 / p, between 20 and
            2000.
        max_steps, time_limit: maximum number of steps and of seconds of the whole call. The former
            is a guard by default: usual searches take some hundreds or thousands. When one is
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
            are NaN, `second_starts` is 0, and a problem whose responses are reproduced has the
            status LOSS_REACHED in place of RECOVERED or NOT_IDENTIFIED. The answer itself, its
            residual, its bound and the status BEST_FIT are the same.
        start: a factor `[..., d, k]`, k at most the rank, from which the search begins: a known
            approximation, or the answer to slightly different data. If the rank is not given, it is
            the start of rank k, and its best approximations are those of lower ranks; the problems
            of a batch are then solved one by one. An answer that was only reached from a start
            of the user may have others beside it: see `second_starts_agreeing`.
        acceptance: a `posquad.recovery.Acceptance`: the numbers that decide a status.
        loss: "least-squares"; "huber" or "geman-mcclure" for responses with outliers, of which
            the second gives gross ones no weight, while many of one sign bias the first (see
            `docs/measured.md`); "poisson" for counts with means `<A_i, Q>`, for
            A_i that are positive semidefinite. The last three are minimised by least squares with
            changing weights (`posquad.recovery.losses`); `weights` multiply the loss of a sample.
        scale: standard deviation of normal noise without outliers, for a robust loss; by default
            the median absolute error at the answer over 0.6745 (MAD).
        checkpoint: a file in which the state of long work on the rows of a file is saved every five
            minutes, or a `posquad.recovery.Checkpoint` with another interval. If the process is
            killed, the same call goes on from the last state, to the same answer: the same bits on
            the same machine with the same number of threads. The file is deleted at the end.

    Returns:
        `Recovery`, with arrays of the kind of X (NumPy or torch), or of the kind of y if the
        measurements are an operator. `status` is RECOVERED only if the responses are reproduced,
        there are at least `needed` independent samples, the effective spectrum has no kernel, and a
        second solution is `excluded` or was not found from `second_starts` further starts. It is
        CERTIFIED only if `certificate.proved`: then no other matrix, of any rank, reproduces the
        responses.
        `docs/statuses.md` has the details.

    >>> rng = np.random.default_rng(0)
    >>> U = rng.standard_normal((10, 2))
    >>> X = rng.standard_normal((24, 10))
    >>> found = recover(X, ((X @ U) ** 2).sum(1), rank=2)
    >>> found.status.name, bool(np.abs(found.Q.dense() - U @ U.T).max() < 1e-12)
    ('RECOVERED', True)

    Measurements by symmetric matrices:

    >>> from posquad import Dense
    >>> A = rng.standard_normal((24, 10, 10))
    >>> A = (A + A.swapaxes(1, 2)) / 2
    >>> y = np.einsum("iab,ab->i", A, U @ U.T)
    >>> found = recover(Dense(A), y, rank=2)
    >>> found.status.name, bool(np.abs(found.Q.dense() - U @ U.T).max() < 1e-12)
    ('RECOVERED', True)
    """
    options = Options(
        rank=rank,
        seed=seed,
        tolerance=tolerance,
        max_rank=max_rank,
        max_starts=max_starts,
        max_steps=max_steps,
        time_limit=time_limit,
        precision=precision,
        progress=progress,
        certify=certify,
        diagnose=diagnose,
        start=start,
        acceptance=acceptance,
        loss=loss,
        scale=scale,
    )
    if isinstance(X, RankOneRows):
        X = X.source
    if isinstance(X, Rows):
        return recover_from_rows(X, y, weights, options, checkpoint)
    require_boolean(certify=certify, diagnose=diagnose)
    if checkpoint is not None:
        expected = "None unless X is a source of rows in files (posquad.problems.rows)"
        raise DomainError("checkpoint", expected=expected, got=type(X).__name__)
    return recover_in_memory(X, y, weights, options)
