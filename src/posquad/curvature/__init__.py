"""Spectra of the Hessian on the quotient and of the normal operator on symmetric matrices."""

from posquad.curvature.full_space import OperatorBounds as OperatorBounds
from posquad.curvature.full_space import operator_bounds as operator_bounds
from posquad.curvature.full_space import operator_deviation as operator_deviation
from posquad.curvature.spectrum import Spectrum as Spectrum
from posquad.curvature.spectrum import effective_spectrum as effective_spectrum
from posquad.curvature.spectrum import population_spectrum as population_spectrum
