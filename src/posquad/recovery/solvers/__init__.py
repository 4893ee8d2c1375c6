"""Solvers that fit a factor to quadratic responses, each usable alone."""
