"""Standard errors of a positive tensor, its mean diffusivity and its fractional anisotropy.

A change dy of the logarithms of the signals moves the optimum, to first order, along the matrices
of its rank r: `dE = K^{-1} P A'W dy`, where P projects onto the tangent space of these matrices and
K is the curvature of the constrained problem there, H plus the bending of the set by the gradient
G. In the eigenbasis, that is `K = H + diag(g_j / e_i)` for the entries (i, j) of a positive
eigenvalue e_i and a zero one with gradient g_j. Errors of variance `sigma^2 / w_i` then give the
covariance

    sigma^2 K^{-1} P H P K^{-1},

which is `sigma^2 H^{-1}` where the tensor is positive definite. Nothing depends on a choice of
eigenvectors. `sigma^2` is the residual over its degrees of freedom.

Where signals beyond a cutoff `k sigma` were left out, the residual of the others is too small, and
the answer varies more than least squares does, because noise decides which signals are left out.
For normal noise the residual gives `sigma^2 (1 - q)`, and the covariance of the answer is that
above with `sigma^2 / (1 - q)`, where `q = 2 k phi(k) / (2 Phi(k) - 1)`: the variance of a truncated
normal variable, and of a mean after rejection of outliers (Huber, Robust Statistics, 1981, 3.2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from posquad.core.results import Result
from posquad.core.symmetric import svec, symmetric_congruence
from posquad.dipy.design import TO_DIPY, TensorDesign
from posquad.dipy.weighted import WeightedFit
from posquad.recovery.solvers.cone_newton import PositiveQuadratics

__all__ = ["TensorErrors", "tensor_errors"]

_LEAST_CUTOFF = 3**0.5  # in standard deviations: with a lower one, kept errors look uniform
_ROUNDS = 3  # of the equation for the cutoff in standard deviations
_SAME = 1e-6  # anisotropy below which a tensor is isotropic, where FA has no derivative


@dataclass(frozen=True, eq=False, repr=False)
class TensorErrors(Result):
    """Standard errors of tensors, by the delta method; NaN where one is not defined."""

    tensor: np.ndarray  # [..., 6]  of Dxx, Dxy, Dyy, Dxz, Dyz, Dzz
    md: np.ndarray  # [...]  of the mean diffusivity
    fa: np.ndarray  # [...]  of the fractional anisotropy; NaN for isotropic tensors and for zero
    sigma: np.ndarray  # [...]  standard deviation of w^(1/2) log S: of the signal, unless "ols"
    freedom: np.ndarray  # [...]  signals used minus free parameters; nothing is defined below 1


def tensor_errors(
    design: TensorDesign,
    fit: WeightedFit,
    found: PositiveQuadratics,
    used: Tensor,
    residual: Tensor,
    cutoff: Tensor | None = None,
) -> TensorErrors:
    """Return the standard errors of the voxels of a fit.

    `used[B]` counts the signals of positive weight, and `residual[B]` is the weighted sum of their
    squared errors. Signals with errors beyond `cutoff[B]`, if that is given, were left out.
    `fit_tensors(..., errors=True)` calls this.

    >>> from posquad.dipy.weighted import fit_equal
    >>> from posquad.recovery.solvers.cone_newton import minimise_positive
    >>> x, y, z = 30 * np.random.default_rng(0).standard_normal((3, 60))
    >>> B = np.stack([x * x, 2 * x * y, y * y, 2 * x * z, 2 * y * z, z * z, np.ones(60)], axis=1)
    >>> design = TensorDesign.of(-B)
    >>> fit = fit_equal(design, torch.tensor(-B @ [2e-3, 0, 1e-3, 0, 0, 1e-3, 0])[None])
    >>> found, one = minimise_positive(fit.H, fit.c), torch.ones(1, dtype=torch.float64)
    >>> errors = tensor_errors(design, fit, found, 60 * one, 53 * one)
    >>> errors.sigma, errors.freedom
    (array([1.]), array([53]))
    """
    C = symmetric_congruence(found.vectors)  # from svec in the eigenbasis to svec
    H = C.mT @ fit.H @ C
    free, bend = _tangent_space(fit, found, C)
    K = free[:, :, None] * H * free[:, None, :]
    K.diagonal(dim1=-2, dim2=-1).add_(torch.where(free > 0, bend, 1.0))
    inverse = free[:, :, None] * torch.linalg.inv(K) * free[:, None, :]
    to_user = design.congruence @ C
    spread = to_user @ (inverse @ H @ inverse) @ to_user.mT  # of svec(D), for errors of variance 1
    freedom = used.long() - free.sum(-1).long() - 1
    defined = (freedom > 0) & fit.determined
    variance = torch.where(defined, residual / freedom.clamp_min(1), torch.nan)
    loss = torch.zeros_like(variance) if cutoff is None else _rejected(cutoff, variance)
    variance = variance / (1 - loss)
    # At zero, the corner of the cone, the errors to first order say nothing.
    known = torch.where((free > 0).any(-1), variance / (1 - loss), torch.nan)
    covariance = known[:, None, None] * spread
    entries = covariance.diagonal(dim1=-2, dim2=-1).clamp_min(0.0).sqrt()
    D = found.entries @ design.congruence.mT
    return TensorErrors(
        tensor=(entries @ TO_DIPY.to(entries).mT).numpy(),
        md=_error(covariance, _md_slope(D)).numpy(),
        fa=_error(covariance, _fa_slope(D)).numpy(),
        sigma=variance.sqrt().numpy(),
        freedom=freedom.numpy(),
    )


def _tangent_space(fit: WeightedFit, found: PositiveQuadratics, C: Tensor) -> tuple[Tensor, Tensor]:
    """Return which entries `[B, 6]` in the eigenbasis are free, and how the set bends along them.

    An entry (i, j) is free if one of the eigenvalues is positive. The bending is that of the matrix
    of rank r nearest to a point outside: `g_j / e_i`.
    """
    i, j = torch.triu_indices(3, 3)
    positive = found.values > 0
    free = (positive[:, i] | positive[:, j]).to(found.values)
    shift = found.entries - fit.c
    slope = shift @ fit.H if fit.H.ndim == 2 else (fit.H @ shift[..., None])[..., 0]
    gradient = (C.mT @ slope[..., None])[..., 0]  # its off-diagonal entries are zero
    along = torch.where(positive, 0.0, gradient[:, i == j].clamp_min(0.0))
    low = torch.minimum(found.values[:, i], found.values[:, j])
    high = torch.maximum(found.values[:, i], found.values[:, j])
    outward = torch.maximum(along[:, i], along[:, j])
    mixed = (low <= 0) & (high > 0)
    return free, torch.where(mixed, outward / torch.where(mixed, high, 1.0), 0.0)


def _rejected(cutoff: Tensor, variance: Tensor) -> Tensor:
    """Return the share q of the variance that a cutoff takes away, from the variance left, `[B]`.

    With `k = cutoff / sigma`, it is `2 k phi(k) / (2 Phi(k) - 1)`, the share of a normal variable.
    """
    share = torch.zeros_like(variance)
    for _ in range(_ROUNDS):
        k = (cutoff * ((1 - share) / variance).sqrt()).clamp_min(_LEAST_CUTOFF)
        density = torch.exp(-k.square() / 2) / math.sqrt(2 * math.pi)
        share = torch.where(k < torch.inf, 2 * k * density / torch.erf(k / math.sqrt(2)), 0.0)
    return share


def _error(covariance: Tensor, slope: Tensor) -> Tensor:
    """Standard error of a function with this derivative, `[B]`."""
    return (slope[:, None, :] @ covariance @ slope[:, :, None])[:, 0, 0].clamp_min(0.0).sqrt()


def _md_slope(D: Tensor) -> Tensor:
    """Derivative of `tr D / 3`."""
    return svec(torch.eye(3, dtype=D.dtype) / 3).expand(D.shape)


def _fa_slope(D: Tensor) -> Tensor:
    """Derivative of `FA = (3/2)^(1/2) |D - tr(D)/3 I| / |D|`; NaN where that has none."""
    mean = svec(torch.eye(3, dtype=D.dtype))
    deviation = D - (D @ mean / 3)[:, None] * mean
    size = torch.linalg.vector_norm(D, dim=-1, keepdim=True)
    apart = torch.linalg.vector_norm(deviation, dim=-1, keepdim=True)
    smooth = apart > _SAME * size
    slope = deviation / (apart * size) - apart * D / size**3
    return torch.where(smooth, 1.5**0.5 * slope, torch.nan)
