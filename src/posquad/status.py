"""Outcomes of iterations; defined in `posquad.core.status`."""

from posquad.core.status import Status as Status
