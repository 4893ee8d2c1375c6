"""Training dynamics: gradient flow, gradient descent, and the dynamics of the predictor."""

from posquad.dynamics.gradient import gradient_descent as gradient_descent
from posquad.dynamics.gradient import gradient_flow as gradient_flow
from posquad.dynamics.predictor_dynamics import correction_bound as correction_bound
from posquad.dynamics.predictor_dynamics import (
    discretization_correction as discretization_correction,
)
from posquad.dynamics.predictor_dynamics import exact_rank_margin as exact_rank_margin
from posquad.dynamics.predictor_dynamics import flow_field as flow_field
from posquad.dynamics.predictor_dynamics import predictor_step as predictor_step
from posquad.dynamics.predictor_dynamics import riemannian_gradient as riemannian_gradient
from posquad.dynamics.predictor_dynamics import sufficient_rank_margin as sufficient_rank_margin
from posquad.dynamics.trajectory import Trajectory as Trajectory
