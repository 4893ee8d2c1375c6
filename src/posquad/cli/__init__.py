"""The command line `posquad`."""
