"""What a status of `recover` requires, as numbers.

Every field says what it means and where its value comes from: it is *derived* (a formula), *cited*,
*measured*, or a definition or choice. `recover(..., acceptance=Acceptance(...))` takes others.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from posquad.core.arrays import positive_integer, positive_number


@dataclass(frozen=True)
class Acceptance:
    """What a status requires. These values are part of its meaning (`docs/statuses.md`).

    Counts are integers from 0, and all others positive numbers.

    >>> Acceptance(sure=1e-8).sure
    1e-08
    """

    # BEST_FIT: starts that agree on the least residual.

    agreement: float = 1e-3
    """Starts agree if their residuals differ by at most this share. Measured: the gap between the
    best fit of noisy responses and other minima is larger."""

    agreeing_starts: float = 12.0
    """Starts that must agree on the best fit: this over (n/p - 1)^2. Measured near the information
    limit, where spurious minima are common and found repeatedly."""

    agreeing_cheap_starts: int = 9
    """Fewest starts that must agree on the best fit where a step costs only its calls, below
    `plenty` samples per unknown: the first start and its companions. Measured on quadratic
    polynomial features at n = 3p: with 2 starts, 2 of 4 seeds end at a poor minimum of one problem
    in forty, with 6 starts one, with 9 none."""

    plenty: float = 20.0
    """Samples per unknown from which starts hardly ever disagree, so that `least_agreeing` of them
    are enough. Measured on 376 small problems: no word differs at 10 or 40."""

    least_excess: float = 0.05
    """Least value of n/p - 1 in the rule of `agreeing_starts`, which also holds for n <= p. A
    choice: it asks for 4,800 agreeing starts, more than any call makes by default, so that
    `agreeing_share` decides instead."""

    agreeing_share: float = 0.75
    """Share of the permitted starts that is enough if the rule asks for more. A choice: three
    quarters, so that a search that ends by its number of starts can still say BEST_FIT."""

    least_agreeing: int = 2
    """Fewest starts that must agree on the best fit in any case. A definition: one start agrees
    with itself, so that two are the fewest that can agree."""

    stationary: float = 1e-4
    """Largest relative offset of a best fit: the cosine of the angle between its errors and the
    tangent space, in the weights of the user. A definition: a Gauss-Newton step would then lower
    the squared error by less than 1e-8 of it, far less than starts that agree may differ."""

    stationary_rounding: float = 10.0
    """The same as a multiple of the rounding of U, relative to the errors, where that exceeds
    `stationary`. A choice: numbers that are rounded cannot be closer to a stationary point."""

    stationary_most: float = 1e-3
    """The same in any case. A definition: the standard of Bates and Watts (Technometrics 23,
    1981), at which an answer is within a thousandth of its standard errors."""

    # RECOVERED: how accurate the answer is, and whether it is locally unique.

    sure: float = 1e-6
    """Largest estimated relative error of an answer that is called recovered. A definition."""

    sure_tolerances: float = 10.0
    """Largest estimated relative error of such an answer as a multiple of the tolerance, where that
    exceeds `sure`. A choice: a tolerance that the caller loosens permits larger errors, and those
    of Q exceed those of the responses by the condition of the problem."""

    loose: float = 1e-3
    """Largest estimated relative error of such an answer, whatever the tolerance is. A
    definition."""

    hidden_errors: float = 1000.0
    """Largest error of a single response, over the tolerance and sqrt(n), of weighted samples that
    count as reproduced: beyond it, a small weight hides a sample that is missed. Derived: errors
    whose root mean square is the tolerance are at most sqrt(n) times as large, and relative to
    responses of rows of uneven lengths up to 30^2 times."""

    independent_errors: float = 10.0
    """Samples are independent checks if they differ by this multiple of the ratio of the residual
    to the largest error that is allowed. A choice: a direction of the sample matrices whose
    strength is just the ratio would turn the residual into that error; ten keeps away from it."""

    flat: float = 1e-13
    """Smallest curvature, relative to the largest, that is not rounding. Derived: eigenvalues of a
    p x p matrix are rounded by about p eps, which is 1.1e-13 at p = 500, the largest p up to which
    the whole spectrum is computed."""

    clear_curvature: float = 1000.0
    """Multiple of its rounding, in population coordinates, above which the smallest curvature is
    clearly not that of a kernel direction. Below, `posquad.curvature.effective_spectrum` decides. A
    choice: the rounding is already an upper bound, and the curvature then has three digits."""

    linear: float = 20.0
    """Factor by which the first-order term of the error must exceed the second-order term. A
    definition: the estimate of the error is then good to 5%."""

    curvature_accuracy: float = 0.1
    """Relative accuracy of the curvature of large problems. A definition."""

    full_rank: float = 1e-7
    """Smallest singular value of a factor of full rank, relative to the largest. Derived: the ratio
    of the eigenvalues of Q is its square, 1e-14, which is about 50 eps."""

    full_rank_rounding: float = 10.0
    """Smallest singular value of a factor of full rank, relative to the largest, as a multiple of d
    eps, where that exceeds `full_rank`. Derived: singular values are rounded by about d eps, as in
    `posquad.core.linalg.eigenvalue_rounding`; it decides in single precision only."""

    negligible: float = 1e-7
    """Eigenvalues of Q below this share of the largest may be zero. Derived: a superfluous column
    of size s changes the residual by s^2 and its square by s^4, which a descent cannot tell from
    the rounding eps if s^2 <= sqrt(eps) = 1.5e-8; there is a margin of 7."""

    # RECOVERED: the rank, the samples, and whether there is another solution.

    nearly: float = 1e-3
    """Residuals above this share of the tolerance reproduce the responses, but not exactly, so that
    a higher rank is tried. A definition."""

    gain: float = 1e-2
    """Ratio of residuals required to accept a higher rank. A definition."""

    same_row: float = 1e-14
    """Rows whose squared cosines with a random direction p differ by less than this multiple of
    ||p||^2 are one sample. Derived: these numbers are rounded by about 2 eps ||p||^2, and 1e-14 =
    45 eps leaves a margin of 20."""

    apart: float = 1e-5
    """Least relative distance of two matrices that count as different solutions. A definition."""

    apart_errors: float = 100.0
    """Least distance of two different solutions as a multiple of the estimated error of the first,
    where that exceeds `apart`. A choice: two digits beyond an estimate of first order, so that one
    solution that was found twice is not called two."""

    others_near: float = 0.5
    """Share of the distance from the first solution within which there is no other one, at which a
    descent counts as having reached the first solution again. Derived: the distance holds for a
    share of 0.9 (`posquad.recovery.diagnose`), and one half leaves a margin for its estimate."""

    agreeing_others: int = 44
    """Independent starts that must reproduce the responses, all at the same matrix, before the
    search for another ends. Derived: a second solution that is reached a fifth as often as the
    first is missed with probability (5/6)^44 = 0.03%, one that is reached a tenth as often with
    1.5%."""

    nongeneric_others: int = 3
    """Factor on `agreeing_others` where a design is nongeneric, or responses do not bound the size
    of a solution. A choice: it makes second solutions likely, or hard to reach, and 132 agreeing
    starts miss one that is reached a twentieth as often with probability (20/21)^132 = 0.2%."""

    least_agreeing_others: int = 11
    """Starts that must agree where all have been tried, of problems that no longer have their
    samples. A choice: one of each of the rounds of `others_rounds`."""

    others_rounds: int = 11
    """Most rounds that look for a second solution; later ones have up to four times as many random
    starts as the first. Measured at n = p + 1, where few starts reach a solution: there are 936
    starts in all."""

    large_others_rounds: int = 8
    """The same for other measurements than rows, and for sums over samples, where a step costs more
    than its calls. A choice: few starts reach a solution at n = p + 1."""

    least_large_others: int = 3
    """Fewest starts of a round of relaxed reflections, however large the problem is. A choice: the
    search for a second solution is not left out. Measured on one thread: 1.4 s beside 0.6 s for the
    rest of the call at n = 9000, d = 500, rank 5, and 22 s beside 42 s at n = 12,000, d = 1000,
    rank 10."""

    closed_others: float = 0.8
    """Share of the starts of a round of relaxed reflections that must be near a solution before the
    round ends. A choice: the other starts may be trapped."""

    thinned_rows: int = 2
    """Rows on which a second solution is sought, if there are four times as many: so many times the
    dimension of the matrices of rank 2r. Derived: from one time on, rows in general position leave
    no second solution."""

    least_thinned_rows: int = 1000
    """Fewest rows on which a second solution is sought, if there are four times as many. A choice:
    few enough to cost little, and enough for structures that show in one row of a hundred."""

    dual: float = 1e-6
    """Least eigenvalue of the dual matrix that excludes a second solution, relative to the sum of
    the sizes of its terms. Derived: far above the rounding error n eps of that sum."""

    # Rows that are not in memory, whose sums of moments may have lost digits.

    agreeing_free: int = 24
    """Starts that must agree on the best fit from moments where the samples leave symmetric
    matrices free, so that the loss has more minima; elsewhere they are `least_agreeing`. Measured
    on 5000 rows on quadrics: of 48 exact problems of rank 1 to 3, 23 end at a poor minimum if 2
    starts must agree; of the 8 at d = 25, 3 do with 8 starts, 2 with 16 and none with 24."""

    known_loss: float = 1e-4
    """Rounding of a loss that is computed from moments, relative to it, up to which the loss is
    known. A definition: the residual is then known to 5e-5, far below `agreement`."""

    hidden_residual: float = 1e-13
    """Relative residual up to which the errors of a fit from moments are rounding if the samples do
    not determine it. A choice: ten times the rounding of responses that
    `posquad.recovery.streams.compressed` allows."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if item.type == "int":
                positive_integer(item.name, value, zero=True)
            else:
                positive_number(item.name, value)


DEFAULT = Acceptance()
