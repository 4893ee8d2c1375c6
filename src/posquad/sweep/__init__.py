"""Sweeps: one function computed over a grid of cells, with a store that survives any end.

Names are imported when they are first used: a worker needs only some of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posquad.sweep.declaration import Sweep as Sweep
    from posquad.sweep.declaration import load_sweep as load_sweep
    from posquad.sweep.driver import Swept as Swept
    from posquad.sweep.driver import run_sweep as run_sweep
    from posquad.sweep.grid import joined as joined
    from posquad.sweep.grid import listed as listed
    from posquad.sweep.grid import product as product
    from posquad.sweep.state import SweepStatus as SweepStatus
    from posquad.sweep.state import sweep_status as sweep_status
    from posquad.sweep.table import Table as Table
    from posquad.sweep.table import export as export
    from posquad.sweep.table import read_table as read_table
    from posquad.sweep.transitions import transition as transition

__all__ = [
    "Sweep",
    "SweepStatus",
    "Swept",
    "Table",
    "export",
    "joined",
    "listed",
    "load_sweep",
    "product",
    "read_table",
    "run_sweep",
    "sweep_status",
    "transition",
]

_HOME = {
    "Sweep": "declaration",
    "SweepStatus": "state",
    "Swept": "driver",
    "Table": "table",
    "export": "table",
    "joined": "grid",
    "listed": "grid",
    "load_sweep": "declaration",
    "product": "grid",
    "read_table": "table",
    "run_sweep": "driver",
    "sweep_status": "state",
    "transition": "transitions",  # a module of the same name would hide the function
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'posquad.sweep' has no attribute {name!r}")
    value = getattr(import_module(f"posquad.sweep.{_HOME[name]}"), name)
    globals()[name] = value
    return value
