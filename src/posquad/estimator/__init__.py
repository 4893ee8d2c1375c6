"""The scikit-learn estimator; requires the extra `posquad[estimator]`."""

from posquad.core.extras import import_extra

for _package in ("sklearn", "safetensors"):
    import_extra(_package, "estimator")

from posquad.estimator.regressor import PositiveQuadraticRegressor as PositiveQuadraticRegressor  # noqa: E402,
