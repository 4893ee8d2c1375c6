"""How often 95% intervals contain the truth: predictions of the estimator, FA and MD of tensors.

    python benchmarks/intervals.py [--repeats 400] [--only tensors] [--docs docs/measured.md]

An interval is the estimate and, on either side, its standard error times the 97.5% quantile of
Student's t with n - p degrees of freedom (of the normal distribution for counts). Each data set of
the estimator has inputs, a factor and noise of its own, and predictions at ten new inputs. The
signals of tensors have noise of 2% of S0.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy.stats import norm, t

sys.path.insert(0, str(Path(__file__).parent.parent / "tests/dipy"))

from dipy.reconst import dti
from dti_support import S0, signals, table, tensors

from posquad.dipy import fit_tensors
from posquad.estimator import PositiveQuadraticRegressor
from posquad.geometry import dimension
from timing import machine, use_one_thread, write_between

BEGIN, END = "<!-- coverage -->", "<!-- /coverage -->"
D, RANK, NOISE = 4, 2, 0.2
OUTLIERS, SHIFT = 0.1, 30.0  # share of the responses, and their shift in standard deviations
AT = 10  # new inputs of a data set
SIGMA = 20.0
TENSORS = {
    "rank three": (1.7e-3, 0.4e-3, 0.3e-3),
    "rank two": (1.7e-3, 0.3e-3, 0.0),
    "rank one": (1.7e-3, 0.0, 0.0),
}
VOXELS = 10  # for each repetition


def hits(seed: tuple[int, ...], n: int, how: str, loss: str, mean: float = 0.0) -> float:
    """Share of the new inputs of one data set whose interval contains the truth."""
    rng = np.random.default_rng(seed)
    X, U = rng.standard_normal((n, D)), rng.standard_normal((D, RANK))
    if loss == "poisson":
        U *= np.sqrt(mean) / np.linalg.norm(U)
        y = rng.poisson(np.square(X @ U).sum(1)).astype(float)
    else:
        noise = NOISE * (5 if how == "automatic rank" else 1)
        y = np.square(X @ U).sum(1) + noise * rng.standard_normal(n)
    if how == "10% outliers":
        bad = rng.permutation(n)[: round(OUTLIERS * n)]
        y[bad] += NOISE * SHIFT * rng.choice([-1.0, 1.0], len(bad))
    rank = None if how == "automatic rank" else RANK
    model = PositiveQuadraticRegressor(rank, loss=loss).fit(X, y)
    at = rng.standard_normal((AT, D))
    found, error = model.predict(at, return_std=True)
    p = dimension(D, max(1, model.rank_))
    width = norm.ppf(0.975) if loss == "poisson" else t.ppf(0.975, n - p)
    return float((np.abs(found - np.square(at @ U).sum(1)) <= width * error).mean())


def predictions(repeats: int) -> Iterator[tuple[str, str, float, float]]:
    """Rows of the table: loss, data, share of hits and its standard error."""
    cases = [("least-squares", "rank given", n, 0.0) for n in (30, 100)]
    cases += [("least-squares", "automatic rank", n, 0.0) for n in (30, 100, 300)]
    for loss in ("huber", "geman-mcclure"):
        for how in ("no outliers", "10% outliers"):
            cases += [(loss, how, n, 0.0) for n in (30, 100, 300)]
    cases += [("poisson", f"mean {mean:g}", 100, mean) for mean in (0.5, 2.0, 10.0)]
    for k, (loss, how, n, mean) in enumerate(cases):
        each = [hits((2026, k, seed), n, how, loss, mean) for seed in range(repeats)]
        yield f'`"{loss}"`', f"{how}, n = {n}", np.mean(each), np.std(each) / np.sqrt(repeats)


def maps(repeats: int) -> Iterator[tuple[str, str, float, float]]:
    """Rows of the table for FA and MD: method, tensor, share of hits and its standard error."""
    gtab, count = table(), VOXELS * repeats
    for method in ("ols", "wls", "rwls"):
        for kind, values in TENSORS.items():
            D = np.repeat(tensors(values, 1), count, axis=0)
            if method == "ols":  # equal weights suppose equal errors of log S
                rng = np.random.default_rng(3)
                data = signals(gtab, D, 0.0)
                data *= np.exp(2 * SIGMA / S0 * rng.standard_normal(data.shape))
            else:
                data = signals(gtab, D, SIGMA)
            fits = fit_tensors(dti.design_matrix(gtab), data, method, errors=True)
            width = t.ppf(0.975, fits.errors.freedom)
            anisotropy = float(dti.fractional_anisotropy(np.array(values)))
            for name, truth in (("FA", anisotropy), ("MD", float(np.mean(values)))):
                estimate, error = (getattr(part, name.lower()) for part in (fits, fits.errors))
                hit = np.abs(estimate - truth) <= width * error
                share = hit[np.isfinite(error)].mean()
                yield f"`{method}`", f"{name}, {kind}", share, np.sqrt(share * (1 - share) / count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=400, help="data sets of each row")
    parser.add_argument("--only", choices=("predictions", "tensors"), help="only these rows")
    parser.add_argument("--docs", type=Path, help="page whose table is renewed; needs all rows")
    options = parser.parse_args()
    if options.docs is not None and options.only is not None:
        parser.error("--docs needs all rows: leave out --only")
    use_one_thread()
    warnings.simplefilter("ignore")
    print(f"coverage, {machine()}", file=sys.stderr)
    lines = ["| loss or method | data | coverage |", "|---|---|---|"]
    print("\n".join(lines))
    for name, rows in (("predictions", predictions), ("tensors", maps)):
        if options.only not in (None, name):
            continue
        for first, second, share, error in rows(options.repeats):
            lines.append(f"| {first} | {second} | {share:.3f} ± {error:.3f} |")
            print(lines[-1], flush=True)
    if options.docs is not None:
        write_between(options.docs, BEGIN, END, "\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
