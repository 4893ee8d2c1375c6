"""Measurement operators and objectives: the data and the losses."""

from posquad.problems.measurements import Dense as Dense
from posquad.problems.measurements import GaussianPopulation as GaussianPopulation
from posquad.problems.measurements import Measurements as Measurements
from posquad.problems.measurements import RankOne as RankOne
from posquad.problems.objectives import LeastSquares as LeastSquares
from posquad.problems.objectives import Objective as Objective
from posquad.problems.objectives import PopulationRisk as PopulationRisk
from posquad.problems.objectives import SmoothObjective as SmoothObjective
