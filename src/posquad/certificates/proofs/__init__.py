"""Proofs in floating point, with bounds on all rounding errors."""
