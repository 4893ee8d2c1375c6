"""Experiment 8: how sharp the guarantees are."""
