"""Names of annotations that the launcher writes and the analysis looks for."""

TUNING = "phantora: tuning"
"""Around what tries candidates: Triton's autotuners, Inductor."""
COMPILING = "phantora: compiling"
"""Without length, where torch.compile begins to compile something."""
