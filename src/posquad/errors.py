"""Errors of posquad; defined in `posquad.core.errors`."""

from posquad.core.errors import DomainError as DomainError
from posquad.core.errors import DtypeError as DtypeError
from posquad.core.errors import FiberError as FiberError
from posquad.core.errors import InfeasibleError as InfeasibleError
from posquad.core.errors import Interrupted as Interrupted
from posquad.core.errors import MissingExtraError as MissingExtraError
from posquad.core.errors import NonFiniteError as NonFiniteError
from posquad.core.errors import PosquadError as PosquadError
from posquad.core.errors import RankDeficientError as RankDeficientError
from posquad.core.errors import RowError as RowError
from posquad.core.errors import ShapeError as ShapeError
from posquad.core.errors import TangencyError as TangencyError
