"""Comparisons of simulated with real and published runs, and the measurements behind the product's constants."""
