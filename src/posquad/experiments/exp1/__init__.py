"""Experiment 1: gradient dynamics do not depend on the representative of a predictor."""
