"""Checks of the options of a regressor and of the arguments of its `fit`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight

from posquad.core.arguments import require_boolean
from posquad.core.arrays import positive_integer
from posquad.core.errors import DomainError
from posquad.recovery import Poisson, chosen_loss


def require_choices(options: Any, d: int) -> None:
    """Refuse options, the attributes of a regressor, that do not fit d inputs."""
    if options.criterion not in ("bic", "cv"):
        raise DomainError("criterion", expected="'bic' or 'cv'", got=repr(options.criterion))
    require_boolean(
        fit_intercept=options.fit_intercept, linear=options.linear, certify=options.certify
    )
    errors = options.standard_errors
    if errors not in (True, False, "auto"):
        raise DomainError("standard_errors", expected="True, False or 'auto'", got=repr(errors))
    loss = chosen_loss(options.loss, options.scale)
    if isinstance(loss, Poisson) and (options.fit_intercept or options.linear):
        expected = (
            "another loss than 'poisson' for a constant or linear terms, which can make means "
        )
        raise DomainError("loss", expected=expected + "negative", got="'poisson'")
    if options.rank is not None and positive_integer("rank", options.rank) > d:
        raise DomainError("rank", expected=f"at most d = {d}", got=str(options.rank))
    if options.max_rank is not None:
        positive_integer("max_rank", options.max_rank)


def require_least_squares(options: Any, data: str) -> None:
    """Refuse another loss for data of which only sums are kept."""
    if options.loss != "least-squares":
        raise DomainError("loss", expected=f"'least-squares' for {data}", got=repr(options.loss))


def checked_names(names: Sequence[str], d: int) -> np.ndarray:
    """Return the names of d inputs as an array of objects, or refuse them."""
    given = np.array(names, dtype=object)
    strings = given.ndim == 1 and all(isinstance(name, str) for name in given)
    if not strings or len(given) != d or len(set(given)) != len(given):
        expected = f"{d} different strings, one per column"
        raise DomainError("feature_names", expected=expected, got=f"{list(names)[:8]}")
    return given


def checked_weights(sample_weight: Any, X: np.ndarray) -> np.ndarray:
    """Return the weights of the rows of X, `[n]`, or refuse them."""
    weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    if not weights.any():
        expected = "at least one positive weight"
        raise DomainError("sample_weight", expected=expected, got="only zeros")
    return weights


def integer_seed(random_state: Any) -> int:
    """Return the seed of the restarts; an integer is that of `posquad.recover(seed=...)`."""
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def real_responses(y: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return responses in double or single precision; integers have that of the inputs."""
    if y.dtype == np.float32:
        return y
    return y.astype(dtype if y.dtype.kind in "biu" else np.float64, copy=False)
