"""Experiments (one package each), the published claims, and the records of runs."""
