"""From quadratic measurements to a predictor: initializers, solvers, and `recover`, the default."""

from posquad.recovery._ranks import RankPath as RankPath
from posquad.recovery.descent import data_driven_descent as data_driven_descent
from posquad.recovery.descent import data_driven_step as data_driven_step
from posquad.recovery.descent import scaled_descent as scaled_descent
from posquad.recovery.direct import direct_least_squares as direct_least_squares
from posquad.recovery.gauss_newton import gauss_newton as gauss_newton
from posquad.recovery.initializers import moment_matrix as moment_matrix
from posquad.recovery.initializers import positive_truncation as positive_truncation
from posquad.recovery.initializers import spectral_initializer as spectral_initializer
from posquad.recovery.irls import logdet_irls as logdet_irls
from posquad.recovery.lbfgs import population_lbfgs as population_lbfgs
from posquad.recovery.levenberg import levenberg_marquardt as levenberg_marquardt
from posquad.recovery.policy import Recovery as Recovery
from posquad.recovery.policy import recover as recover
from posquad.recovery.predictor import Predictor as Predictor
