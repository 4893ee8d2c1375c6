"""Searches for the numbers and arrays that a proof needs: curvature bounds and dual vectors."""
