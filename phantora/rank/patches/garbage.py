"""Python's garbage collector: the order of its frees, and the time of full collections.

The collector's own order depends on addresses and on earlier collections, which differ between equal runs, so frees are
sorted by their blocks (``stub/tracer/allocator.cpp``). A full collection takes host time by the number of live objects,
imported ones too, which the collector of a rank does not see: they are frozen. Young collections are part of the costs
of Python, which were measured with them.

Full collections that Python begins by itself count with ``--garbage counted``. A rank's collector begins them too
often, since its imports are frozen. So :class:`Collector` has the counters that it would have without that.
"""

from __future__ import annotations

import ctypes
import functools
import gc
from collections.abc import Callable, Mapping

from phantora.rank.clock import Runtime
from phantora.rank.patch import Patch, Rank, When
from phantora.spec import COUNTED, rank_spec
from phantora.wire.names import GARBAGE

FULL = 2  # generation
STEPS = 16  # of a number, between a power of two and the next: equal runs may differ by a few objects
PENDING = 0.25  # of the objects of the last full collection: as many new ones begin the next (CPython 3.12)


def has_full_collections(version: tuple[int, ...]) -> bool:
    """Whether this Python begins full collections by itself. The collector of 3.14.0 to 3.14.4 goes through old objects
    bit by bit; 3.14.5 has that of 3.13 again (What's New in Python 3.15)."""
    return not (3, 14) <= version[:3] < (3, 14, 5)


def _rounded(count: int) -> int:
    """`count`, cut to one of `STEPS` numbers in each octave."""
    unit = max(1, (1 << count.bit_length() >> 1) // STEPS)
    return count // unit * unit


class Collector:
    """CPython's counters, and the time of full collections. `imported` objects are frozen in a rank alone; None: there
    are those that are frozen now."""

    def __init__(self, runtime: Runtime, counted: bool, imported: int | None = None) -> None:
        self._runtime = runtime
        self._counted = counted
        self._imported = gc.get_freeze_count() if imported is None else imported
        self._asked = False
        self._total: int | None = None  # objects at the last full collection
        self._pending = 0  # that have become old since
        self._rounds = 0  # collections of the middle generation since
        self._young = 0

    def collect(self, collect: Callable[[int], int]) -> Callable[..., int]:
        """`collect`, a full one of which takes its time."""

        @functools.wraps(collect)
        def collecting(generation: int = FULL) -> int:
            if generation == FULL and self._moves():
                self._take()
            self._asked = True
            try:
                return collect(generation)
            finally:
                self._asked = False

        return collecting

    def freeze(self, freeze: Callable[[], None]) -> Callable[[], None]:
        """`freeze`. Collections go through imported objects until the program calls it."""

        @functools.wraps(freeze)
        def freezing() -> None:
            if self._moves():
                self._imported, self._rounds = 0, 0
            else:
                self._imported += len(gc.get_objects())
            freeze()

        return freezing

    def unfreeze(self, unfreeze: Callable[[], None]) -> Callable[[], None]:
        """`unfreeze`, after which imported objects are as the program's own."""

        @functools.wraps(unfreeze)
        def unfreezing() -> None:
            unfreeze()
            self._imported = 0

        return unfreezing

    def notice(self, phase: str, info: Mapping[str, int]) -> None:
        """A callback of the collector, for the collections that Python begins."""
        if not self._counted or self._asked or info["generation"] == 0 or not self._moves():
            return
        if phase == "start":
            self._young = len(gc.get_objects(0)) + len(gc.get_objects(1))
            return
        if self._total is None:
            self._total = self._imported + len(gc.get_objects())
        if self._rounds > gc.get_threshold()[2] and self._pending > PENDING * self._total:
            self._take()
        else:
            self._rounds += 1
            self._pending += max(0, self._young - info["collected"])

    def _moves(self) -> bool:
        return self._runtime.is_virtual() and self._runtime.moves_clock()

    def _take(self) -> None:
        """The time of a full collection; an annotation where all of them count."""
        from phantora.wire.layout import Api

        imported, own = self._imported, len(gc.get_objects())
        self._total, self._pending, self._rounds = imported + own, 0, 0
        per = self._runtime.times_ns
        spent = per(Api.GC_IMPORTED, _rounded(imported)) + per(Api.GC_OBJECT, _rounded(own))
        if not self._counted:
            self._runtime.advance(spent)
            return
        from torch.autograd.profiler import record_function

        with record_function(GARBAGE):
            self._runtime.advance(spent)


def install(rank: Rank) -> None:
    """Tells the tracer when a collection begins and ends, without a frame of Python."""
    collects = ctypes.PyDLL(str(rank.tracer)).phantora_collects
    collects.argtypes, collects.restype = [ctypes.py_object, ctypes.py_object], None
    gc.callbacks.append(collects)
    counted = rank_spec().garbage == COUNTED
    collector = Collector(Runtime.of(rank.runtime), counted, rank.frozen)
    gc.collect = collector.collect(gc.collect)
    gc.freeze, gc.unfreeze = collector.freeze(gc.freeze), collector.unfreeze(gc.unfreeze)
    if counted:
        gc.callbacks.append(collector.notice)


PATCH = Patch("garbage", When.AFTER_TORCH, install)
