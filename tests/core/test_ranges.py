"""The table of ranges: its derivations in exact arithmetic, and the texts that name its numbers."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from posquad.core.linalg import norm
from posquad.core.ranges import ALL_RANGES, CERTIFIED_ENTRIES, LOSS_TERMS, tiny
from posquad.dynamics import gradient_flow

ROOT = Path(__file__).parents[2]
DOUBLE, SINGLE = torch.finfo(torch.float64), torch.finfo(torch.float32)
ENDS = [
    (name, limits, ends)
    for name, table in ALL_RANGES.items()
    for limits, ends in ((DOUBLE, table.double), (SINGLE, table.single))
    if ends is not None
]

# The power whose low end is a normal number, the one whose high end is finite, and the number of
# such powers with a finite sum.
POWERS = {
    "UNSCALED_INPUTS": (8, 8, 1),
    "KERNEL_INPUTS": (8, 8, 1),
    "RESPONSES": (2, 2, 10**108),
    "FILE_NUMBERS": (4, 4, 10**108),
    "CERTIFIED_ENTRIES": (8, 8, 1),
    "DIFFUSION_WEIGHTS": (None, 2, 10**47),
    "PLAIN_NORMS": (2, 2, 1),
    "PLAIN_LENGTHS": (2, 2, 1),
    "ROW_ENTRIES": (4, 4, 1),
    "ANSWERS": (1, 1, 1),
    "FRAME_VALUES": (2, 4, 1),
    "DIAGNOSED_FACTORS": (4, 4, 9999),
    "LOSS_TERMS": (1, 1, 2**23),
    "BOUND_SIZES": (1, 1, 1),
}


@pytest.mark.parametrize(("name", "limits", "ends"), ENDS)
def test_powers_at_the_ends_are_normal_and_finite(name, limits, ends):
    low_power, high_power, count = POWERS[name]
    unit = 1 + 8 * Fraction(limits.eps)  # roots are rounded
    assert 0 <= ends.low < ends.high
    if low_power is not None:
        assert (Fraction(ends.low) * unit) ** low_power >= Fraction(limits.tiny)
    assert count * (Fraction(ends.high) / unit) ** high_power <= Fraction(limits.max)


def test_underflow_in_the_proofs_is_below_their_bound():
    """2^-1074 times six entries and 1e13 terms is at most UNDERFLOW."""
    from posquad.certificates.proofs.rounding import UNDERFLOW

    lost = Fraction(2) ** -1074 * Fraction(CERTIFIED_ENTRIES.double.high) ** 6 * 10**13
    assert lost <= Fraction(UNDERFLOW)


def test_the_range_of_a_precision():
    for table in ALL_RANGES.values():
        assert table.of() == table.of(torch.float64) == table.double
        assert table.of(torch.float32) == (table.single or table.double)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_tiny_is_the_smallest_normal_number(dtype):
    smallest = 2.0 ** (-1022 if dtype == torch.float64 else -126)
    tensor = torch.zeros(2, dtype=dtype)
    assert tiny(dtype) == tiny(tensor) == tiny(tensor.numpy()) == smallest
    assert tiny() == 2.0**-1022
    assert bool((tensor.clamp_min(tiny(tensor)) > 0).all())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_norms_below_the_plain_range_keep_their_digits(dtype):
    """3-4-5 triangles at the low end of the range, and at its square root of eps."""
    low = 2.0 ** round(np.log2(ALL_RANGES["PLAIN_NORMS"].of(dtype).low))
    for size in (low, low / 2**10, 4 * low):
        triangle = size * torch.tensor([[3.0, 4.0]], dtype=dtype)
        assert float(norm(triangle)) == 5 * size


def test_the_documentation_of_flows_names_the_range():
    low, high = LOSS_TERMS.double
    text = " ".join(str(gradient_flow.__doc__).split())
    ends = f"1e{np.ceil(np.log10(low)):.0f} to 1e{np.floor(np.log10(high)):.0f}"
    assert f"(outside {ends} in double precision)" in text


def shown(ends):
    return "-" if ends is None else f"{ends.low:.1e} to {ends.high:.1e}"


def test_the_table_of_the_documentation_is_the_table_of_the_code():
    text = (ROOT / "docs" / "api" / "core.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `") and " to " in line]
    assert rows == [
        f"| `{name}` | {table.meaning} | {shown(table.double)} | {shown(table.single)} "
        f"| {table.derivation} | {table.outside} |"
        for name, table in ALL_RANGES.items()
    ]
