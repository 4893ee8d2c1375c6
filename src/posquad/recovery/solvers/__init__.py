"""Solvers that fit a factor to quadratic responses; each can be used on its own."""
