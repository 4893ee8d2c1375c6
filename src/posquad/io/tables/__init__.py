"""Data files (CSV, Parquet, NumPy) as inputs X, responses y and weights.

A file that cannot be used raises `TableError`: one sentence that names the file, the line and the
column, what was expected there and what was found. Nothing is repaired, and pickles are never
loaded.
"""

from posquad.io.tables._arrays import arrays as arrays
from posquad.io.tables._memory import available_memory as available_memory
from posquad.io.tables._table import Table as Table
from posquad.io.tables._table import TableError as TableError
from posquad.io.tables.reading import Samples as Samples
from posquad.io.tables.reading import open_table as open_table
from posquad.io.tables.reading import read_samples as read_samples
from posquad.io.tables.writing import write_columns as write_columns
