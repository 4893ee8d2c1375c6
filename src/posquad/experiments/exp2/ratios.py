"""A sentence that a remark and a panel of experiment 2 share."""

from __future__ import annotations

import numpy as np

from posquad.experiments.framework import Measured
from posquad.experiments.words import listed

__all__ = ["frobenius_ratios"]


def frobenius_ratios(measured: Measured) -> str:
    """Describe the Frobenius curvature as a share of the measured rate, for every lambda_r.

    >>> measured = Measured()
    >>> measured.set_coordinates("lambda_r", [1.0])
    >>> measured.set_coordinates("seed", [0])
    >>> measured.add("frobenius", [[1.0]], "lambda_r", "seed")
    >>> measured.add("rate", [[4.0]], "lambda_r", "seed")
    >>> frobenius_ratios(measured)
    '0.25 of the rate at lambda_r = 1'
    """
    ratios = np.median(measured["frobenius"] / measured["rate"], 1)
    return listed("{:.2f} of the rate at lambda_r = {:g}", ratios, measured["lambda_r"])
