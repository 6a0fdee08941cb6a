"""Keeps memory that the simulator frees in its process.

The log's writer allocates and frees some 20 MB for each batch. If the pages return to the system in between, clearing
them takes as long as the writer's own work.
"""

from __future__ import annotations

import ctypes

import pyarrow as pa

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc
_KEPT = 64 << 20  # bytes


def keep_memory() -> None:
    """For the rest of the process."""
    pa.set_memory_pool(pa.system_memory_pool())  # Arrow's own gives pages back after 10 ms
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(_TRIM_THRESHOLD, _KEPT)
        mallopt(_MMAP_THRESHOLD, _KEPT // 2)
