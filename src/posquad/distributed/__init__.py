"""Recovery on clusters: the workers that hold the rows form a process group."""

from posquad.distributed.cluster import dask_recover as dask_recover

__all__ = ["dask_recover"]
