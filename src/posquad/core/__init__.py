"""Shared by all other packages: arrays, errors, results, files and small linear algebra."""
