"""Data files (CSV, Excel, Parquet, NumPy) as inputs X, responses y and weights.

A file that cannot be used raises `TableError`: one sentence that names the file, the line and the
column, what was expected there and what was found. Nothing is repaired unless it is asked for, and
then it is said; pickles are never loaded.
"""

from posquad.io.tables._arrays import arrays as arrays
from posquad.io.tables._cells import PLAIN as PLAIN
from posquad.io.tables._cells import NumberFormat as NumberFormat
from posquad.io.tables._memory import available_memory as available_memory
from posquad.io.tables._streamed import Extremes as Extremes
from posquad.io.tables._table import STDIN as STDIN
from posquad.io.tables._table import Caching as Caching
from posquad.io.tables._table import Table as Table
from posquad.io.tables._table import TableError as TableError
from posquad.io.tables.encoding import Encoding as Encoding
from posquad.io.tables.encoding import Request as Request
from posquad.io.tables.encoding import Rules as Rules
from posquad.io.tables.opening import open_table as open_table
from posquad.io.tables.reading import Samples as Samples
from posquad.io.tables.reading import read_samples as read_samples
from posquad.io.tables.writing import write_columns as write_columns
