"""Experiment 3: spectral initialization and sample size."""
