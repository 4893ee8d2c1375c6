"""Experiment 2: effective curvature and local rates."""
