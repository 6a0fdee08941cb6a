"""Iterations found by repetition: loops without optimizer (inference, text generation, a replayed graph) launch the
same sequence of work again and again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from phantora.trace.analysis.annotations import Annotations
from phantora.trace.analysis.grouping import group
from phantora.trace.analysis.iterations import Iteration, Iterations
from phantora.trace.reader import Log
from phantora.trace.schema import DEVICE_KINDS

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_LEAST = 3  # repetitions that make a pattern
_IDENTICAL = 0.7  # of the rows repeat after one period
_MOST_OF = 0.5  # of all rows belong to the repetitions
_MOST_PERIODS = 64  # looked at
# What an iteration begins with: a batch copied to the GPU, tokens looked up.
_INPUTS = ("Memcpy HtoD", "aten::embedding", "aten::index_select")


def by_repetition(log: Log, ranks: Iterable[int]) -> Iterations | None:
    """The iterations of every rank; None if a rank shows no pattern. Work is compared with its shapes, and if that
    shows nothing (the cache of keys and values grows with every token) without. What an autotuner tries is left out."""
    found: dict[int, list[Iteration]] = {}
    every = list(ranks)
    annotations = Annotations(log, every)
    for place, rank in enumerate(every):
        launched = _launches(log, rank, annotations, place)
        own = _iterations(launched, launched.exact) or _iterations(launched, launched.loose)
        if not own:
            return None
        found[rank] = own
    return Iterations("pattern", found) if found else None


@dataclass(kw_only=True)
class _Launches:
    """Launches of a rank, in order."""

    time: Ints
    exact: Ints
    """A number per operator and its shapes."""
    loose: Ints
    """A number per operator."""
    inputs: Mask
    works: Mask
    """Rows with flops: what only fills or copies makes no iteration."""
    waits: Ints
    """Before which rows the host waited, ascending."""


_COLUMNS = ("launch", "start", "id", "op", "shape", "name", "flops")


def _launches(log: Log, rank: int, annotations: Annotations, place: int) -> _Launches:
    """Launches of `rank`, at position `place` of `annotations`."""
    parts = [
        [batch[column] for column in _COLUMNS] for batch in log.batches(_COLUMNS, kinds=DEVICE_KINDS, ranks=(rank,))
    ]
    columns = [np.concatenate(part) for part in zip(*parts, strict=True)] if parts else [np.zeros(0)] * len(_COLUMNS)
    launch, start, row, op, shape, name = (column.astype(np.int64) for column in columns[:-1])
    launch = np.where(launch >= 0, launch, start)  # traces may have no launches
    order = np.lexsort((row, launch))
    order = order[~annotations.tuning(np.full(len(order), place), launch[order])]
    launch, op, shape, name = launch[order], op[order], shape[order], name[order]
    bare = np.where(op >= 0, -1, name)
    _, exact = group((op, bare, shape))
    _, loose = group((op, bare))
    inputs = np.zeros(len(launch), bool)
    for column, words in ((name, log.words("name")), (op, log.words("op"))):
        inputs |= np.array([word.startswith(_INPUTS) for word in words] + [False])[column]
    return _Launches(
        time=launch,
        exact=exact,
        loose=loose,
        inputs=inputs,
        works=columns[-1][order] > 0,
        waits=_waits(log, rank, launch),
    )


def _waits(log: Log, rank: int, launch: Ints) -> Ints:
    parts = [batch["start"] for batch in log.batches(("start",), kinds=("sync",), ranks=(rank,))]
    before = np.searchsorted(launch, np.concatenate(parts)) if parts else np.zeros(0, np.int64)
    return np.unique(before).astype(np.int64)


def _iterations(launched: _Launches, symbols: Ints) -> list[Iteration]:
    period = _period(symbols, launched)
    if not period:
        return []
    begins = _anchors(symbols, launched, period)
    end = int(begins[-1]) + period
    if end > len(symbols):  # the last is not whole
        begins, end = begins[:-1], int(begins[-1])
    stop = int(launched.time[end]) - 1 if end < len(symbols) else int(np.iinfo(np.int64).max)
    starts = launched.time[begins].tolist()
    ends = [*(start - 1 for start in starts[1:]), stop]
    return [
        Iteration(i + 1, f"repetition {i + 1}", start, end)
        for i, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


def _period(symbols: Ints, launched: _Launches) -> int:
    """Rows of one iteration; 0 if nothing repeats. The shortest period with an input in it; else the one by which
    most rows repeat, since a model's layers repeat inside of an iteration. Where nothing else is between equal layers,
    the number of them before a host waits is the number in an iteration."""
    best, most = 0, 0.0
    for period in sorted(_gaps(symbols)):
        same = symbols[:-period] == symbols[period:]
        begin, end = _region(same, period)
        if end - begin < (_LEAST - 1) * period or end + period - begin < _MOST_OF * len(symbols):
            continue
        share = float(same[begin:end].mean())
        if share < _IDENTICAL or not bool(launched.works[begin : begin + period].any()):
            continue
        if bool(launched.inputs[begin : begin + period].any()) and share > 0.9:
            return period
        if share > most + 0.001:
            best, most = period, share
    return _between_waits(launched.waits, best) if best else 0


def _between_waits(waits: Ints, period: int) -> int:
    """Rows between the waits of the host, if these are mostly equal and a multiple of `period`; else `period`."""
    apart, counts = np.unique(np.diff(waits), return_counts=True)
    if len(counts) and counts.max() >= _LEAST and counts.max() >= _IDENTICAL * counts.sum():
        usual = int(apart[counts.argmax()])
        return usual if usual % period == 0 else period
    return period


def _gaps(symbols: Ints) -> list[int]:
    """Periods worth a look: distances at which some symbol returns in most cases, the commonest first."""
    order = np.argsort(symbols, kind="stable")
    same = np.flatnonzero(symbols[order][1:] == symbols[order][:-1])
    gap = order[same + 1] - order[same]
    if not len(gap):
        return []
    lengths, counts = np.unique(gap, return_counts=True)
    weight = lengths * counts
    kept = np.argsort(-weight, kind="stable")[:_MOST_PERIODS]
    return [int(length) for length in lengths[kept] if length * _LEAST <= len(symbols)]


def _region(same: Mask, period: int) -> tuple[int, int]:
    """Region from the first to the last stretch of a whole period that repeats."""
    runs = np.concatenate([[0], np.cumsum(same)])
    if len(same) < period:
        return 0, 0
    whole = np.flatnonzero(runs[period:] - runs[:-period] == period)
    return (int(whole[0]), int(whole[-1]) + period) if len(whole) else (0, 0)


def _anchors(symbols: Ints, launched: _Launches, period: int) -> Ints:
    """Positions at which iterations begin: a symbol that occurs once in each, an input if there is one; else the place
    after a wait of the host."""
    begin, end = _region(symbols[:-period] == symbols[period:], period)
    block = symbols[begin : begin + period]
    values, counts = np.unique(block, return_counts=True)
    once = np.isin(block, values[counts == 1])
    if not bool(once.any()):
        waited = launched.waits[(launched.waits >= begin) & (launched.waits < begin + period)]
        return np.arange(waited[0] if len(waited) else begin, end + period, period)
    chosen = once & launched.inputs[begin : begin + period]
    symbol = block[int(np.argmax(chosen if bool(chosen.any()) else once))]
    found = np.flatnonzero(symbols == symbol)
    return found[(found >= begin) & (found < end + period)]
