"""Published runs and kernels, with their sources, next to the simulation of them."""
