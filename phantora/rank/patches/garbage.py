"""Python's garbage collector: the order of its frees, and the time of collections that a program asks for.

The collector's own order depends on addresses and on earlier collections, which differ between equal runs, so frees are
sorted by their blocks (``stub/tracer/allocator.cpp``). A full collection that the program asks for takes host time by
the number of live objects, imported ones too, which the collector of a rank does not see: they are frozen. Collections
that Python begins by itself take none, because their moments differ between equal runs.
"""

from __future__ import annotations

import ctypes
import functools
import gc
from collections.abc import Callable

from phantora.rank.clock import Runtime
from phantora.rank.patch import Patch, Rank, When

FULL = 2  # generation
STEPS = 16  # of a number, between a power of two and the next: equal runs may differ by a few objects


def _rounded(count: int) -> int:
    """`count`, cut to one of `STEPS` numbers in each octave."""
    unit = max(1, (1 << count.bit_length() >> 1) // STEPS)
    return count // unit * unit


def timed(collect: Callable[[int], int], runtime: Runtime) -> Callable[..., int]:
    """`collect`, a full one of which takes its time."""

    @functools.wraps(collect)
    def collecting(generation: int = FULL) -> int:
        if generation == FULL and runtime.is_virtual() and runtime.moves_clock():
            from phantora.wire.layout import Api

            imported, own = _rounded(gc.get_freeze_count()), _rounded(len(gc.get_objects()))
            runtime.advance(runtime.times_ns(Api.GC_IMPORTED, imported) + runtime.times_ns(Api.GC_OBJECT, own))
        return collect(generation)

    return collecting


def install(rank: Rank) -> None:
    """Tells the tracer when a collection begins and ends, without a frame of Python."""
    collects = ctypes.PyDLL(str(rank.tracer)).phantora_collects
    collects.argtypes, collects.restype = [ctypes.py_object, ctypes.py_object], None
    gc.callbacks.append(collects)
    gc.collect = timed(gc.collect, Runtime.of(rank.runtime))


PATCH = Patch("garbage", When.AFTER_TORCH, install)
