"""Sweeps: one function computed over a grid of cells, with a store that survives any end."""

from posquad.sweep.declaration import Sweep as Sweep
from posquad.sweep.declaration import load_sweep as load_sweep
from posquad.sweep.driver import Swept as Swept
from posquad.sweep.driver import run_sweep as run_sweep
from posquad.sweep.grid import listed as listed
from posquad.sweep.grid import product as product
from posquad.sweep.table import Table as Table
from posquad.sweep.table import read_table as read_table
from posquad.sweep.transition import transition as transition

__all__ = ["Sweep", "Swept", "Table", "listed", "load_sweep", "product", "read_table", "run_sweep",
           "transition"]  # fmt: skip
