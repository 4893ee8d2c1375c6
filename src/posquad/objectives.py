"""Objectives; defined in `posquad.problems.objectives`."""

from posquad.problems.objectives import LeastSquares as LeastSquares
from posquad.problems.objectives import Objective as Objective
from posquad.problems.objectives import PopulationRisk as PopulationRisk
from posquad.problems.objectives import SmoothObjective as SmoothObjective
