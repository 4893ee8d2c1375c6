"""Proofs with every rounding error bounded."""
