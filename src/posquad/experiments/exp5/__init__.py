"""Experiment 5: finite-initialization Bregman projections."""
