"""Fit methods for `dipy.reconst.dti.TensorModel(gtab, fit_method=...)`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from posquad.dipy.design import TensorDesign
from posquad.dipy.tensors import (
    Method,
    TensorFits,
    fit_tensors,
    lower_triangular,
    parameters,
    require_rounds,
)
from posquad.dipy.weighted import fit_weighted, leverages

__all__ = ["positive_ols", "positive_rwls", "positive_wls"]


def positive_ols(
    design_matrix: Any,
    data: Any,
    *,
    return_S0_hat: bool = False,
    return_lower_triangular: bool = False,
    return_leverages: bool = False,
    step: int | None = None,
) -> tuple[Any, dict[str, np.ndarray] | None]:
    """Least squares on log S over positive semidefinite tensors: `TensorModel`'s "OLS", exactly.

    Arguments and results are those of `dipy.reconst.dti.ols_fit_tensor`; `step` is accepted, and
    the voxels are worked on in blocks in any case.

    >>> g = np.random.default_rng(0).standard_normal((12, 3))
    >>> x, y, z = 30 * g.T
    >>> B = np.stack([x * x, 2 * x * y, y * y, 2 * x * z, 2 * y * z, z * z, np.ones(12)], axis=1)
    >>> params, extra = positive_ols(-B, 100 * np.exp(-B @ [1e-3, 0, 1e-3, 0, 0, 0, 0])[None])
    >>> np.round(params[0, :3] * 1e3, 6), extra
    (array([1., 1., 0.]), None)
    """
    del step
    wanted = return_S0_hat, return_lower_triangular, return_leverages
    return _least_squares("ols", design_matrix, data, None, *wanted)


def positive_wls(
    design_matrix: Any,
    data: Any,
    *,
    weights: Any = None,
    return_S0_hat: bool = False,
    return_lower_triangular: bool = False,
    return_leverages: bool = False,
    step: int | None = None,
) -> tuple[Any, dict[str, np.ndarray] | None]:
    """Weighted least squares on log S over positive semidefinite tensors: "WLS", exactly.

    Arguments and results are those of `dipy.reconst.dti.wls_fit_tensor`. Without `weights` they are
    the squared signals that a first fit predicts, as in DIPY.

    >>> g = np.random.default_rng(0).standard_normal((12, 3))
    >>> x, y, z = 30 * g.T
    >>> B = np.stack([x * x, 2 * x * y, y * y, 2 * x * z, 2 * y * z, z * z, np.ones(12)], axis=1)
    >>> S = 100 * np.exp(-B @ [1e-3, 0, 1e-3, 0, 0, 0, 0])[None]
    >>> (params, S0), extra = positive_wls(-B, S, return_S0_hat=True)
    >>> np.round(params[0, :3] * 1e3, 6), np.round(S0, 6)
    (array([1., 1., 0.]), array([100.]))
    """
    del step
    wanted = return_S0_hat, return_lower_triangular, return_leverages
    return _least_squares("wls", design_matrix, data, weights, *wanted)


def positive_rwls(
    design_matrix: Any,
    data: Any,
    *,
    return_S0_hat: bool = False,
    num_iter: int = 4,
    step: int | None = None,
) -> tuple[Any, dict[str, np.ndarray]]:
    """Robust weighted least squares over positive semidefinite tensors: "RWLS", exactly.

    Arguments and results are those of `dipy.reconst.dti.robust_fit_tensor_wls`. The extra result
    `robust` says which signals were kept.

    >>> g = np.random.default_rng(0).standard_normal((24, 3))
    >>> x, y, z = 30 * g.T
    >>> B = np.stack([x * x, 2 * x * y, y * y, 2 * x * z, 2 * y * z, z * z, np.ones(24)], axis=1)
    >>> S = 100 * np.exp(-B @ [1e-3, 0, 1e-3, 0, 0, 1e-3, 0])[None]
    >>> S = S * (1 + 0.01 * np.random.default_rng(1).standard_normal(24))
    >>> S[0, 5] *= 4
    >>> params, extra = positive_rwls(-B, S)
    >>> bool(extra["robust"][0, 5])
    False
    """
    del step
    require_rounds("num_iter", num_iter)
    fits = fit_tensors(design_matrix, data, "rwls", rounds=num_iter)
    return _parameters(fits, return_S0_hat), {"robust": fits.kept}


def _least_squares(
    method: Method,
    design_matrix: Any,
    data: Any,
    weights: Any,
    with_S0: bool,
    triangular: bool,
    with_leverages: bool,
) -> tuple[Any, dict[str, np.ndarray] | None]:
    """Fit, and return what DIPY's least squares methods return."""
    fits = fit_tensors(design_matrix, data, method, weights=weights)
    extra = _leverages(design_matrix, fits) if with_leverages else None
    return lower_triangular(fits) if triangular else _parameters(fits, with_S0), extra


def _parameters(fits: TensorFits, with_S0: bool) -> Any:
    return (parameters(fits), fits.S0) if with_S0 else parameters(fits)


def _leverages(design_matrix: Any, fits: TensorFits) -> dict[str, np.ndarray]:
    design = TensorDesign.of(design_matrix)
    weights = torch.from_numpy(fits.weights.reshape(-1, design.size))
    fit = fit_weighted(design, torch.zeros_like(weights), weights)
    return {"leverages": leverages(design, fit, weights).numpy().reshape(fits.weights.shape)}
