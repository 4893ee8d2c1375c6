"""Geometry of the quotient of full-rank factors by orthogonal matrices (paper, section 2)."""

from posquad.geometry.quotient import differential as differential
from posquad.geometry.quotient import dimension as dimension
from posquad.geometry.quotient import exp as exp
from posquad.geometry.quotient import fiber_rotation as fiber_rotation
from posquad.geometry.quotient import geodesic as geodesic
from posquad.geometry.quotient import horizontal_basis as horizontal_basis
from posquad.geometry.quotient import horizontal_lift as horizontal_lift
from posquad.geometry.quotient import horizontal_projection as horizontal_projection
from posquad.geometry.quotient import log as log
from posquad.geometry.quotient import norm_bounds as norm_bounds
from posquad.geometry.quotient import procrustes_alignment as procrustes_alignment
from posquad.geometry.quotient import procrustes_distance as procrustes_distance
from posquad.geometry.quotient import quotient_metric as quotient_metric
from posquad.geometry.quotient import vertical_projection as vertical_projection
from posquad.geometry.transport import holonomy as holonomy
from posquad.geometry.transport import parallel_transport as parallel_transport
from posquad.geometry.transport import rotation_angle as rotation_angle
