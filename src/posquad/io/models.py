"""Load fitted models, and find the columns of a table that they need."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from posquad.core.errors import first_line
from posquad.core.extras import import_extra
from posquad.core.files import read_json
from posquad.io.tables import Rules, Table, TableError
from posquad.io.tables.choosing import Choice, choose_columns
from posquad.io.tables.encoding import NO_RULES, Places

__all__ = ["columns_for", "is_certificate", "load_model", "predict", "table_rules"]

MODEL = "model"  # stem of the files that a fit writes


def load_model(path: Path) -> Any:
    """Load the model of a fit from its model.json, or from the folder of the fit.

    >>> load_model(Path("no/such/model.json"))
    Traceback (most recent call last):
    posquad.io.tables._table.TableError: no/such/model.json: expected a fitted model; got no such file
    """  # noqa: E501
    place = path / f"{MODEL}.json" if path.is_dir() else path
    named = place if place.suffix == ".json" else place.with_name(f"{place.name}.json")
    if not named.is_file():
        expected, got = "a fitted model", "no such file"
        if path.is_file():
            expected, got = "a fitted model: the model.json of a fit, or its folder", "another file"
        elif path.is_dir():
            got = f"a folder without {MODEL}.json"
        raise TableError(str(path), expected=expected, got=got)
    model = import_extra("posquad.estimator", "lab").PositiveQuadraticRegressor.load(named)
    if not hasattr(model, "components_"):
        got = "a stream that is not fitted yet (call partial_fit with refit=True)"
        raise TableError(str(path), expected="a fitted model", got=got)
    return model


def table_rules(model: Any, path: Path) -> Rules:
    """Return the rules by which the table of a fit became numbers; `path` is for messages.

    Models of earlier versions, and those fitted to arrays, have no rules: all columns are numbers.

    >>> from types import SimpleNamespace
    >>> table_rules(SimpleNamespace(), Path("model.json")).missing
    'refuse'
    """
    body = getattr(model, "table_rules_", None)
    if body is None:
        return NO_RULES
    try:
        rules = Rules.from_json(body)
        features = sum(len(each.features) for each in rules.inputs)
        if {features, len(rules.means)} - {0, model.n_features_in_}:
            raise ValueError("rules of a table for another number of inputs")
    except ValueError as problem:
        raise TableError(str(path), expected="a fitted model", got=first_line(problem)) from None
    return rules


def is_certificate(path: Path) -> bool:
    """Tell whether a JSON file is marked as a certificate; its content is not checked here.

    >>> is_certificate(Path("no/such/file.json"))
    False
    """
    try:
        body = read_json(path)
    except (OSError, ValueError):
        return False
    return isinstance(body, dict) and str(body.get("format")).startswith("posquad certificate")


def predict(model: Any, X: np.ndarray, *, errors: bool = False) -> Any:
    """Predict `[n]` responses from inputs in the model's order, with standard errors if requested.

    >>> from posquad.estimator import PositiveQuadraticRegressor
    >>> X = np.random.default_rng(0).standard_normal((20, 2))
    >>> model = PositiveQuadraticRegressor(1).fit(X, X[:, 0] ** 2, feature_names=["a", "b"])
    >>> bool(np.allclose(predict(model, X), X[:, 0] ** 2))
    True
    """
    with warnings.catch_warnings():
        # the columns were put in order by the caller
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        return model.predict(X, return_std=True) if errors else model.predict(X)


def columns_for(
    model: Any,
    table: Table,
    *,
    rules: Rules = NO_RULES,
    response: str | None = None,
    weights: str | None = None,
    features: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    optional_response: bool = True,
) -> Choice:
    """Choose the columns that a model needs: by name if both have names, else by position.

    A table without names that has as many columns as that of the fit has its response, its weights
    and its other columns in the same places.

    >>> from types import SimpleNamespace
    >>> model = SimpleNamespace(n_features_in_=2, feature_names_in_=["a", "b"])
    >>> table = Table(Path("t.csv"), ("b", "id", "a"), 1, True, read=lambda names: np.zeros((1, 1)))
    >>> columns_for(model, table).features
    ('a', 'b')
    """
    names = getattr(model, "feature_names_in_", None)
    count = model.n_features_in_
    if rules.inputs:
        names = None if names is None else [each.column for each in rules.inputs]
        count = len(rules.inputs)
    if features is None and names is not None and table.named:
        features = [str(name) for name in names]
        _require_names(table, features)
    places = _same_places(rules.places, table, response)
    if features is None and not drop and places is not None:
        features, response = places.inputs, places.response
    trained = getattr(model, "response_name_", None) if table.named else None
    by_name = response is None and trained is not None
    if by_name and (trained in table.names or not optional_response):
        response = trained
    choice = choose_columns(
        table,
        response=response,
        weights=weights,
        features=features,
        drop=drop,
        optional_response=optional_response,
    )
    if by_name and choice.response != trained:  # another column may happen to be called y
        choice = replace(choice, response=None)
    if len(choice.features) != count:
        raise TableError(
            str(table.path),
            expected=f"{count} columns of inputs, as the model has (see --features)",
            got=f"{len(choice.features)}: {', '.join(choice.features[:8])}",
        )
    return choice


def _same_places(places: Places | None, table: Table, response: str | None) -> Places | None:
    """Return the places of the columns in the fit, if those of a table may be the same."""
    if places is None or table.named or table.response is not None:
        return None
    same = len(table.names) == places.count and response in (None, places.response)
    return places if same else None


def _require_names(table: Table, features: Sequence[str]) -> None:
    missing = [name for name in features if name not in table.names]
    if missing:
        words = ", ".join(repr(name) for name in missing[:8])
        noun = "column" if len(missing) == 1 else "columns"
        held = ", ".join(table.names[:12]) + (", ..." if len(table.names) > 12 else "")
        expected = f"the {noun} {words} of the model"
        raise TableError(str(table.path), expected=expected, got=held)
