"""Experiment 6: minimum trace and entropic tie-breaking."""
