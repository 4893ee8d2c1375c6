"""How long and from where `recover` searches: a group of `posquad.recovery.tuning`."""

from __future__ import annotations

from dataclasses import dataclass

from posquad.recovery.constants import Constants


@dataclass(frozen=True)
class Schedule(Constants):
    """The search: how many starts, in which rounds, and when a run is given up.

    Fields that begin or end with `others` belong to the search for a second solution.
    """

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
    """Starts of a round where dense steps are expensive. Measured by `benchmarks/tuning.py`."""

    # Reflections near the information limit. Measured on the twelve slowest problems of the row
    # 40-3-1.05p of `benchmarks/recovery_table.py`, 5.7 s in all.

    relaxation: float = 0.6
    """Relaxation of the reflections. Measured: 16 s at half, 35 s at double the value."""

    reflected_rounds: int = 8
    """Number of rounds among which one has perturbed or reweighted starts in place of reflected
    ones. Measured: 10 s at half, 7 s at double the value."""

    cheap_rounds: int = 4
    """The same where a step costs only its calls, and most problems are solved by descents alone.
    Measured at rank one."""

    cheap_reflected: int = 24
    """Round before which rounds are reflected there, and the last one that is not hard. Measured at
    (20, 2) and n = p + 1: 46 of 48 problems are solved with as many."""

    hard: float = 1.4
    """Samples per unknown below which rounds are reflected to the end at rank one. Measured at d =
    40: from there on, three rounds are enough."""

    hard_ranks: float = 1.04
    """The same at other ranks. Measured at (20, 2) and n = p + 1, where all of 48 problems are then
    solved."""

    agreeing_unreflected: int = 4
    """Starts that agree on the least residual, from which no further round is reflected: the
    responses are then most likely not those of a matrix of the rank. Measured: at half the value 10
    s; with 5% noise at n = 1.3p, d = 25, rank 3, a call takes 14 s, and 24 s if the reflections go
    on."""

    agreeing_share_unreflected: float = 0.05
    """The same as a share of the starts, where a step costs only its calls. Measured at rank one,
    d = 40 and n = 1.3p: up to 2% of the starts agree on a minimum that is not the answer."""

    reflected_starts: int = 16
    """Starts of a round of reflections, up to `Sizes.dense_unknowns`; above, they are
    `reweighted_round_starts`. Measured: 15 s at half, 5 s at double the value."""

    reflected_descents: int = 2
    """Ends of a round of reflections, those of least gap, from which the solver descends. Measured:
    5 s at half, 6 s at double the value."""

    reflections: int = 1000
    """Reflections of each start in the first round. Measured: 24 s at half, 8 s at double the
    value."""

    reflection_doublings: int = 2
    """Rounds after the first, each of which doubles the number of reflections of a start. Measured:
    one problem is not recovered at half the value; 7 s at double the value."""

    gap: float = 0.005
    """Relative distance of the two sets of predictions at which a round of reflections ends,
    because a start has nearly converged. Measured: 6 s at half, 5 s at double the value; less is
    surer at n = p + 1."""

    first_order_steps: int = 600
    """Steps of the first-order method before Gauss-Newton takes over. Measured by
    `benchmarks/recovery_noisy.py`."""

    single_residual: float = 1e-3
    """Relative residual to which the first-order method runs in single precision, where X is large
    (`Sizes.single_least`); from there on Gauss-Newton corrections cost less. Measured by
    `benchmarks/recovery_table.py`, the rows of the condition number."""

    single_weakest: float = 2e-2
    """Relative residual to which the first-order method runs in single precision, as a share of
    lambda_r(Q) / lambda_1(Q), if that is less than `single_residual`: corrections converge once the
    weakest direction is found. Measured by `benchmarks/recovery_table.py`, the rows of the
    condition number."""

    single_floor: float = 3e-6
    """Relative residual at which the first-order method in single precision ends in any case.
    Derived: 25 eps of single precision, a little above the 20 units of rounding at which nothing is
    left to correct (`posquad.recovery.solvers.mixed.LEVEL`)."""

    single_cosine: float = 1e-3
    """Cosine of residual and Jacobian at which the first-order method in single precision ends if
    the responses are not reproduced. A choice: double precision goes on from there, and 1e-3 is far
    above the rounding of a cosine in single precision."""

    second_order_steps: int = 60
    """Most steps of Gauss-Newton, and of the dense refinement. A choice: they converge
    quadratically, so that far fewer are usual."""

    polish_steps: int = 400
    """First-order steps that refine the best fit of a large problem. Measured by
    `benchmarks/recovery_noisy.py`."""

    patience: int = 10
    """Steps after which a start that is screened must have improved. Measured by
    `benchmarks/tuning.py`."""

    rate: float = 0.5
    """Residual that a start must have reached after `patience` steps, as a share of the residual
    before them. Measured by `benchmarks/tuning.py`."""

    exclusion_steps: int = 8
    """Steps of the search for a dual matrix that excludes a second solution. Measured by
    `benchmarks/tuning.py`."""

    exclusion_floor: float = 0.6
    """Share of their mean to which the eigenvalues of the dual matrix are raised in every step of
    the search for it. Measured by `benchmarks/tuning.py`."""

    exclusion_margin: float = 1e-2
    """Ratio of the smallest to the largest eigenvalue of the dual matrix at which the search for it
    ends. A choice: rounding is far below, and no more is asserted than `Acceptance.dual`."""

    others_round: int = 24
    """Starts of the first round that looks for a second solution. Measured: where a step costs only
    its calls, they cost little more than one."""

    agreeing_others: int = 44
    """Independent starts that must reproduce the responses, all at the same matrix, before the
    search for another ends. Derived: a second solution that is reached a fifth as often as the
    first is missed with probability (5/6)^44 = 0.03%, one that is reached a tenth as often with
    1.5%."""

    others_rounds: int = 11
    """Most rounds that look for a second solution; later ones have up to four times as many random
    starts as the first. Measured at n = p + 1, where few starts reach a solution: there are 936
    starts in all."""

    thinned_rows: int = 2
    """Rows on which a second solution is sought, if there are four times as many: so many times the
    dimension of the matrices of rank 2r. Derived: from one time on, rows in general position leave
    no second solution."""

    least_thinned_rows: int = 1000
    """Fewest rows on which a second solution is sought, if there are four times as many. A choice:
    few enough to cost little, and enough for structures that show in one row of a hundred."""

    reflected_others: int = 64
    """Starts of relaxed reflections that look for a second solution of a small problem. Measured on
    rows on quadrics whose two solutions have eigenvalues of different sizes."""

    large_others: int = 20
    """Random starts of the first round for other measurements than rows, where a step costs more
    than its calls. A choice: later rounds have up to four times as many."""

    large_others_rounds: int = 8
    """Most rounds of these starts. A choice: few starts reach a solution at n = p + 1."""

    least_large_others: int = 3
    """Fewest starts of a round of relaxed reflections, however large the problem is. A choice: the
    search for a second solution is not left out. Measured on one thread: 1.4 s beside 0.6 s for the
    rest of the call at n = 9000, d = 500, rank 5, and 22 s beside 42 s at n = 12,000, d = 1000,
    rank 10."""

    large_others_operations: int = 10**8
    """Most multiplications of one reflection of all starts of a round; larger problems have fewer
    than `large_others` starts. Derived: 50 reflections, which are enough from 4p samples, take
    about a second."""

    closed_others: float = 0.8
    """Share of the starts of a round of relaxed reflections that must be near a solution before the
    round ends. A choice: the other starts may be trapped."""

    symmetric_others: int = 48
    """Sign flips, and as many permutations, of the first solution that are tried as starts where
    the design has structure. Measured on the adversarial families."""

    others_steps: int = 100
    """Most steps of a descent that looks for a second solution, three times as many if they are of
    first order. Measured by `benchmarks/tuning.py`."""

    others_patience: int = 8
    """Steps after which a descent that looks for a second solution must have improved. Measured by
    `benchmarks/tuning.py`."""

    others_rate: float = 0.7
    """Residual that such a descent must have reached after `others_patience` steps, as a share of
    the residual before them. Measured by `benchmarks/tuning.py`."""

    others_near: float = 0.5
    """Share of the distance from the first solution within which there is no other one, at which a
    descent counts as having reached the first solution again. Derived: the distance holds for a
    share of 0.9 (`posquad.recovery.diagnose`), and one half leaves a margin for its estimate."""

    total_starts: int = 200_000
    """Maximum of starts times unknowns. Measured: in larger problems a start is expensive, and
    there are fewer spurious minima."""

    least_starts: int = 20
    """Maximum number of starts of a large problem, of more than 10,000 unknowns. A choice: five
    rounds of `reweighted_round_starts`."""

    most_starts: int = 2000
    """Maximum number of starts of a small problem. Measured at n = p + 1."""

    undetermined_starts: int = 200
    """Maximum number of starts if the samples are too few to identify an answer. A choice: a tenth
    of `most_starts`, because any matrix that reproduces the responses will do."""

    trial_starts: int = 24
    """Starts for a rank that may be wrong, in small problems. A choice: one round, as
    `round_starts`."""

    large_trial_starts: int = 8
    """Starts for a rank that may be wrong, in problems of more than `large_trial_unknowns`
    unknowns. A choice: two rounds of `reweighted_round_starts`."""

    large_trial_unknowns: int = 150
    """Unknowns from which a start for a rank that may be wrong is expensive. A choice: the n^3/3
    operations of a dense step at n = `ample` p are then 6e6."""

    estimated_columns: int = 12
    """Columns of the estimate with bounded weights that are computed once for all lower ranks. A
    choice: higher ranks compute their own."""

    few_ranks: int = 3
    """Rank shown by the spectrum of the linear fit up to which ranks are tried from one on. A
    choice: above, the trials begin at that rank."""

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
