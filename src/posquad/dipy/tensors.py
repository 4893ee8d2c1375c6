"""Positive diffusion tensors of many voxels: the exact optimum for given weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntFlag
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from posquad.core.arguments import require_boolean
from posquad.core.arrays import converted_tensor, positive_integer
from posquad.core.errors import DomainError, DtypeError, ShapeError, first_line
from posquad.core.ranges import DIFFUSION_WEIGHTS
from posquad.core.results import Result
from posquad.core.rotations import symmetric_eigen
from posquad.core.threads import one_torch_thread
from posquad.dipy.design import TO_DIPY, TensorDesign
from posquad.dipy.uncertainty import TensorErrors, tensor_errors
from posquad.dipy.weighted import WeightedFit, fit_weighted
from posquad.dipy.weights import LEAST_SIGNAL, first_fit, robust_weights, two_step_weights
from posquad.recovery.solvers.cone_newton import PositiveQuadratics, minimise_positive

__all__ = ["Flag", "TensorFits", "fit_tensors"]

Method = Literal["ols", "wls", "rwls"]
_METHODS = ("ols", "wls", "rwls")
_STEP = 4096  # voxels fitted together: their arrays stay in the cache
_ROUNDS = 4  # least number of fits of the robust method, and the default, as in DIPY


class Flag(IntFlag):
    """What is special about the fit of a voxel; 0 is a plain least squares fit."""

    POSITIVE = 1  # least squares was not positive, and the constraint determines the answer
    LEFT_OUT = 2  # signals were left out: not positive, not finite, or outliers
    UNDETERMINED = 4  # too few usable signals; the tensor is set to zero
    NOT_SOLVED = 8  # the optimum was not reached to rounding; `gap` says how far it is
    OUTSIDE = 16  # outside the mask of an image
    OUT_OF_RANGE = 32  # S0 is beyond the range of numbers, infinite or zero; `log_S0` is right


@dataclass(frozen=True, eq=False, repr=False)
class TensorFits(Result):
    """The result of `fit_tensors`; `...` stands for the voxels."""

    tensor: np.ndarray  # [..., 6]  Dxx, Dxy, Dyy, Dxz, Dyz, Dzz
    evals: np.ndarray  # [..., 3]  eigenvalues, descending, none below zero
    evecs: np.ndarray  # [..., 3, 3]  eigenvectors in columns
    log_S0: np.ndarray  # [...]  log of the signal without diffusion; -inf where undetermined
    weights: np.ndarray  # [..., g]  weights of the squared errors of log S
    kept: np.ndarray  # [..., g]  whether a signal was used
    residual: np.ndarray  # [...]  weighted sum of the squared errors of log S
    gap: np.ndarray  # [...]  no positive tensor has a residual below `residual - gap`
    flags: np.ndarray  # [...]  `Flag`
    errors: TensorErrors | None = None  # standard errors, if `fit_tensors(..., errors=True)`

    @property
    def S0(self) -> np.ndarray:
        """Signal without diffusion, `[...]`; 0 where undetermined.

        Signals that span many decades may determine one beyond the range of numbers: it is then
        infinite or zero, and the voxel has the flag `OUT_OF_RANGE`.
        """
        with np.errstate(over="ignore", under="ignore"):
            return np.exp(self.log_S0)

    @property
    def md(self) -> np.ndarray:
        """Mean diffusivity, `[...]`."""
        return self.evals.mean(axis=-1)

    @property
    def fa(self) -> np.ndarray:
        """Fractional anisotropy `(3/2)^(1/2) |D - tr(D)/3 I| / |D|`, `[...]`; 0 for D = 0."""
        apart = np.linalg.norm(self.evals - self.md[..., None], axis=-1)
        size = np.linalg.norm(self.evals, axis=-1)
        return 1.5**0.5 * apart / np.where(size > 0, size, 1.0)


def fit_tensors(
    design_matrix: Any,
    data: Any,
    method: Method = "wls",
    *,
    weights: Any = None,
    rounds: int = _ROUNDS,
    errors: bool = False,
) -> TensorFits:
    """Fit a positive semidefinite tensor and S0 to the signals of every voxel.

    Minimises `sum_i w_i (log S_i - log S0 + <B_i, D>)^2` over `D >= 0` and all S0, exactly. The
    weights are those of DIPY's methods: equal ("ols"), the squared signals that a first fit
    predicts ("wls"), or the same after outliers were left out by Geman and McClure's estimator
    ("rwls"). Where least squares is positive the answer is DIPY's. Signals that are not finite or
    not above 0.0001, the value that DIPY's TensorModel puts in place of lower ones, are left out.

    Args:
        design_matrix: DIPY's design matrix `[g, 7]`.
        data: signals `[..., g]`.
        method: "ols", "wls" or "rwls".
        weights: weights `[..., g]` of the squared errors of log S, in place of those of "wls".
        rounds: number of fits of "rwls", at least 4.
        errors: also return standard errors of the tensor, of MD and of FA. For tensors of rank one
            they are approximate: 95% intervals contain the truth in 87% of the cases for FA and in
            92% for MD (`benchmarks/intervals.py`).

    >>> g = np.random.default_rng(0).standard_normal((12, 3))
    >>> x, y, z = 30 * g.T
    >>> B = np.stack([x * x, 2 * x * y, y * y, 2 * x * z, 2 * y * z, z * z, np.ones(12)], axis=1)
    >>> S = 100 * np.exp(-B @ [1e-3, 0, 1e-3, 0, 0, 0, 0])  # a tensor of rank two
    >>> fits = fit_tensors(-B, S)
    >>> np.round(fits.evals * 1e3, 6), round(float(fits.S0), 6)
    (array([1., 1., 0.]), 100.0)
    """
    design = TensorDesign.of(design_matrix)
    if method not in _METHODS:
        expected = f"one of {', '.join(map(repr, _METHODS))}"
        raise DomainError("method", expected=expected, got=repr(method))
    require_rounds("rounds", rounds)
    require_boolean(errors=errors)
    signals = _signals(data, design.size)
    given = _given_weights(weights, signals.shape, method)
    shape, g = signals.shape[:-1], design.size
    flat = signals.reshape(-1, g)
    own = None if given is None else given.reshape(-1, g)
    with torch.no_grad(), one_torch_thread():
        parts = [
            _fit_part(design, flat[k], method, None if own is None else own[k], rounds, errors)
            for k in _blocks(len(flat))
        ]
    joined = TensorFits(**_joined(parts, shape))
    if not errors:
        return joined
    return replace(joined, errors=TensorErrors(**_joined([p.errors for p in parts], shape)))


def require_rounds(name: str, rounds: int) -> None:
    """Require the number of fits of the robust method, an argument of this name."""
    if positive_integer(name, rounds) < _ROUNDS:
        raise DomainError(name, expected=f"at least {_ROUNDS}", got=str(rounds))


def _joined(parts: list[Any], shape: tuple[int, ...]) -> dict[str, Any]:
    """The arrays of results, concatenated and in the shape of the voxels."""
    names = [name for name, value in vars(parts[0]).items() if isinstance(value, np.ndarray)]
    whole = {name: np.concatenate([vars(part)[name] for part in parts]) for name in names}
    return {name: value.reshape(shape + value.shape[1:]) for name, value in whole.items()}


def _blocks(count: int) -> Iterator[slice]:
    """Slices of at most `_STEP` voxels; one empty slice if there are none."""
    for begin in range(0, max(count, 1), _STEP):
        yield slice(begin, begin + _STEP)


def _signals(data: Any, g: int) -> np.ndarray:
    try:
        signals = np.asarray(data)
    except (ValueError, TypeError, RuntimeError) as problem:  # ragged lists, for instance
        raise DtypeError("data", expected="an array", got=first_line(problem)) from None
    if signals.dtype.kind not in "fiub":
        raise DomainError("data", expected="real numbers", got=f"dtype {signals.dtype}")
    if signals.ndim == 0 or signals.shape[-1] != g:
        expected = f"shape (..., {g}), one signal per row of the design matrix"
        raise ShapeError("data", expected=expected, got=f"shape {signals.shape}")
    return signals


def _given_weights(weights: Any, shape: tuple[int, ...], method: str) -> np.ndarray | None:
    if weights is None:
        return None
    if method != "wls":
        raise DomainError("weights", expected="None unless the method is 'wls'", got=method)
    given = converted_tensor("weights", weights).double().numpy()
    if given.shape != shape:
        raise ShapeError(
            "weights", expected=f"the shape of the data, {shape}", got=f"{given.shape}"
        )
    if (given < 0).any():
        got = f"least {np.min(given):.3g}"
        raise DomainError("weights", expected="weights, none negative", got=got)
    return given


def _fit_part(
    design: TensorDesign,
    data: np.ndarray,
    method: str,
    own: np.ndarray | None,
    rounds: int,
    errors: bool,
) -> TensorFits:
    """Fit the voxels `data[B, g]` together."""
    signals = torch.from_numpy(np.ascontiguousarray(data, dtype=np.float64))
    usable = torch.isfinite(signals) & (signals > LEAST_SIGNAL)
    signals = torch.where(usable, signals, 1.0)
    logs = signals.log()
    kept, cutoff = usable, None
    if own is not None:
        weights = torch.from_numpy(np.ascontiguousarray(own)) * usable
    elif method == "ols":
        weights = usable.to(logs)
    elif method == "wls":
        weights = two_step_weights(design, logs, usable)
    else:
        weights, kept, cutoff = robust_weights(design, signals, logs, usable, rounds)
    bounded = torch.isfinite(weights) & (weights < DIFFUSION_WEIGHTS.of().high)
    weights = torch.where(bounded, weights, 0.0)
    equal = own is None and method == "ols"
    fit = first_fit(design, logs, usable) if equal else fit_weighted(design, logs, weights)
    found = minimise_positive(fit.H, fit.c)
    kept = kept & (weights > 0)
    result = _result(design, logs, weights, kept, fit, found)
    if not errors:
        return result
    residual = torch.from_numpy(result.residual)
    known = tensor_errors(design, fit, found, kept.sum(-1), residual, cutoff)
    return replace(result, errors=known)


def _result(
    design: TensorDesign,
    logs: Tensor,
    weights: Tensor,
    kept: Tensor,
    fit: WeightedFit,
    found: PositiveQuadratics,
) -> TensorFits:
    """Return the answers in the user's coordinates."""
    e = found.entries
    values, vectors = found.values.clamp_min(0.0), found.vectors
    if design.isotropic:
        values = values * design.transform[0, 0].square()
    else:
        U = design.transform @ (vectors * values.sqrt()[:, None, :])
        exact = (values > 0).sum(-1)
        values, vectors = symmetric_eigen(U @ U.mT)
        zero = torch.arange(3) < 3 - exact[:, None]  # the congruence keeps the rank
        values = torch.where(zero, 0.0, values.clamp_min(0.0))
    tensor = e @ (TO_DIPY @ design.congruence).mT
    residual = (weights * (logs - fit.predicted(design, e)).square()).sum(-1)
    determined = fit.determined
    log_S0 = torch.where(determined, fit.constant(e), -torch.inf)
    representable = log_S0.exp().isfinite() & (log_S0.exp() > 0)
    flags = (found.steps > 0) * Flag.POSITIVE.value
    flags = flags | ((kept.sum(-1) < design.size) * Flag.LEFT_OUT.value)
    flags = flags | (~found.solved * Flag.NOT_SOLVED.value)
    flags = flags | (~representable * Flag.OUT_OF_RANGE.value)
    flags = torch.where(determined, flags, Flag.UNDETERMINED.value)
    return TensorFits(
        tensor=tensor.numpy(),
        evals=values.flip(-1).numpy(),
        evecs=vectors.flip(-1).numpy(),
        log_S0=log_S0.numpy(),
        weights=weights.numpy(),
        kept=kept.numpy(),
        residual=residual.numpy(),
        gap=(2 * found.gap).numpy(),
        flags=flags.to(torch.uint8).numpy(),
    )


def parameters(fits: TensorFits) -> np.ndarray:
    """DIPY's twelve parameters `[..., 12]`: the eigenvalues, then the rows of the eigenvectors."""
    stacked = np.concatenate([fits.evals[..., None, :], fits.evecs], axis=-2)
    return stacked.reshape(*fits.evals.shape[:-1], 12)


def lower_triangular(fits: TensorFits) -> np.ndarray:
    """DIPY's coefficients `[..., 7]`: the six entries of the tensor, and `-log S0`."""
    return np.concatenate([fits.tensor, -fits.log_S0[..., None]], axis=-1)
