"""Data files in, models in and out."""
