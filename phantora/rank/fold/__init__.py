"""The ranks' side of a folded run: their process groups, meshes and gloo."""
