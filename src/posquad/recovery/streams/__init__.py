"""Recovery from rows that are not all in memory: by moments, or by passes over the rows."""
