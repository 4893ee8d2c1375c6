"""Example data; each data set shows one possible outcome of a fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from posquad.core.errors import DomainError

__all__ = ["DEMOS", "Demo", "fit_options", "make"]


@dataclass(frozen=True)
class Demo:
    """An example data set."""

    name: str
    shows: str  # description of the data
    says: str  # the expected outcome of a fit
    options: str  # of `posquad fit`
    columns: Callable[[Generator], dict[str, np.ndarray]]


def make(name: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Return the columns of an example data set, inputs first; reproducible by its seed.

    >>> columns = make("few")
    >>> list(columns)[-1], len(columns["y"])
    ('y', 12)
    """
    if name not in DEMOS:
        raise DomainError("NAME", expected=f"one of {', '.join(DEMOS)}", got=name)
    return DEMOS[name].columns(np.random.default_rng(seed))


def fit_options(name: str, suffix: str) -> str:
    """Return the options of `posquad fit` for example data in a file of this kind.

    >>> fit_options("few", ".csv"), fit_options("few", ".npy")
    ('--rank 2', '--rank 2 --response x9')
    """
    words = DEMOS[name].options.split()
    if suffix == ".npy":  # columns of an array have no names
        places = {column: f"x{k + 1}" for k, column in enumerate(make(name))}
        words = [places.get(word, word) for word in words]
        words += [] if "--response" in words else ["--response", places["y"]]
    return " ".join(words)


def _sampled(
    rng: Generator, n: int, d: int, scales: list[float]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw Gaussian inputs and a random factor with squared singular values `scales`."""
    X = rng.standard_normal((n, d))
    U = np.linalg.qr(rng.standard_normal((d, len(scales))))[0] * np.sqrt(scales)
    return X, U, np.square(X @ U).sum(axis=1)


def _named(X: np.ndarray, **last: np.ndarray) -> dict[str, np.ndarray]:
    return {f"x{k + 1}": column for k, column in enumerate(X.T)} | last


def _recovery(rng: Generator) -> dict[str, np.ndarray]:
    X, _, y = _sampled(rng, 60, 8, [2.0, 1.0])
    return _named(X, y=y)


def _noisy(rng: Generator) -> dict[str, np.ndarray]:
    X, _, y = _sampled(rng, 300, 8, [2.0, 1.0])
    return _named(X, y=y + 0.2 * rng.standard_normal(300))


def _few(rng: Generator) -> dict[str, np.ndarray]:
    X, _, y = _sampled(rng, 12, 8, [2.0, 1.0])
    return _named(X, y=y)


def _outliers(rng: Generator) -> dict[str, np.ndarray]:
    X, _, y = _sampled(rng, 200, 8, [2.0, 1.0])
    wrong = rng.choice(200, 6, replace=False)
    y[wrong] += y.max()
    return _named(X, y=y)


def _phase(rng: Generator) -> dict[str, np.ndarray]:
    signal = np.repeat([0.0, 2.0, -1.0, 1.0], 4)  # a step function of 16 points
    masks = rng.standard_normal((64, 16))
    return _named(masks, y=np.square(masks @ signal))


def _portfolio(rng: Generator) -> dict[str, np.ndarray]:
    assets = ["shares", "small caps", "bonds", "gold", "oil", "property"]
    market = np.array([0.18, 0.24, 0.03, 0.02, 0.20, 0.14])
    rates = np.array([0.01, 0.02, 0.06, 0.07, -0.02, -0.03])
    mixes = rng.dirichlet(np.ones(6), size=400)
    variance = np.square(mixes @ np.column_stack([market, rates])).sum(axis=1)
    measured = variance * (1 + 0.02 * rng.standard_normal(400))
    return dict(zip(assets, mixes.T, strict=True)) | {"variance": measured}


def _weights(rng: Generator) -> dict[str, np.ndarray]:
    X, _, y = _sampled(rng, 300, 6, [2.0, 1.0])
    spread = np.where(rng.random(300) < 0.5, 0.05, 2.0)
    noise = spread * rng.standard_normal(300)
    return _named(X, weight=1 / spread**2, y=y + noise)


def _offset(rng: Generator) -> dict[str, np.ndarray]:
    X, _, y = _sampled(rng, 300, 6, [2.0, 1.0])
    return _named(X, y=y + 5.0 + 0.1 * rng.standard_normal(300))


def _linear(rng: Generator) -> dict[str, np.ndarray]:
    X, _, y = _sampled(rng, 200, 4, [2.0])
    return _named(X, y=y + X @ [3.0, -2.0, 1.0, 0.0] - 1.0 + rng.standard_normal(200))


DEMOS = {
    demo.name: demo
    for demo in (
        Demo(
            "recovery",
            "60 exact measurements of a matrix of rank 2 with 15 unknowns",
            "certified: proved to be the only answer",
            "",
            _recovery,
        ),
        Demo(
            "noisy",
            "300 measurements of a matrix of rank 2 with noise",
            "best fit, with the rank found and the noise estimated",
            "",
            _noisy,
        ),
        Demo(
            "few",
            "12 exact measurements of a matrix of rank 2 with 15 unknowns",
            "not identified: other matrices explain the data as well",
            "--rank 2",
            _few,
        ),
        Demo(
            "outliers",
            "200 exact measurements, 6 of them corrupted",
            "best fit; the residuals show which rows to check",
            "--rank 2",
            _outliers,
        ),
        Demo(
            "phase",
            "64 squared projections of a signal of 16 points: phase retrieval",
            "certified: the signal is the only component, up to its sign",
            "--rank 1",
            _phase,
        ),
        Demo(
            "portfolio",
            "variances of 400 portfolios of 6 assets with 2% noise; the columns have names",
            "best fit; the components are the risk factors of the market",
            "--response variance",
            _portfolio,
        ),
        Demo(
            "weights",
            "300 measurements, half of them 40 times as noisy as the rest, with weights",
            "best fit, determined by the precise half",
            "--weights weight",
            _weights,
        ),
        Demo(
            "offset",
            "300 measurements with a constant background",
            "best fit, with the background as the intercept",
            "--intercept",
            _offset,
        ),
        Demo(
            "linear",
            "200 measurements of a quadratic function with linear terms and noise",
            "best fit, and that linear terms would predict better",
            "",
            _linear,
        ),
    )
}
"""The example data by name."""
