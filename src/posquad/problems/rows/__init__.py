"""Rows of inputs wherever they are: in memory, on disk, in pieces, or in several processes."""

from posquad.problems.rows.disk import from_npy as from_npy
from posquad.problems.rows.group import sharded as sharded
from posquad.problems.rows.iterator import from_iterator as from_iterator
from posquad.problems.rows.parquet import from_parquet as from_parquet
from posquad.problems.rows.source import Rows as Rows
from posquad.problems.rows.source import in_memory as in_memory
