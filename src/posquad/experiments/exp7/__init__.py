"""Experiment 7: a dial from commuting to noncommuting measurements."""
