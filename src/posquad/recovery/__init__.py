"""Recover a predictor from quadratic measurements: `recover`, initializers and solvers."""

from posquad.recovery.api import Recovery as Recovery
from posquad.recovery.api import recover as recover
from posquad.recovery.initializers import moment_matrix as moment_matrix
from posquad.recovery.initializers import positive_truncation as positive_truncation
from posquad.recovery.initializers import spectral_initializer as spectral_initializer
from posquad.recovery.psd_operator import Predictor as Predictor
from posquad.recovery.ranks import RankPath as RankPath
from posquad.recovery.solvers.descent import data_driven_descent as data_driven_descent
from posquad.recovery.solvers.descent import data_driven_step as data_driven_step
from posquad.recovery.solvers.descent import scaled_descent as scaled_descent
from posquad.recovery.solvers.direct import direct_least_squares as direct_least_squares
from posquad.recovery.solvers.gauss_newton import gauss_newton as gauss_newton
from posquad.recovery.solvers.irls import logdet_irls as logdet_irls
from posquad.recovery.solvers.lbfgs import population_lbfgs as population_lbfgs
from posquad.recovery.solvers.levenberg import levenberg_marquardt as levenberg_marquardt
from posquad.recovery.streams.checkpoint import Checkpoint as Checkpoint
