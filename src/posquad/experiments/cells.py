"""Published and measured values as text, for tables and sentences."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["format_value", "interval", "measured_cell", "published_cell", "shorten_numbers"]

_LONG_NUMBER = re.compile(r"(?<![\w.])\d{10,}(?:\.\d+)?(?!\w|\.\d)")


def shorten_numbers(text: str) -> str:
    """Rewrite numbers with ten or more digits before the point in scientific notation.

    Unusual parameters give such numbers in sentences that are written for usual ones.

    >>> shorten_numbers("a ratio of 123456789012345678901234.50 at n = 1600000")
    'a ratio of 1.235e+23 at n = 1600000'
    """
    return _LONG_NUMBER.sub(lambda found: f"{float(found[0]):.3e}", text)


def format_value(value: Any) -> str:
    """Format a published or measured value in a few characters.

    >>> format_value(0.000123456), format_value([1.0, 0.5]), format_value(True), format_value(None)
    ('1.23456e-04', '(1, 0.5)', 'true', 'none')
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)):
        return f"({', '.join(format_value(entry) for entry in value)})"
    size = abs(float(value))
    return f"{value:.5e}" if size and (size < 1e-3 or size >= 1e6) else f"{value:.7g}"


def measured_cell(value: Any) -> str:
    """Format a measured value; a distribution as its median and interval.

    >>> measured_cell({"median": 1.0, "interval": [0.5, 1.5], "percentile": 50, "samples": 9})
    '1 [0.5, 1.5]'
    """
    if isinstance(value, dict):
        return f"{format_value(value['median'])} {interval(value)}"
    return format_value(value)


def published_cell(claim: Mapping[str, Any]) -> str:
    """Format a published value with the paper's digits; a dash for one of our own checks.

    >>> published_cell({"source": "paper", "published": True, "tolerance": {"rule": "at-most"}})
    'in words'
    """
    if claim["source"] != "paper":
        return "\N{EM DASH}"
    return "in words" if claim["published"] is True else format_value(claim["published"])


def interval(summary: Mapping[str, Any]) -> str:
    """Format the interval of a distribution.

    >>> interval({"interval": [0.5, 1.5]})
    '[0.5, 1.5]'
    """
    low, high = summary["interval"]
    return f"[{low:.5g}, {high:.5g}]"
