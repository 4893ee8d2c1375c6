"""The result of a certificate in one sentence."""

from __future__ import annotations

import math

from posquad.certificates import Certificate

__all__ = ["certificate_words", "misses_responses"]


def misses_responses(certificate: Certificate) -> bool:
    """Tell whether the answer fails to reproduce the responses (noise, or a wrong rank).

    >>> import numpy as np
    >>> from posquad import LeastSquares, RankOne, certify
    >>> X = np.random.default_rng(0).standard_normal((20, 2))
    >>> misses_responses(certify(LeastSquares(RankOne(X), X[:, 0] ** 2 + 1), np.eye(2)[:, :1]))
    True
    """
    value = certificate.interpolation.value
    known = value is not None and math.isfinite(value)
    return known and not certificate.interpolation.proved


def certificate_words(certificate: Certificate) -> str:
    """Say in a sentence what is proved.

    >>> import numpy as np
    >>> from posquad import LeastSquares, RankOne, certify
    >>> X = np.random.default_rng(0).standard_normal((20, 2))
    >>> certificate_words(certify(LeastSquares(RankOne(X), X[:, 0] ** 2 + 1), np.eye(2)[:, :1]))
    'Unique for its own fitted values; the responses are not fitted exactly, so nothing is proved about them.'
    """  # noqa: E501
    if certificate.proved:
        return (
            "Proved to be the only answer: no other positive semidefinite matrix of any rank "
            "explains the data as well."
        )
    if misses_responses(certificate):
        unique = certificate.global_uniqueness.proved
        start = "Unique for its own fitted values; the" if unique else "The"
        return f"{start} responses are not fitted exactly, so nothing is proved about them."
    return (
        "It is not proved that this is the only answer. The table lists what was proved and what "
        "failed."
    )
