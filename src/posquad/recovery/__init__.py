"""From quadratic measurements to a factor: initializers (and, later, solvers)."""

from posquad.recovery.initializers import moment_matrix as moment_matrix
from posquad.recovery.initializers import positive_truncation as positive_truncation
from posquad.recovery.initializers import spectral_initializer as spectral_initializer
