"""Measurement operators; defined in `posquad.problems.measurements`."""

from posquad.problems.measurements import Dense as Dense
from posquad.problems.measurements import GaussianPopulation as GaussianPopulation
from posquad.problems.measurements import Measurements as Measurements
from posquad.problems.measurements import RankOne as RankOne
