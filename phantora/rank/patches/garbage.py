"""Sorts the frees by Python's garbage collector by their blocks (``stub/tracer/allocator.cpp``).

The collector's own order depends on addresses and on earlier collections, which differ between equal runs.
"""

from __future__ import annotations

import ctypes
import gc

from phantora.rank.patch import Patch, Rank, When


def install(rank: Rank) -> None:
    """Tells the tracer when a collection begins and ends, without a frame of Python."""
    collects = ctypes.PyDLL(str(rank.tracer)).phantora_collects
    collects.argtypes, collects.restype = [ctypes.py_object, ctypes.py_object], None
    gc.callbacks.append(collects)


PATCH = Patch("garbage", When.AFTER_TORCH, install)
