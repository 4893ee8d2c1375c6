"""Searches for what a proof needs: curvature bounds, dual matrices, dual vectors of traces."""
