"""Training programs that are run on real GPUs and under simulation."""
