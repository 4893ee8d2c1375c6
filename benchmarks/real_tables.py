"""Cross-validated scores on tables of real data: the table of the README and docs/measured.md.

    python benchmarks/real_tables.py [--readme README.md] [--docs docs/measured.md]

R^2, mean over the five folds of `KFold(5, shuffle=True, random_state=0)`, for the tables that
scikit-learn ships. The positive quadratic model gets standardized columns and a column of ones; its
rank is chosen within each training fold, the default. Linear
regression and a random forest run with the default settings of scikit-learn. The targets of iris
and wine are a measured column, predicted from the other columns.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from posquad.estimator import PositiveQuadraticRegressor
from timing import write_between

BEGIN, END = "<!-- scores -->", "<!-- /scores -->"


MODELS: dict[str, BaseEstimator] = {
    "posquad, column of ones": make_pipeline(
        StandardScaler(), PolynomialFeatures(1), PositiveQuadraticRegressor()
    ),
    "linear regression": LinearRegression(),
    "random forest": RandomForestRegressor(random_state=0),
}


@dataclass(frozen=True, eq=False)
class Problem:
    """One table: what is predicted, from what."""

    name: str
    X: np.ndarray
    y: np.ndarray
    compact: bool = False  # whether the README repeats it


def problems() -> list[Problem]:
    diabetes, iris, wine, tumours = (
        load_diabetes(scaled=False), load_iris(), load_wine(), load_breast_cancer(),
    )  # fmt: skip
    means = list(tumours.feature_names[:10])
    sizes = [f"mean {name}" for name in ("radius", "texture", "smoothness", "symmetry")]
    return [
        Problem("diabetes: progression after a year", diabetes.data, diabetes.target, compact=True),
        from_columns("breast cancer: mean area of nuclei", tumours, "mean area", sizes, True),
        from_columns("breast cancer: error of area", tumours, "area error", means),
        from_columns("breast cancer: worst concavity", tumours, "worst concavity", means, True),
        from_columns("iris: petal width", iris, "petal width (cm)", compact=True),
        from_columns("wine: proline", wine, "proline", compact=True),
        from_columns("wine: colour intensity", wine, "color_intensity"),
        from_columns("wine: alcohol", wine, "alcohol"),
        from_columns("wine: flavanoids", wine, "flavanoids"),
    ]


def from_columns(
    name: str, table: Any, target: str, columns: list[str] | None = None, compact: bool = False
) -> Problem:
    """Predict one column of a table from the given columns, or from all others."""
    names = list(table.feature_names)
    columns = columns or [other for other in names if other != target]
    X = table.data[:, [names.index(column) for column in columns]]
    return Problem(name, X, table.data[:, names.index(target)], compact)


def row(problem: Problem) -> str:
    folds = KFold(5, shuffle=True, random_state=0)
    scores = [
        cross_val_score(model, problem.X, problem.y, cv=folds).mean() for model in MODELS.values()
    ]
    shown = [f"**{s:.2f}**" if f"{s:.2f}" == f"{max(scores):.2f}" else f"{s:.2f}" for s in scores]
    size = f"{problem.X.shape[0]} x {problem.X.shape[1]}"
    return f"| {problem.name} | {size} | {' | '.join(shown)} |"


def table(rows: list[str]) -> str:
    head = f"| predicted | rows x columns | {' | '.join(MODELS)} |"
    return "\n".join([head, "|---" * (len(MODELS) + 2) + "|", *rows])


def renew(path: Path, rows: list[str]) -> None:
    """Write the table between the marks of a page."""
    write_between(path, BEGIN, END, f"\n{table(rows)}\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--readme", type=Path, help="where to renew the short table")
    parser.add_argument("--docs", type=Path, help="where to renew the whole table")
    options = parser.parse_args()
    rows = {}
    for problem in problems():
        rows[problem] = row(problem)
        print(rows[problem], flush=True)
    if options.readme is not None:
        renew(options.readme, [text for problem, text in rows.items() if problem.compact])
    if options.docs is not None:
        renew(options.docs, list(rows.values()))


if __name__ == "__main__":
    main()
