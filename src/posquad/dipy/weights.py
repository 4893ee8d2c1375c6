"""The weights of DIPY's fit methods: two-step, and robust ones after Geman and McClure.

All of them come from fits without the constraint, so that they are DIPY's weights; positivity is a
property of the last fit. A signal that is not usable has the weight zero throughout.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posquad.dipy.design import COLUMNS, TensorDesign
from posquad.dipy.weighted import WeightedFit, fit_equal, fit_weighted, leverages

LEAST_SIGNAL = 1e-4  # DIPY's MIN_POSITIVE_SIGNAL, with which TensorModel replaces lower signals
_CUTOFF = 3.0  # residuals beyond this many standard deviations are outliers
_FULL_LEVERAGE = 0.99  # what DIPY puts in place of a leverage of one


def first_fit(design: TensorDesign, logs: Tensor, usable: Tensor) -> WeightedFit:
    """Fit with equal weights; where signals are missing, with those that are usable."""
    if bool(usable.all()):
        return fit_equal(design, logs)
    return fit_weighted(design, logs, usable.to(logs))


def two_step_weights(design: TensorDesign, logs: Tensor, usable: Tensor) -> Tensor:
    """Squared signals predicted by the first fit, `[B, g]` (Chung, Lu and Henry 2006)."""
    fit = first_fit(design, logs, usable)
    return (2 * fit.predicted(design, fit.c)).exp() * usable


def robust_weights(
    design: TensorDesign, signals: Tensor, logs: Tensor, usable: Tensor, rounds: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Weights of the last fit of DIPY's robust method, which signals are kept, and the cutoff.

    The first two are `[B, g]`. The cutoff `[B]` is the largest residual of a kept signal without
    leverage; it is infinite in a voxel that is fitted exactly, where no signal is an outlier.

    Round 1 is the two-step fit, rounds 2 to `rounds - 2` use the weights of Geman and McClure,
    round `rounds - 1` is an equally weighted fit without outliers and the last one a weighted fit
    without them (Collier et al. 2015). The scale is 1.4826 times the median absolute deviation of
    the residuals of the signals.
    """
    weights = two_step_weights(design, logs, usable)
    kept = usable
    for _ in range(rounds - 3):
        fit = fit_weighted(design, logs, weights)
        predicted = _predicted(design, fit)
        off = logs - predicted.log()
        C = _scale(predicted * off, usable)
        square = (C / predicted).square()
        robust = square / (square + off.square()).square() * usable
        # A voxel that is fitted exactly has no scale and no outliers.
        weights = torch.where(C > 0, robust, weights)
    fit = fit_weighted(design, logs, weights)
    predicted = _predicted(design, fit)
    C = _scale(predicted * (logs - predicted.log()), usable)
    h = leverages(design, fit, weights)
    h = torch.where(torch.isclose(h, torch.ones_like(h)), _FULL_LEVERAGE, h)
    cutoff = torch.where(C > 0, _CUTOFF * C, torch.inf)
    outlier = (signals - predicted).abs() > cutoff * (1 - h).clamp_min(0.0).sqrt()
    kept = usable & ~outlier
    fit = fit_weighted(design, logs, kept.to(logs))
    return _predicted(design, fit).square() * kept, kept, cutoff[:, 0]


def _predicted(design: TensorDesign, fit: WeightedFit) -> Tensor:
    return fit.predicted(design, fit.c).exp().clamp_min(LEAST_SIGNAL)


def _scale(residuals: Tensor, usable: Tensor) -> Tensor:
    """Robust standard deviation of the usable residuals of each voxel, `[B, 1]`."""
    if bool(usable.all()):
        centre = _median(residuals)
        deviation = _median((residuals - centre).abs())
    else:
        known = torch.where(usable, residuals, torch.nan)
        centre = torch.nanquantile(known, 0.5, dim=-1, keepdim=True)
        deviation = torch.nanquantile((known - centre).abs(), 0.5, dim=-1, keepdim=True)
    n = usable.sum(-1, keepdim=True)
    share = n / (n - COLUMNS).clamp_min(1)
    return torch.nan_to_num(1.4826 * share.sqrt() * deviation)


def _median(values: Tensor) -> Tensor:
    """Median over the last dimension: the mean of the two middle values if there are two."""
    ordered = values.sort(dim=-1).values
    n = values.shape[-1]
    return (ordered[..., (n - 1) // 2, None] + ordered[..., n // 2, None]) / 2
