"""The normal operator on all symmetric matrices; defined in `posquad.curvature.full_space`."""

from posquad.curvature.full_space import OperatorBounds as OperatorBounds
from posquad.curvature.full_space import operator_bounds as operator_bounds
from posquad.curvature.full_space import operator_deviation as operator_deviation
