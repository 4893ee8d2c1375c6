"""Published numbers as points of a figure, read from the claims."""

from __future__ import annotations

import numpy as np

from posquad.experiments.claims import claims, number

__all__ = ["published_points", "published_value"]


def published_points(
    experiment: str, measure: str, dimension: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the published values of a quantity along a dimension: coordinates and values.

    >>> [values.tolist() for values in published_points("exp4", "oracle_step", "kappa")]
    [[1.0, 2.0, 4.0, 8.0], [0.00054, 0.000281, 0.000145, 7.41e-05]]
    """
    found = [
        (claim.where[dimension], number(claim.published))
        for claim in claims()
        if (claim.experiment, claim.measure) == (experiment, measure)
        and claim.source == "paper"
        and set(claim.where) == {dimension}
        and isinstance(claim.published, str)
    ]
    return np.array([x for x, _ in found], dtype=float), np.array([y for _, y in found])


def published_value(identity: str) -> np.ndarray:
    """Return the published number or numbers of one claim.

    >>> published_value("exp6.entropic").tolist()
    [0.35, 0.35, 0.3, 0.0]
    """
    (claim,) = [claim for claim in claims() if claim.id == identity]
    return np.asarray(number(claim.published))
