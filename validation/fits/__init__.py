"""Fits of the constants of `phantora/cost`, `phantora/hardware` and `phantora/sim` to measurements."""
