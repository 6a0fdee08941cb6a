"""Comparisons of simulated with measured numbers; each module prints a table."""
