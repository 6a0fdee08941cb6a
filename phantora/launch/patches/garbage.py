"""Rows of the frees by Python's garbage collector have the order of their blocks (``stub/tracer/allocator.cpp``).

Its own order depends on earlier collections and on addresses of objects: on what a rank compiled, and on the process
that forked it.
"""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path


def install(tracer: Path) -> None:
    """Tells the tracer when a collection begins and ends, without a frame of Python."""
    collects = ctypes.PyDLL(str(tracer)).phantora_collects
    collects.argtypes, collects.restype = [ctypes.py_object, ctypes.py_object], None
    gc.callbacks.append(collects)
