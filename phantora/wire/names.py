"""Names of annotations that the launcher writes and the analysis looks for."""

TUNING = "phantora: tuning"
"""Around what tries candidates: Triton's autotuners, Inductor."""
COMPILING = "phantora: compiling"
"""Without length, where torch.compile begins to compile something."""
ASIDE = "phantora_aside"
"""Name of threads that work for a rank without moving its clock, while its own thread waits for them."""
