"""What depends on the data but not on the rank, computed at most once and only if needed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from posquad.core.arrays import host
from posquad.core.linalg import leading_pairs, positive_factor
from posquad.core.ranges import tiny
from posquad.geometry import dimension
from posquad.problems.combination import positive_combination
from posquad.problems.held import HeldMeasurements
from posquad.problems.measurements import RankOne
from posquad.problems.packed import Packed
from posquad.problems.projected import Projected
from posquad.recovery.acceptance import DEFAULT, Acceptance
from posquad.recovery.costs import (
    BLOCK,
    fits,
    is_overhead,
    is_quick,
    is_small,
    solves,
    takes_dense_steps,
)
from posquad.recovery.initializers import (
    bounded_directions,
    fit_on,
    least_interpolant,
    raised_factor,
)
from posquad.recovery.linearization import Linearization
from posquad.recovery.prepare import Prepared, has_single
from posquad.recovery.problem import Problem

# Samples per unknown from which a first-order run is the cheaper first attempt. Measured on 376
# small problems, which take 2 times as long at half and 1.5 times at double the value.
AMPLE = 1.7
# Most columns of the matrix that is fitted to make the first start. Derived: 496 unknowns, whose
# system takes milliseconds; further columns get the least size.
_START_COLUMNS = 31
# Columns of the estimate with bounded weights that are computed at once. A choice: more ranks than
# are usually tried.
_ESTIMATED_COLUMNS = 12
# Share of the largest eigenvalue to which others are raised in a start. Derived: its root, the size
# of the column, is 1e-4, so that U has full rank and the start hardly changes.
_LEAST_EIGENVALUE = 1e-8
# Samples for which the few dense steps of a descent near the limit are affordable, over
# those of `costs.solves`. Measured on one thread at rank 5: 0.4 s instead of 0.8 s at n = 1639, d =
# 300, and as long as first-order steps at n = 2739, d = 500. Elsewhere derived, but not measured:
# an accelerator does 100 times as many dense operations per second.
_DENSE_SAMPLES = 1.25
_DENSE_SAMPLES_ELSEWHERE = 5.0
# Entries of the matrix of a linearization, on a CPU and on an accelerator. Derived: 256 MB and 1
# GB; with its factor twice as many.
_SYSTEM_ENTRIES = 2**25
_SYSTEM_ENTRIES_ELSEWHERE = 2**27
# Multiple of the noise of eigenvalues from which one stands out. A choice: the trials of ranks that
# begin there go both ways, and inputs that are not Gaussian have more noise.
_EIGENVALUE_NOISE = 2.0

# Entries n d^2 of sums over samples up to which matrices are reflected, each time with a
# decomposition. Derived: d = 32, where that of 24 starts takes some 10 ms.
_REFLECTED_ENTRIES = 2**19


@dataclass(frozen=True, eq=False)
class ProblemCache:
    """A prepared problem or batch, with factorizations, moments and estimates for every rank."""

    prepared: Prepared
    acceptance: Acceptance = DEFAULT

    @cached_property
    def problem(self) -> Problem:
        """The problem in working coordinates.

        A small one with other terms has fewer measurements than `prepared`, none of which depends
        on the others.
        """
        problem = self.prepared.problem
        spare = problem.n > self.other_terms
        return problem.compressed() if spare and _is_matrices(problem) else problem

    @property
    def other_terms(self) -> int:
        """Coefficients of other terms."""
        return self.prepared.other_terms

    def unknowns(self, rank: int) -> int:
        """Return the number of unknowns at a rank, those of other terms included."""
        return (dimension(self.problem.d, rank) if rank else 0) + self.other_terms

    @property
    def samples(self) -> int:
        """Number of samples: what they leave to chance depends on it, and not on n.

        Where sums leave symmetric matrices free, only independent samples count.
        """
        sums = self.prepared.sums
        if sums is None:
            return self.problem.n
        return int(self.prepared.count) if sums.determined else sums.independent

    @property
    def forms_kernel(self) -> bool:
        """Whether n x n systems are affordable, and the samples leave symmetric matrices free."""
        sums = self.prepared.sums
        if sums is not None and sums.determined:
            return False
        D = self.problem.d * (self.problem.d + 1) // 2
        return self.problem.n <= D and solves(self.problem.n)

    @property
    def is_convex_small(self) -> bool:
        """Whether dense steps can refine the answer to the problem without a limit on the rank."""
        D = self.problem.d * (self.problem.d + 1) // 2
        return solves(min(self.problem.n, D))

    @property
    def has_rounded_rows(self) -> bool:
        """Whether some measurements of sums are rounding of what other terms explain."""
        sums = self.prepared.sums
        return sums is not None and sums.independent < self.problem.n

    @cached_property
    def is_bounded(self) -> bool:
        """Whether the responses bound a matrix, or there are no other terms that may replace it."""
        if not self.other_terms or not self.problem.d:
            return True
        if self.has_rounded_rows:
            return False
        return positive_combination(self.problem.operator) is not None

    def select(self, chosen: Tensor) -> ProblemCache:
        """Return the problems of a batch at these indices, which ascend.

        What is computed is kept if these are all problems.
        """
        if len(chosen) == len(self.prepared.problem.y):
            return self
        return ProblemCache(self.prepared.select(chosen), self.acceptance)

    def thinned(self, rank: int) -> ProblemCache:
        """Return the problem with as many rows as a search for a second solution needs.

        `Acceptance.thinned_rows` times the dimension of the matrices of rank 2r are kept, chosen at
        random, if there are four times as many: a second solution of all rows is one of these, and
        on rows in general position they leave none. All rows are kept if these span less.
        """
        n, d, acceptance = self.problem.n, self.problem.d, self.acceptance
        most = dimension(d, min(2 * rank, d))
        kept = max(acceptance.least_thinned_rows, acceptance.thinned_rows * most)
        if n < 4 * kept:
            return self
        generator = torch.Generator().manual_seed(n)
        index = torch.randperm(n, generator=generator)[:kept].sort().values
        y = self.problem.y
        index = index.to(y.device)
        problem = self.problem.at_rows(index)
        rows = None if self.prepared.rows is None else self.prepared.rows[..., index]
        thinned = ProblemCache(replace(self.prepared, problem=problem, rows=rows), self.acceptance)
        full = thinned.distinct >= np.minimum(self.distinct, kept)
        return thinned if full.all() else self

    def is_small(self, rank: int) -> bool:
        """Whether starts of this rank are run on NumPy arrays."""
        n, d, y = self.problem.n, self.problem.d, self.problem.y
        return is_small(n, d, rank, dimension(d, rank)) and y.device.type == "cpu"

    def is_dense(self, rank: int) -> bool:
        """Whether dense damped steps are cheaper at this rank than first-order ones."""
        n, d, p = self.problem.n, self.problem.d, dimension(self.problem.d, rank)
        elsewhere = self.problem.y.device.type != "cpu"
        more = _DENSE_SAMPLES_ELSEWHERE if elsewhere else _DENSE_SAMPLES
        near_limit = solves(math.ceil(n / more)) and self.samples < AMPLE * p
        # A first-order step reads all of R, as a dense one does.
        packed = isinstance(self.problem.operator, Packed) and takes_dense_steps(n, d, rank, p)
        return near_limit or packed or is_overhead(n, d, rank, p)

    @property
    def has_reflections(self) -> bool:
        """Whether relaxed reflections are worth their decompositions."""
        n, d = self.problem.n, self.problem.d
        packed = isinstance(self.problem.operator, Packed)
        return not packed or n * d**2 <= _REFLECTED_ENTRIES

    def is_linearized(self, rank: int) -> bool:
        """Whether the system of a `Linearization` is affordable, and worth its `n (d r)^2`.

        Near the limit it is small beside the many products with X that replace it there.
        """
        y, m = self.problem.y, self.problem.d * rank
        most = _SYSTEM_ENTRIES if y.device.type == "cpu" else _SYSTEM_ENTRIES_ELSEWHERE
        affordable = y[..., 0].numel() * m**2 <= most and y.dtype == torch.float64
        return affordable and self.problem.n < AMPLE * m

    @cached_property
    def _last_linearized(self) -> list[Linearization]:
        """The last linearization, if there is one."""
        return []

    def linearized(self, U: Tensor) -> Linearization:
        """Return the linearization at U; the last one is kept."""
        kept = self._last_linearized
        if not kept or kept[0].U is not U:
            kept[:] = [Linearization.at(self.problem, U)]
        return kept[0]

    @cached_property
    def single(self) -> RankOne | None:
        """The operator of one problem in single precision, if products with it save time."""
        operator = self.problem.operator
        if not has_single(operator):
            return None
        assert isinstance(operator, RankOne), "the others have no single precision"
        single, lengths = operator.single(), operator.squared_lengths
        narrow = single.squared_lengths
        in_range = torch.isfinite(narrow) & ((narrow > 0) == (lengths > 0))
        return single if bool(in_range.all()) else None

    # The samples.

    @cached_property
    def _samples(self) -> tuple[np.ndarray, np.ndarray | None]:
        if self.prepared.sums is not None:
            return np.array(self.prepared.sums.independent), None
        n, d, same = self.problem.n, self.problem.d, self.acceptance.same_row
        system = min(n, d * (d + 1) // 2)
        small = solves(system) and is_quick(n * system**2 / 2)  # the system is symmetric
        operator = self.problem.operator
        if (shared := operator.shared) is None:
            return independent_samples(operator, small, same)
        count, strengths = independent_samples(shared, small, same)
        batch = operator.batch_shape
        if strengths is not None:
            strengths = np.broadcast_to(strengths, (*batch, *strengths.shape))
        return np.broadcast_to(count, batch), strengths

    @property
    def distinct(self) -> np.ndarray:
        """Independent samples, the dimension `[...]` of the span of the matrices A_i.

        In large problems, the number of them that are neither zero nor multiples of others.
        """
        return self._samples[0]

    def suffices(self, rank: int) -> np.ndarray:
        """Return where `[...]` there are enough samples to identify a predictor of this rank.

        With other terms, structured inputs may have fewer independent ones, and determine it.
        """
        enough = self.distinct >= needed_samples(self.problem.d, rank)
        more = self.prepared.problem.n > self.unknowns(rank)
        return enough | (more and self.other_terms > 0)

    @property
    def linear(self) -> np.ndarray:
        """Whether the samples determine every symmetric matrix, `[...]`."""
        if self.prepared.sums is not None:
            return np.array(self.prepared.sums.determined)
        D = self.problem.d * (self.problem.d + 1) // 2
        return (self.distinct == D) & (self._samples[1] is not None)

    def checks(self, level: np.ndarray) -> np.ndarray:
        """Return the number `[...]` of samples that are independent despite errors of `level`."""
        distinct, strengths = self._samples
        if strengths is None:
            return distinct
        firm = strengths > level[..., None] ** 2 * strengths[..., -1:]
        return np.minimum(firm.sum(-1), distinct)

    # Estimates of Q.

    @cached_property
    def symmetric(self) -> tuple[Tensor, Tensor] | None:
        """The best symmetric matrix, and whether it is unique; None if n is too small or large."""
        problem = self.problem
        D, sums = problem.d * (problem.d + 1) // 2, self.prepared.sums
        if sums is not None:
            return sums.symmetric, torch.tensor(sums.determined)
        if problem.n < D or not fits(4 * problem.n * D):  # the system, and its decomposition
            return None
        return problem.operator.symmetric_fit(problem.y)

    def start(self, rank: int) -> Tensor:
        """Return the first start `[..., d, rank]`, of full rank."""
        problem = self.problem
        sums = self.prepared.sums is not None
        if sums and bool((self._symmetric_pairs[0][..., -1] > 0).all()):
            return _raised_part(self._symmetric_pairs, rank)
        if self.forms_kernel:
            values, vectors = (part[..., : -rank - 1 : -1] for part in self._interpolant)
            return raised_factor(values, vectors, problem.y)
        W = self._bounded_directions[..., :rank]
        if W.shape[-1] < rank:
            W = bounded_directions(problem.operator, problem.y, rank)
        # The largest k with k(k+1)/2 <= n is (sqrt(8n + 1) - 1) / 2, rounded down.
        k = min(rank, _START_COLUMNS, (math.isqrt(8 * problem.n + 1) - 1) // 2)
        values, vectors = (host(part) for part in fit_on(problem.operator, problem.y, W[..., :k]))
        values = np.concatenate([values, np.zeros_like(values[..., :1]).repeat(rank - k, -1)], -1)
        vectors = np.concatenate([vectors, host(W[..., k:])], -1)
        bounded = raised_factor(values, vectors, problem.y)
        if self.symmetric is None:
            return bounded
        U = _raised_part(self._symmetric_pairs, rank)
        return torch.where(self.symmetric[1][..., None, None], U, bounded)

    @cached_property
    def _symmetric_pairs(self) -> tuple[Tensor, Tensor]:
        """Eigenpairs, ascending, of the best symmetric matrix."""
        assert self.symmetric is not None, "asked for where there is one"
        values, vectors = torch.linalg.eigh(self.symmetric[0])
        return values, vectors

    @cached_property
    def visible_rank(self) -> np.ndarray:
        """Eigenvalues of the best symmetric matrix that stand out of its noise, `[...]`.

        It is 0 where the samples do not determine that matrix. Noise of standard deviation s in the
        responses gives its entries one of `s / (2 sqrt(n))` for isotropic inputs, and the noise of
        its eigenvalues ends at `s sqrt(d / n)`, twice that times sqrt(d) (Wigner's semicircle).
        """
        problem, n, d = self.problem, self.problem.n, self.problem.d
        if self.symmetric is None:
            return np.zeros(problem.y.shape[:-1], dtype=np.int64)
        S, complete = self.symmetric
        values = host(self._symmetric_pairs[0])
        e = problem.operator.apply_kernel(S) - problem.y
        spare = max(self.samples - d * (d + 1) // 2, 1)
        size = host(torch.linalg.vector_norm(e, dim=-1))
        if self.prepared.sums is not None:
            size = np.hypot(size, self.prepared.within**0.5 * host(problem.size))
        noise = size * (d / (n * spare)) ** 0.5
        least = self.acceptance.negligible * abs(values).max(-1)
        seen = values > np.maximum(_EIGENVALUE_NOISE * noise, least)[..., None]
        return np.where(host(complete), seen.sum(-1), 0)

    @cached_property
    def interpolant(self) -> Tensor:
        """The interpolant of least Frobenius norm, `[..., d, d]`."""
        return least_interpolant(self.problem.operator, self.problem.y)

    @cached_property
    def _interpolant(self) -> tuple[np.ndarray, np.ndarray]:
        """Eigenpairs, ascending, of the interpolant of least Frobenius norm."""
        values, vectors = torch.linalg.eigh(self.interpolant)
        return host(values), host(vectors)

    @cached_property
    def _bounded_directions(self) -> Tensor:
        """Eigenvectors `[..., d, k]`, descending, of the estimate with bounded weights."""
        most = min(self.problem.d, _ESTIMATED_COLUMNS)
        y = self.problem.y
        if self.single is None:
            return bounded_directions(self.problem.operator, y, most)
        # The sampling error is far above single precision.
        return bounded_directions(self.single, y.to(self.single.dtype), most).to(y.dtype)

    @cached_property
    def _correlation(self) -> tuple[Tensor, Tensor]:
        """Eigenpairs, ascending, of `A*(y)`."""
        values, vectors = torch.linalg.eigh(self.problem.operator.adjoint_kernel(self.problem.y))
        return values, vectors

    def better_than_zero(self, rank: int) -> Tensor:
        """Return a factor of less residual than Q = 0, or zero if Q = 0 is the best fit.

        It is that of tP, where P is the positive part of `W = A*(y)` of this rank and
        `t = <A(P), y> / ||A(P)||^2`, which is positive because `<A(P), y> = <P, W> = ||P||^2`. If W
        has no positive part, `<A(S), y> <= 0` for every positive semidefinite S.
        """
        U = positive_factor(*leading_pairs(self._correlation, rank))
        predicted = self.problem.operator.apply_factor_kernel(U)
        scale = (predicted * self.problem.y).sum(-1)
        scale = scale / predicted.square().sum(-1).clamp_min(tiny(predicted))
        return U * scale.clamp_min(0).sqrt()[..., None, None]


def _is_matrices(problem: Problem) -> bool:
    """Return whether a problem with other terms is worked on as one of symmetric matrices.

    Up to n d^2 = 2^20 a product with them costs as much as its calls.
    """
    n, entries = problem.n, problem.n * problem.d**2
    return (solves(n) and fits(entries)) or entries <= BLOCK


def needed_samples(d: int, rank: int) -> int:
    """Return the samples needed to identify a rank: p + 1, or d(d+1)/2 if that is less.

    With d(d+1)/2 samples the linear system for Q is determined.
    """
    return min(dimension(d, rank) + 1, d * (d + 1) // 2)


def positive_part(Q: Tensor, rank: int) -> Tensor:
    """Return a factor of the top `rank` eigenvalues of Q, each raised to at least a tiny one."""
    return _raised_part(torch.linalg.eigh(Q), rank)


def _raised_part(pairs: tuple[Tensor, Tensor], rank: int) -> Tensor:
    values, vectors = leading_pairs(pairs, rank)
    least = (_LEAST_EIGENVALUE * values[..., :1]).clamp_min(tiny(values))
    return vectors * torch.maximum(values, least).sqrt()[..., None, :]


def independent_samples(
    operator: HeldMeasurements, small: bool, same: float
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the dimension of the span of the matrices A_i.

    The second value holds the squared singular values of these matrices, scaled to norm one. If the
    system is not `small`, return the number of distinct directions, and None.
    """
    n, d = operator.n, operator.d
    D = d * (d + 1) // 2
    if not small:
        return host(_distinct_rows(operator, same).clamp_max(D)), None
    if n <= D:
        norms = torch.where(operator.norms > 0, operator.norms, 1.0)
        system = operator.inner_products() / (norms[..., :, None] * norms[..., None, :])
    else:
        system = operator.normalized().fourth_moments
    values = host(torch.linalg.eigvalsh(system))
    return (values > n * np.finfo(values.dtype).eps * values[..., -1:]).sum(-1), values


def _distinct_rows(operator: HeldMeasurements, same: float) -> Tensor:
    """Return how many measurements are neither zero nor multiples of other ones.

    Multiples have the same value, up to the sign, for a random matrix pp'. Measurements that are
    next to each other in that order, and agree to rounding there and for a second p, count as
    multiples.
    """
    if isinstance(operator, Projected):
        return (_distinct_rows(operator.base, same) - operator.basis.shape[-1]).clamp_min(0)
    norms = operator.norms
    generator = torch.Generator().manual_seed(operator.d)
    probes = torch.randn(operator.d, 2, generator=generator, dtype=torch.float64).to(norms)
    scale = torch.where(norms > 0, norms, 1.0)
    first, second = (
        (operator.apply_factor_kernel(p[:, None]) / scale).abs() for p in probes.unbind(1)
    )
    keys = torch.where(norms > 0, first, -1.0)
    order = keys.argsort(-1)
    keys = keys.gather(-1, order)
    second = second.gather(-1, order)
    sizes = same * probes.square().sum(0)
    fresh = (keys.diff(dim=-1) > sizes[0]) | (second.diff(dim=-1).abs() > sizes[1])
    present = keys >= 0
    return (fresh & present[..., 1:]).sum(-1) + present[..., 0]
