"""Read and write data files, and read fitted models."""
