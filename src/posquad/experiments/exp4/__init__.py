"""Experiment 4: conditioning and step size."""
