"""Positive quadratic networks f_U(x) = x'UU'x: geometry, dynamics, curvature and theory."""

from posquad import errors as errors
from posquad import geometry as geometry
from posquad import labels as labels
from posquad import predictor as predictor
from posquad import recovery as recovery
from posquad import selection as selection
from posquad import theory as theory
from posquad._version import __version__ as __version__
from posquad.curvature import Spectrum as Spectrum
from posquad.curvature import effective_spectrum as effective_spectrum
from posquad.curvature import population_spectrum as population_spectrum
from posquad.dynamics import gradient_descent as gradient_descent
from posquad.dynamics import gradient_flow as gradient_flow
from posquad.fullspace import operator_bounds as operator_bounds
from posquad.fullspace import operator_deviation as operator_deviation
from posquad.measurements import Dense as Dense
from posquad.measurements import GaussianPopulation as GaussianPopulation
from posquad.measurements import RankOne as RankOne
from posquad.objectives import LeastSquares as LeastSquares
from posquad.objectives import PopulationRisk as PopulationRisk
from posquad.objectives import SmoothObjective as SmoothObjective
from posquad.predictor import predictor_step as predictor_step
from posquad.recovery import spectral_initializer as spectral_initializer
from posquad.status import Status as Status
from posquad.trajectory import Trajectory as Trajectory
