"""Bounds from effective curvature; defined in `posquad.theory.effective`."""

from posquad.theory.effective import curvature_interval as curvature_interval
from posquad.theory.effective import effective_descent_envelope as effective_descent_envelope
from posquad.theory.effective import effective_flow_envelope as effective_flow_envelope
from posquad.theory.effective import effective_radius as effective_radius
from posquad.theory.effective import effective_secant_bound as effective_secant_bound
from posquad.theory.effective import effective_step as effective_step
from posquad.theory.effective import interpolant_radius as interpolant_radius
from posquad.theory.effective import residual_radius as residual_radius
from posquad.theory.effective import stability_constant as stability_constant
