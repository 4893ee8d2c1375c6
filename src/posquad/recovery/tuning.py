"""Constants of `recover`: what it may form, how it searches, and what a status requires.

Every field says what it means and where its value comes from: it is *derived* (a formula), *cited*,
*measured* by a benchmark, or a definition or choice. `docs/tuning.md` has the table that
`benchmarks/tuning.py` prints: what happens at half and at double a measured value. A caller can
pass other values as `recover(..., tuning=Tuning(...))`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import torch

from posquad.core.arrays import positive_integer, positive_number, require_instance
from posquad.problems.measurements import RankOne


class Constants:
    """A group of constants: counts and sizes are integers from 0, all others positive numbers."""

    def __post_init__(self) -> None:
        for item in fields(self):  # pyright: ignore[reportArgumentType]
            value = getattr(self, item.name)
            if item.type == "int":
                positive_integer(item.name, value, zero=True)
            else:
                positive_number(item.name, value)


@dataclass(frozen=True)
class Sizes(Constants):
    """Memory and cost: up to which sizes something is formed. They do not change the answer."""

    kernel_samples: int = 1500
    """Samples up to which n x n systems are solved at once. Measured: n^3/3 operations take 0.2 s
    there."""

    path_unknowns: int = 4000
    """Largest min(n, d(d+1)/2) up to which the interior point method solves problems of rank d that
    projected gradient steps leave open. Derived: 128 MB for one matrix of a step."""

    start_unknowns: int = 500
    """Largest k(k+1)/2 for which a k x k matrix is fitted to make the first start; further columns
    get the least size. Derived: rank 31, above any rank that is chosen without being given."""

    sample_rank: int = 1500
    """Largest min(n, d(d+1)/2) for which the rank of the sample matrices is computed. Measured: as
    `kernel_samples`; above, only repeated rows are counted."""

    sample_rank_operations: int = 2**31
    """Largest n min(n, d(d+1)/2)^2 for which it is computed. Measured: about a second."""

    direct_entries: int = 2**22
    """Entries up to which the n x d(d+1)/2 system of a problem is formed. Derived: 32 MB."""

    overhead_unknowns: int = 60
    """Unknowns p up to which the arithmetic of a dense step costs less than its calls. Measured by
    `benchmarks/tuning.py`."""

    overhead_entries: int = 2**17
    """Largest n d r for which that holds. Measured by `benchmarks/tuning.py`."""

    dense_unknowns: int = 250
    """Unknowns p up to which a dense step costs less than reweighting. Measured by
    `benchmarks/tuning.py`."""

    spectrum_unknowns: int = 500
    """Unknowns p up to which the effective spectrum is computed in full. Measured: 0.1 s there."""

    spectrum_operations: int = 2**28
    """Largest n d r p for which it is computed in full; p Hessian products take twice as many
    multiplications. Measured: above, the two ends alone cost a tenth of it."""

    polish_unknowns: int = 1000
    """Unknowns p up to which the answer is refined by dense steps. Derived: p x p takes 8 MB."""

    polish_entries: int = 2**23
    """Entries n d r of a Jacobian up to which the answer is refined by dense steps. Derived: as
    many numbers take 64 MB."""

    others_entries: int = 2**24
    """Entries n d r up to which other solutions are sought. Measured: beyond, a search from one
    more start takes as long as the rest of the call."""

    sign_dimension: int = 12
    """Largest d for which all 2^(d-1) candidates of a second solution of rank one are tried.
    Derived: n 2^(d-1) < 2^18 predictions, since n < d(d+1)/2."""

    exclusion_operations: int = 2**28
    """Largest n^2 d(d+1)/2 for which a dual matrix is sought that excludes a second solution.
    Measured: about 0.1 s."""

    batch_entries: int = 2**18
    """Entries n d r of the problems that are solved together on a CPU. Derived: 2 MB, the cache."""

    batch_responses: int = 2**20
    """Responses of convex problems with one design that are solved together on a CPU. Measured: the
    time per problem is least for 16,000 problems with n = 64."""

    batch_entries_elsewhere: int = 2**27
    """The same on an accelerator. Derived: 1 GB."""

    batch_problems: int = 2**14
    """Most problems that are solved together. Measured on an H200: cuSOLVER fails above 65,535
    matrices, and its workspace takes half a megabyte for each."""

    batch_problems_most: int = 2**16 - 1
    """The same for convex problems with one design on a GPU, if half of its free memory is enough
    for that workspace. Measured on an H200: a million problems of d = 3 take half the time."""

    newton_unknowns: int = 136
    """Largest d(d+1)/2 for which convex problems of a batch are solved together by Newton's method.
    Derived: d = 16, where the matrices of one problem fill a cache of 256 kB."""

    thread_entries: int = 2**20
    """Entries of X of one problem up to which one thread is used. Measured: several are no faster,
    and 7 to 50 times as slow where the cores are busy."""

    host_entries: int = 2**14
    """Entries of X of one problem up to which it is solved on the CPU, wherever X is. Derived: its
    many small steps cost their calls, which are slower on an accelerator."""

    view_entries: int = 2**22
    """Entries of X above which working coordinates are a view instead of a copy. Derived: 32 MB."""

    single_least: int = 2**20
    """Entries of X of one problem from which the first steps and the curvature are computed in
    single precision. A definition: below, a pass over X costs little more than its calls."""

    single_most: int = 2**24
    """Entries of a copy of X in single precision up to which that is done. Derived: 64 MB."""

    part_entries: int = 2**20
    """Entries of X worked on at a time where a temporary copy is needed. Derived: 8 MB."""

    small_operations: int = 2**18
    """Largest n d^2 r^2, the multiplications that form J'J, for which a start is run on NumPy
    arrays. Derived: up to here BLAS uses one thread."""

    def has_single(self, operator: RankOne) -> bool:
        """Whether some products with the inputs of one problem are made in single precision."""
        if operator.batch_shape or operator.dtype != torch.float64:
            return False
        large = operator.n * operator.d >= self.single_least
        return large and operator.single_entries <= self.single_most

    def is_overhead(self, n: int, d: int, rank: int, unknowns: int) -> bool:
        """Whether a dense step costs only its calls."""
        return unknowns <= self.overhead_unknowns and n * d * rank <= self.overhead_entries

    def most_problems(self, device: torch.device) -> int:
        """Convex problems with one design that are solved together at most."""
        if device.type != "cuda":
            return self.batch_problems
        affordable = torch.cuda.mem_get_info(device)[0] // 2**20  # half a megabyte each, of half
        return max(self.batch_problems, min(self.batch_problems_most, affordable))

    def is_small(self, n: int, d: int, rank: int, unknowns: int) -> bool:
        """Whether a dense step costs only its calls even if they are those of NumPy."""
        small = n * (d * rank) ** 2 <= self.small_operations
        return small and self.is_overhead(n, d, rank, unknowns)


@dataclass(frozen=True)
class Schedule(Constants):
    """The search: how many starts, in which rounds, and when a run is given up."""

    ample: float = 1.7
    """Samples per unknown from which a first-order run is the cheaper first attempt. Measured by
    `benchmarks/tuning.py`."""

    plenty: float = 20.0
    """Samples per unknown from which starts hardly ever disagree. Measured by
    `benchmarks/tuning.py`."""

    companions: int = 8
    """Starts tried together with the first one where a step costs only its calls. Measured by
    `benchmarks/tuning.py`."""

    spread: float = 1.0
    """Size of a random perturbation of a start, relative to the start. Measured by
    `benchmarks/tuning.py`."""

    round_starts: int = 24
    """Starts of a round where a step costs only its calls. Measured by `benchmarks/tuning.py`."""

    dense_round_starts: int = 16
    """Starts of a round of perturbed starts in problems of moderate size. Measured by
    `benchmarks/tuning.py`."""

    reweighted_round_starts: int = 4
    """Starts of a round in larger problems. Measured by `benchmarks/tuning.py`."""

    # Reflections near the information limit. Measured on the twelve slowest problems of the row
    # 40-3-1.05p of `benchmarks/recovery_table.py`, 5.7 s in all.

    relaxation: float = 0.6
    """Relaxation of the reflections. Measured: 16 s at half, 35 s at double the value."""

    reflected_rounds: int = 8
    """One round in so many is of other starts. Measured: 10 s at half, 7 s at double the value."""

    disagreeing: int = 4
    """Agreeing starts from which there are no more reflections, because the responses are most
    likely not those of a matrix of the rank. Measured: at half the value 10 s; with 5% noise at
    n = 1.3p, d = 25, rank 3, a call takes 14 s, and 24 s if this does not end them."""

    reflected_starts: int = 16
    """Starts of a round of reflections, up to `Sizes.dense_unknowns`; above, they are
    `reweighted_round_starts`. Measured: 15 s at half, 5 s at double the value."""

    reflected_descents: int = 2
    """Those of least gap from which the solver descends. Measured: 5 s at half, 6 s at double."""

    reflections: int = 1000
    """Reflections of the first round. Measured: 24 s at half, 8 s at double the value."""

    reflection_doublings: int = 2
    """Rounds at which their number is doubled. Measured: one is missed at half, 7 s at double."""

    gap: float = 0.005
    """Relative distance of the two sets at which a round ends, because a start nearly converged.
    Measured: 6 s at half, 5 s at double the value; less is surer at n = p + 1."""

    first_order_steps: int = 600
    """Steps of the first-order method before Gauss-Newton takes over. Measured by
    `benchmarks/recovery_noisy.py`."""

    single_residual: float = 1e-3
    """Relative residual to which the first-order method runs in single precision, where it does;
    from there on Gauss-Newton corrections cost less. Measured by `benchmarks/recovery_table.py`,
    the rows of the condition number."""

    single_weakest: float = 2e-2
    """The same as a share of lambda_r(Q) / lambda_1(Q), if that is less: corrections converge once
    the weakest direction is found. Measured by `benchmarks/recovery_table.py`, the rows of the
    condition number."""

    single_floor: float = 3e-6
    """Residual at which single precision ends in any case. Derived: 25 eps."""

    single_cosine: float = 1e-3
    """Cosine of residual and Jacobian at which that ends if the responses are not reproduced.
    A definition."""

    second_order_steps: int = 60
    """Steps of Gauss-Newton, and of the dense refinement. Measured: quadratic convergence."""

    polish_steps: int = 400
    """First-order steps that refine the best fit of a large problem. Measured by
    `benchmarks/recovery_noisy.py`."""

    patience: int = 10
    """Steps after which a start that is screened must have improved. Measured by
    `benchmarks/tuning.py`."""

    rate: float = 0.5
    """Residual that it must have reached, as a share of that before. Measured by
    `benchmarks/tuning.py`."""

    exclusion_steps: int = 8
    """Steps of the search for a dual matrix that excludes a second solution. Measured by
    `benchmarks/tuning.py`."""

    exclusion_floor: float = 0.6
    """Eigenvalues of that matrix are raised to this share of their mean in every step. Measured by
    `benchmarks/tuning.py`."""

    exclusion_margin: float = 1e-2
    """Ratio of its smallest to its largest eigenvalue at which the search ends. A definition."""

    others_round: int = 24
    """Starts of the first round that looks for a second solution. Measured: where a step costs
    only its calls, they cost little more than one."""

    agreeing_others: int = 44
    """Independent starts that must reproduce the responses, all at the same matrix, before the
    search for another ends. Derived: a second solution that is reached a fifth as often as the
    first is missed with probability (5/6)^44 = 0.03%, one that is reached a tenth as often with
    1.5%."""

    others_rounds: int = 11
    """Most rounds that look for a second solution, of up to four times as many random starts as the
    first. Measured at n = p + 1, where few of them succeed: 936 starts."""

    thinned_rows: int = 2
    """Rows on which a second solution is sought, if there are four times as many: so many times the
    dimension of the matrices of rank 2r. Derived: from one time on, rows in general position leave
    no second solution."""

    least_thinned_rows: int = 1000
    """Fewest rows on which a second solution is sought, if there are four times as many. A choice:
    few enough to cost little, and enough for structures that show in one row of a hundred."""

    reflected_others: int = 64
    """Starts of relaxed reflections that look for a second solution of a small problem, where rows
    in general position would not determine it. Measured on rows on quadrics whose two solutions
    have eigenvalues of different sizes."""

    large_others: int = 20
    """Starts of a round of relaxed reflections where a step costs more than its calls. Derived: the
    first round ends the search if four fifths of them reach a solution."""

    large_others_rounds: int = 8
    """Most rounds of them up to `Sizes.dense_unknowns`; above, there is one. Measured at d = 40,
    rank 3, n = 1.05p with 16 starts: in the worst of 12 problems 5 of them reach a solution, and 1
    at half the value."""

    agreeing_large_others: int = 16
    """Starts of them that must end at the first solution. Derived: a second solution that is
    reached half as often is missed with probability (2/3)^16 = 0.2%."""

    least_large_others: int = 3
    """Fewest of them. A definition: the search for other solutions is not left out."""

    large_others_operations: int = 10**8
    """Multiplications of a reflection of all these starts, above which there are fewer of them.
    Derived: 50 reflections, which are enough from 4p samples, take about a second."""

    closed_others: float = 0.8
    """Share of these starts that must be near a solution before the reflections end. Derived: the
    others may be trapped, and so many are enough."""

    symmetric_others: int = 48
    """Sign flips, and permutations, that are tried where the design has structure. Measured on the
    adversarial families."""

    others_steps: int = 100
    """Steps of each of them. Measured by `benchmarks/tuning.py`."""

    others_patience: int = 8
    """Steps after which each of them must have improved. Measured by `benchmarks/tuning.py`."""

    others_rate: float = 0.7
    """Residual that it must have reached, as a share of that before. Measured by
    `benchmarks/tuning.py`."""

    others_near: float = 0.5
    """Share of the distance within which there is no other solution, at which such a start counts
    as having reached the first solution again. Derived, with a margin."""

    total_starts: int = 200_000
    """Maximum of starts times unknowns. Measured: in larger problems a start is expensive, and
    there are fewer spurious minima."""

    least_starts: int = 20
    """Maximum number of starts of a large problem. Measured by `benchmarks/tuning.py`."""

    most_starts: int = 2000
    """Maximum number of starts of a small problem. Measured at n = p + 1."""

    undetermined_starts: int = 200
    """Maximum number of starts if the samples are too few to identify an answer. A choice: a tenth
    of `most_starts`, because any matrix that reproduces the responses will do."""

    trial_starts: int = 24
    """Starts for a rank that may be wrong, in small problems. A choice: one round, as
    `round_starts`."""

    large_trial_starts: int = 8
    """The same above `large_trial_unknowns`. A choice: two rounds of `reweighted_round_starts`."""

    large_trial_unknowns: int = 150
    """Unknowns from which a start is expensive. A choice: the n^3/3 operations of a dense step at n
    = `ample` p are then 6e6."""

    highest_rank: int = 12
    """Highest rank tried if neither a rank nor a limit is given. A choice, named in the result."""

    unimproved_ranks: int = 2
    """Consecutive ranks without a better score that end the trials. A choice: a single rank may
    fail to improve it by chance."""

    def max_starts(self, unknowns: int) -> int:
        """Return the maximum number of starts of a problem."""
        return max(self.least_starts, min(self.most_starts, self.total_starts // unknowns))

    def starts_per_trial(self, unknowns: int) -> int:
        """Return the number of starts for a rank that may be wrong."""
        large = unknowns > self.large_trial_unknowns
        return self.large_trial_starts if large else self.trial_starts


@dataclass(frozen=True)
class Acceptance(Constants):
    """What a status requires. These values are part of its meaning (`docs/statuses.md`)."""

    agreement: float = 1e-3
    """Starts agree if their residuals differ by at most this share. Measured: the gap between the
    best fit of noisy responses and other minima is larger."""

    agreeing_starts: float = 12.0
    """Starts that must agree on the best fit: this over (n/p - 1)^2. Measured near the information
    limit, where spurious minima are common and found repeatedly."""

    agreeing_cheap_starts: int = 9
    """Fewest such starts where a step costs only its calls, below `Schedule.plenty` samples per
    unknown: the first one and its companions. Measured on quadratic polynomial features at n = 3p:
    with 2 starts, 2 of 4 seeds end at a poor minimum of one problem in forty, with 6 starts one,
    with 9 none."""

    sure: float = 1e-6
    """Largest estimated relative error of an answer that is called recovered. A definition."""

    loose: float = 1e-3
    """The same for the loosest tolerance. A definition."""

    flat: float = 1e-13
    """Smallest curvature, relative to the largest, that is not rounding. Derived: 500 eps."""

    linear: float = 20.0
    """Factor by which the first-order term of the error must exceed the second. A definition."""

    curvature_accuracy: float = 0.1
    """Relative accuracy of the curvature of large problems. A definition."""

    negligible: float = 1e-7
    """Eigenvalues below this share of the largest may be zero. Derived: sqrt(eps) and a margin."""

    nearly: float = 1e-3
    """Residuals above this share of the tolerance reproduce, but not exactly. A definition."""

    gain: float = 1e-2
    """Ratio of residuals required to accept a higher rank. A definition."""

    same_row: float = 1e-14
    """Directions closer than this are one sample. Derived: 50 eps."""

    apart: float = 1e-5
    """Least relative distance of two matrices that count as different solutions. A definition."""

    dual: float = 1e-6
    """Least eigenvalue of the dual matrix that excludes a second solution, relative to the sum of
    the sizes of its terms. Derived: far above the rounding error n eps of that sum."""

    isotropic: float = 4.0
    """Spread of the covariance that is not whitened, over that of isotropic samples. A choice:
    whitening what needs none costs a pass over X."""

    units: float = 1000.0
    """Ratio of column sizes from which columns are in different units. A definition."""

    uneven: float = 30.0
    """Ratio of lengths from which samples are normalized. A choice: squared errors then weigh
    samples by up to 30^4 = 8e5."""


@dataclass(frozen=True)
class Tuning:
    """All constants of one call of `recover`."""

    sizes: Sizes = field(default_factory=Sizes)
    schedule: Schedule = field(default_factory=Schedule)
    acceptance: Acceptance = field(default_factory=Acceptance)

    def __post_init__(self) -> None:
        for name, kind in (("sizes", Sizes), ("schedule", Schedule), ("acceptance", Acceptance)):
            require_instance(
                name, getattr(self, name), kind, f"posquad.recovery.tuning.{kind.__name__}"
            )


DEFAULT = Tuning()
