"""What a step of `recover` may cost: bytes of its arrays, and operations, which are its seconds.

An answer depends on these numbers only by the way it is reached: a limit leads to another solver.
"""

from __future__ import annotations

# Bytes of the arrays of a step. A choice: 128 MB, a small share of the memory of any machine.
BYTES = 2**27
# Multiplications of a step. Measured: one core takes 0.2 s for a system of 1500 unknowns, n^3 / 3.
OPERATIONS = 1500**3 // 3
# Entries of X below which a pass over it hardly costs more than its calls. Measured: several
# threads are no faster, and 7 to 50 times as slow where the cores are busy.
BLOCK = 2**20
# Multiplications that cost less than the calls of a step. Derived: up to here BLAS uses one thread.
_CALLS = 2**18
# Unknowns up to which a dense step costs only its calls. Measured on 376 small problems: those that
# are exact take 8 times as long at double the value, those with noise 2 times at half of it.
_FEW_UNKNOWNS = 60
# Unknowns up to which a dense step costs less than reweighting. A choice: half and double do as
# well.
_MODERATE_UNKNOWNS = 250


def fits(entries: int) -> bool:
    """Return whether so many numbers in double precision may be held in a step."""
    return 8 * entries <= BYTES


def at_once(entries: int) -> int:
    """Return how many arrays of so many numbers are worked on at once: with a copy of each."""
    return max(1, BYTES // (16 * max(1, entries)))


def is_quick(multiplications: float) -> bool:
    """Return whether a step may take so many multiplications."""
    return multiplications <= OPERATIONS


def solves(unknowns: int) -> bool:
    """Return whether a linear system of this size may be solved in a step: up to 1500 by default.

    >>> solves(1500), solves(1501)
    (True, False)
    """
    return is_quick(unknowns**3 / 3)


def takes_dense_steps(n: int, d: int, rank: int, unknowns: int) -> bool:
    """Return whether a few dense steps may refine a factor: J fits twice, and J'J is factorized."""
    return fits(2 * n * d * rank) and is_quick(unknowns**3)


def is_overhead(n: int, d: int, rank: int, unknowns: int) -> bool:
    """Return whether a dense step costs only its calls; a pass over X takes 2 n d r operations."""
    return unknowns <= _FEW_UNKNOWNS and 2 * n * d * rank <= _CALLS


def is_small(n: int, d: int, rank: int, unknowns: int) -> bool:
    """Return whether a dense step costs only its calls even if they are those of NumPy."""
    return n * (d * rank) ** 2 <= _CALLS and is_overhead(n, d, rank, unknowns)


def is_moderate(unknowns: int) -> bool:
    """Return whether a dense step costs less than reweighting."""
    return unknowns <= _MODERATE_UNKNOWNS
