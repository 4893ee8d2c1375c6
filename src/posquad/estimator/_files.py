"""Fitted models on disk: a readable JSON file and a safetensors file with the arrays, no pickle."""

from __future__ import annotations

import hashlib
import math
import os
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from posquad import certificates
from posquad._version import __version__
from posquad.core.errors import DomainError, PosquadError
from posquad.core.status import Status
from posquad.core.store import StoreError, pair_paths, read_arrays, read_body, save_pair
from posquad.estimator._model import count_terms
from posquad.estimator._stream import Stream
from posquad.estimator._uncertainty import Uncertainty
from posquad.recovery import UNIQUE

_FORMAT = "posquad model 2"
_ARRAYS = (
    "components_",
    "center_",
    "center_slope_",
    "coef_",
    "effective_spectrum_",
    "history_",
    "history_rank_",
)
_FINITE = ("components_", "center_", "center_slope_", "coef_")
_NUMBERS = (
    "intercept_",
    "center_value_",
    "residual_",
    "noise_std_",
    "rank_confidence_",
    "kernel_dimension_",
)
_COUNTS = ("rank_", "n_iter_", "n_features_in_", "n_samples_", "needed_", "gauge_dimension_")

M = TypeVar("M")


def save(model: Any, path: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Write a fitted `PositiveQuadraticRegressor`; see its `save`."""
    json_path, array_path, certificate_path = _paths(path)
    if not json_path.parent.is_dir():
        got = f"{json_path.parent.as_posix()}, which is not a folder"
        raise DomainError("path", expected="a file name in a folder that exists", got=got)
    parameters = {name: _plain(name, value) for name, value in model.get_params().items()}
    stream = getattr(model, "_stream", None)
    state, arrays = (None, {}) if stream is None else stream.to_store()
    names = getattr(model, "feature_names_in_", None)
    body: dict[str, Any] = {
        "format": _FORMAT,
        "library": __version__,
        "parameters": parameters,
        "status": None,  # of a stream that is not fitted yet
        "feature_names": None if names is None else [str(name) for name in names],
        "counts": {"n_features_in_": int(model.n_features_in_)},
        "certificate_sha256": None,
        "response_name": model.response_name_,
        "table_rules": model.table_rules_,
        "stream": state,  # of partial_fit, so that it can go on
    }
    written: tuple[Path, ...] = ()
    if hasattr(model, "components_"):
        fitted, found = _fitted_state(model)
        body, arrays = body | fitted, arrays | found
        if model.certificate_ is not None:
            written = certificates.save(model.certificate_, certificate_path)
            body["certificate_sha256"] = hashlib.sha256(certificate_path.read_bytes()).hexdigest()
    data = save_arrays({name: np.ascontiguousarray(a) for name, a in arrays.items()})
    save_pair(json_path, body, array_path, data)
    return json_path, array_path, *written


def _fitted_state(model: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return what a file keeps of a fit: plain values, and arrays by name."""
    arrays = {name: getattr(model, name) for name in _ARRAYS}
    arrays |= {f"rank_path_.{name}": column for name, column in model.rank_path_.items()}
    known = model.uncertainty_
    if known is not None:
        arrays |= {f"uncertainty_.{name}": array for name, array in known._asdict().items()}
    body = {
        "status": model.status_.name,
        "message": model.status_.value,
        "identifiable": model.identifiable_,
        "numbers": {name: _number(getattr(model, name)) for name in (*_NUMBERS, "dispersion_")},
        "counts": {name: int(getattr(model, name)) for name in _COUNTS},
        "has_uncertainty": known is not None,
    }
    return body, arrays


def load(kind: type[M], path: str | os.PathLike[str]) -> M:
    """Read a model; see `PositiveQuadraticRegressor.load`."""
    given = Path(path)
    json_path, array_path, certificate_path = _paths(given / "model" if given.is_dir() else given)
    try:
        body = read_body(json_path, _FORMAT)
        data = read_arrays(array_path, body)
        model: Any = kind(**body["parameters"])
        arrays = load_arrays(data)
        _restore(model, body, arrays)
        if body["status"] is not None:
            _restore_fit(model, body, arrays)
            model.certificate_ = _certificate(certificate_path, body["certificate_sha256"])
    except PosquadError:
        raise
    except StoreError as problem:
        _refuse(problem.path, problem.got)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        _refuse(array_path, f"content that cannot be used: {error}")
    except SafetensorError as error:
        _refuse(array_path, f"content that cannot be used: {error}")
    return model


def _certificate(path: Path, checksum: str | None) -> certificates.Certificate | None:
    """Return the certificate that was saved with the model; refuse any other."""
    if checksum is None:
        return None
    found = certificates.load(path)
    if hashlib.sha256(path.read_bytes()).hexdigest() != checksum:
        _refuse(path, "a file that was changed, or belongs to another model")
    return found


def _restore(model: Any, body: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Set what a stream has before it is fitted; raise ValueError if it is inconsistent."""
    model.n_features_in_ = int(body["counts"]["n_features_in_"])
    model.response_name_ = body["response_name"]
    if not isinstance(model.response_name_, str | None):
        raise ValueError("the name of the response is not a string")
    model.table_rules_ = body.get("table_rules")  # older files have none
    state = body.get("stream")
    if state is None and body["status"] is None:
        raise ValueError("there is neither a fit nor a stream")
    model._stream = None
    if state is not None:
        model._stream = Stream.from_store(model.n_features_in_, state, arrays)
    names = body["feature_names"]
    if names is not None:
        if len(names) != model.n_features_in_:
            raise ValueError(f"{len(names)} names for {model.n_features_in_} columns")
        model.feature_names_in_ = np.array(names, dtype=object)


def _restore_fit(model: Any, body: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Set the fitted attributes; raise ValueError if they are inconsistent."""
    for name in _NUMBERS:
        value = body["numbers"][name]
        setattr(model, name, math.nan if value is None else float(value))
    for name in _COUNTS:
        setattr(model, name, int(body["counts"][name]))
    dispersion = body["numbers"].get("dispersion_")  # older files have none
    model.dispersion_ = math.nan if dispersion is None else float(dispersion)
    if not math.isnan(model.kernel_dimension_):
        model.kernel_dimension_ = int(model.kernel_dimension_)
    model.status_ = Status[body["status"]]
    model.identifiable_ = body["identifiable"]
    if not isinstance(model.identifiable_, bool | None):
        raise ValueError("whether the data identify the predictor is not true, false or null")
    unknown = math.isnan(model.kernel_dimension_) and model.status_ not in UNIQUE
    if model.identifiable_ and unknown:  # so in older files
        model.identifiable_ = None
    prefix = "rank_path_."
    columns = {name: column for name, column in arrays.items() if name.startswith(prefix)}
    for name, column in columns.items():
        _require_array(name, column, arrays[prefix + "rank"].shape[:1], finite=False)
    model.rank_path_ = {name.removeprefix(prefix): column for name, column in columns.items()}
    d, r = model.n_features_in_, model.rank_
    shapes: dict[str, tuple[int, ...]] = {"components_": (r, d)}
    shapes |= dict.fromkeys(_FINITE[1:], (d,))
    arrays.setdefault("history_rank_", np.zeros(arrays["history_"].shape, dtype=np.int64))  # older
    shapes["history_rank_"] = arrays["history_"].shape[:1]
    for name in _ARRAYS:
        shape = shapes.get(name, arrays[name].shape[:1])
        _require_array(name, arrays[name], shape, finite=name in _FINITE)
        setattr(model, name, arrays[name])
    model.uncertainty_ = None
    if body["has_uncertainty"]:
        parts = {name: arrays[f"uncertainty_.{name}"] for name in Uncertainty._fields}
        q, f, k, unseen = (len(parts[name]) for name in ("root", "free", "terms", "unseen"))
        m = count_terms(model._terms, d)
        shapes = {"unit": (d,), "origin": (d,), "root": (q, d, r), "shares": (q, m)}
        shapes |= {"terms": (k, m), "free": (f, d, r), "free_shares": (f, m), "unseen": (unseen, d)}
        for name, shape in shapes.items():
            _require_array(f"uncertainty_.{name}", parts[name], shape)
        model.uncertainty_ = Uncertainty(**parts)


def _require_array(
    name: str, array: np.ndarray, shape: tuple[int, ...], *, finite: bool = True
) -> None:
    if array.shape != shape or array.dtype.kind not in "fi":
        raise ValueError(f"{name} is {array.dtype.name} {array.shape}, not numbers {shape}")
    if finite and not np.isfinite(array).all():
        raise ValueError(f"{name} is not finite")


def _paths(path: str | os.PathLike[str]) -> list[Path]:
    if Path(path).name in ("", ".."):
        raise DomainError("path", expected="the name of a file", got=repr(os.fspath(path)))
    return pair_paths(path, ".json", ".safetensors", ".certificate.json")


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, np.bool_ | np.integer | np.floating):
        value = value.item()
    finite = not isinstance(value, float) or math.isfinite(value)
    if value is None or (isinstance(value, bool | int | float | str) and finite):
        return value
    expected = "a plain finite value in a model to be saved (use set_params to replace it)"
    raise DomainError(name, expected=expected, got=repr(value))


def _number(value: float) -> float | None:
    """Return a finite number; None for NaN and infinities, which JSON cannot hold."""
    return float(value) if math.isfinite(value) else None


def _refuse(path: Path, got: str) -> NoReturn:
    raise DomainError(path.as_posix(), expected="a fitted model", got=got) from None
