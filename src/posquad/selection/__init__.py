"""Which interpolant training selects when several fit the measurements (paper, section 4)."""

from posquad.selection.awakening import awakening_path as awakening_path
from posquad.selection.descent import descent_constants as descent_constants
from posquad.selection.descent import descent_limit as descent_limit
from posquad.selection.descent import descent_observables as descent_observables
from posquad.selection.descent import descent_path as descent_path
from posquad.selection.families import commutator_size as commutator_size
from posquad.selection.families import dialed_expansion as dialed_expansion
from posquad.selection.families import dialed_family as dialed_family
from posquad.selection.first_order import first_order_selection as first_order_selection
from posquad.selection.flow import mirror_flow as mirror_flow
from posquad.selection.interpolant import distance_to_minimum_trace as distance_to_minimum_trace
from posquad.selection.interpolant import minimum_trace_interpolant as minimum_trace_interpolant
from posquad.selection.projection import bregman_divergence as bregman_divergence
from posquad.selection.projection import bregman_projection as bregman_projection
from posquad.selection.reduction import commuting_family as commuting_family
from posquad.selection.reduction import joint_spectral_reduction as joint_spectral_reduction
from posquad.selection.trace import check_trace_bound as check_trace_bound
from posquad.selection.trace import entropic_minimizer as entropic_minimizer
from posquad.selection.trace import minimum_trace as minimum_trace
from posquad.selection.trace import trace_gap_bound as trace_gap_bound
from posquad.selection.von_neumann import von_neumann_divergence as von_neumann_divergence
from posquad.selection.von_neumann import von_neumann_projection as von_neumann_projection
