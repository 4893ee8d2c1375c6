"""The scikit-learn estimator; requires the extra `posquad[estimator]`."""

from posquad.core.extras import optional

for _package in ("sklearn", "safetensors"):
    optional(_package, "estimator")

from posquad.estimator.regressor import PositiveQuadraticRegressor as PositiveQuadraticRegressor  # noqa: E402,
