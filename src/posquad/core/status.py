"""How a computation ended. The value of each member is a sentence for the user."""

from __future__ import annotations

from enum import Enum

import numpy as np
from torch import Tensor

__all__ = ["Status"]


class Status(Enum):
    """Outcomes of a computation; `Status.X.value` says the cause and the remedy in words."""

    RUNNING = "still running"
    TIME_REACHED = "the flow was integrated to the final time"
    LOSS_REACHED = "the loss fell to the requested tolerance"
    GRADIENT_REACHED = "the gradient norm fell to the requested tolerance"
    STOPPED = "the user's stopping rule was met"
    STEPS_EXHAUSTED = (
        "the step limit was reached before any other rule stopped the run; "
        "raise max_steps, or loosen the tolerance"
    )
    DIVERGED = (
        "the iterates diverged (the loss is not finite, or far above its first value); "
        "take a smaller step: gradient descent is locally stable below 2 / lambda_max^eff, and a "
        "fixed-step flow below about 2.8 / lambda_max^eff"
    )
    RANK_LOST = (
        "the factor lost full column rank to working precision; take a smaller step "
        "(2 step ||G|| < 1 is enough) or a smaller rank"
    )
    STEP_UNDERFLOW = (
        "the integrator's step fell below rounding; the flow is too stiff for the "
        "requested tolerance: loosen rtol or use a fixed step"
    )
    OUT_OF_RANGE = (
        "the factor became so small that its gradient underflows, so the run cannot go on; rescale "
        "the data, or end the run earlier"
    )

    CONVERGED = (
        "everything requested is within its tolerance: eigenvalues by their residuals and, if not "
        "all were computed, by a search from an independent start that found no more extreme one; "
        "projections by a bound on the error of every coordinate"
    )
    AT_ROUNDING = (
        "converged as far as rounding allows: some values are so small compared with the largest "
        "that their residual is within its rounding, but not within the tolerance relative to "
        "themselves"
    )
    NOT_CONVERGED = (
        "the iteration ended before the requested accuracy was reached (unknown eigenvalues are "
        "NaN); raise the limit on steps or products, loosen the tolerance, or use a dense method"
    )

    RECOVERED = (
        "the answer reproduces every response within the tolerance, there are more independent "
        "samples than unknowns, no direction is left free, and no other solution was found from "
        "further starts; only a certificate proves that there is none"
    )
    CERTIFIED = (
        "recovered and certified: the answer reproduces every response to rounding, and it is "
        "proved, with every rounding error bounded, that no other positive semidefinite matrix of "
        "any rank has its responses; the proof is attached as the certificate"
    )
    NOT_IDENTIFIED = (
        "the answer reproduces the responses, but other predictors of this rank do so too, or may "
        "do so within the tolerance: there are not more independent samples than the p unknowns of "
        "the rank, or they leave a direction free or nearly free, or another answer was found, or "
        "there are exactly as many samples as unknowns, so that nothing checks the answer; collect "
        "at least p + 1 independent samples (inputs without structure, of similar size), or ask "
        "for a smaller rank"
    )
    UNDETERMINED = (
        "the inputs do not span the space, so nothing is known about the predictor outside their "
        "span, where the answer is set to zero; collect inputs in the missing directions, or "
        "reduce the dimension"
    )
    BEST_FIT = (
        "no predictor of this rank that reproduces the responses was found; the answer is the best "
        "fit that was found, a stationary point of the loss: noise explains that; without noise, "
        "look for negative responses, outliers or (below rank d) too small a rank, and in any case "
        "check the residual"
    )
    NO_MINIMUM = (
        "the squared error has no minimum: it falls as the quadratic form grows without bound in a "
        "direction that no measurement sees, or that other terms cancel; the answer is far out, "
        "with nearly the least error, and its coefficients have no meaning: leave out columns that "
        "are constant or take two values, or fit linear terms, or a smaller rank, or add "
        "measurements"
    )
    STALLED = (
        "the search did not settle on an answer: too few starts ended at the same best fit, or the "
        "iteration did not converge, or rounding hides the error of the fit; allow more starts or "
        "steps, add samples, scale the columns, or check the rank and the data for outliers"
    )
    INTERRUPTED = (
        "the time limit, the step limit or the user ended the search before the outcome was "
        "decided; the answer is the best so far: raise the limits, or start again from it"
    )

    @property
    def code(self) -> int:
        """Position in the enumeration, used in tensors of outcomes."""
        return _CODES[self]


_CODES = {status: position for position, status in enumerate(Status)}
_MEMBERS = np.array(list(Status), dtype=object)


def from_codes(codes: Tensor | np.ndarray) -> Status | list:
    """A `Status` for a scalar code, nested lists of them for a batch."""
    values = codes if isinstance(codes, np.ndarray) else codes.cpu().numpy()
    return _MEMBERS[values].tolist() if values.ndim else _MEMBERS[int(values)]
