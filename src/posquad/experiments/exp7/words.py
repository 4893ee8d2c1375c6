"""What experiment 7 says about the first-order law, made from the measured numbers."""

from __future__ import annotations

import numpy as np

from posquad.experiments.framework import Measured

__all__ = ["law_remarks"]


def law_remarks(measured: Measured) -> list[str]:
    """Describe the departures near dial 0 and the growth of R.

    >>> measured = Measured()
    >>> measured.set_coordinates("start", [0.1])
    >>> for name, values in (("law_flows_converged", [True]), ("greedy_rank", [1])):
    ...     measured.add(name, values, "start")
    >>> measured.add("R_norm", [2.0], "start")
    >>> law_remarks(measured)
    []
    """
    remarks = []
    converged = measured["law_flows_converged"]
    if not converged.all():
        remarks.append(
            f"{int((~converged).sum())} of {converged.size} flows near dial 0 did not reach their "
            "residual tolerance; their last points are used."
        )
    ranks = measured["greedy_rank"]
    if (ranks == 0).any():
        remarks.append(
            f"Greedy low-rank learning did not end in {int((ranks == 0).sum())} of {ranks.size} "
            "problems; they are left out of its share."
        )
    if "law_error_order" in measured.quantities:
        low, high = _range(measured["law_error_order"])
        gap_low, gap_high = _range(measured["von_neumann_gap_order"])
        remarks.append(
            f"Between the two smallest dials the error of the first-order law has order {low:.2f} "
            f"to {high:.2f} in the dial (theorem: 2), and the distance to the von Neumann "
            f"projection has order {gap_low:.2f} to {gap_high:.2f} (theorem: 1, unless the gap "
            "is zero to first order)."
        )
    norms, starts = measured["R_norm"], measured["start"]
    largest, smallest = np.argmax(starts), np.argmin(starts)
    if largest != smallest:
        remarks.append(
            rf"$\|R\|$ is between {norms[largest].min():.2g} and {norms[largest].max():.2g} at the "
            f"start {starts[largest]:g} and between {norms[smallest].min():.2g} and "
            f"{norms[smallest].max():.2g} at {starts[smallest]:g}. The exponent that the order of "
            "awakening predicts is the limit for vanishing starts; the interval of a fit is that "
            "of a straight line through the computed points and does not contain the bend that "
            "remains at these starts."
        )
    return remarks


def _range(values: np.ndarray) -> tuple[float, float]:
    return float(values.min()), float(values.max())
