"""Checks of arguments that are not arrays; this module does not load torch."""

from __future__ import annotations

import numpy as np

from posquad.core.errors import DomainError

__all__ = ["require_boolean"]


def require_boolean(**given: object) -> None:
    """Require that every named argument is True or False.

    >>> require_boolean(certify="no")
    Traceback (most recent call last):
    posquad.core.errors.DomainError: certify: expected True or False; got 'no'
    """
    for name, value in given.items():
        if not isinstance(value, bool | np.bool_):
            raise DomainError(name, expected="True or False", got=repr(value))
