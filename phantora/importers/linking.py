"""Causes of rows in one rank: from correlation ids and nesting to the log's `launch` and `link`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from phantora.importers.rank import CODES, RankTrace, Rows, Vocabulary, is_device
from phantora.importers.schedule import Ints

_SLACK_NS = 2_000
"""Largest difference between CUPTI's clock and torch's: a call may seem to begin that long before its operator."""


@dataclass(kw_only=True)
class Links:
    """Columns of the log for the rows of a trace, in their order; -1 for none."""

    kind: npt.NDArray[np.uint8]
    """As in the trace, but calls that wait are `sync`."""
    id: Ints
    """Numbers of the rows in order of their start."""
    launch: Ints
    link: Ints
    value: Ints
    operator: Ints
    """Position of the operator that launched a row of the GPU."""
    call: Ints
    """Position of the call that launched a row of the GPU."""


def link(trace: RankTrace, words: Vocabulary) -> Links:
    """Links the rows of `trace` with each other."""
    rows = trace.rows
    kind = rows["kind"].copy()
    number = np.empty(len(rows), np.int64)
    number[np.lexsort((-rows["end"], rows["start"]))] = np.arange(len(rows))
    device = np.flatnonzero(is_device(kind))
    calls = np.flatnonzero((kind == CODES["call"]) | (kind == CODES["sync"]))
    operators = np.flatnonzero(kind == CODES["operator"])
    launch, linked, value = (np.full(len(rows), -1, np.int64) for _ in range(3))
    value[:] = rows["value"]
    of_operator = np.full(len(rows), -1, np.int64)

    call_of = _find(rows["correlation"][calls], calls, rows["correlation"][device])
    known = call_of >= 0
    launch[device[known]] = rows["start"][call_of[known]]
    value[call_of[known][::-1]] = number[device[known][::-1]]  # of several the first

    thread, time = rows["stream"].astype(np.int64), rows["start"]
    asking = np.concatenate([calls, device[known]])
    at = np.concatenate([calls, call_of[known]])
    found = _operator_of(rows, operators, rows["external"][asking], thread[at], time[at])
    lost = device[~known]  # its call is not in the trace
    found_lost = _find(rows["external"][operators], operators, rows["external"][lost])
    of_operator[asking], of_operator[lost] = found, found_lost
    has = of_operator >= 0
    linked[has] = number[of_operator[has]]

    _frees(rows, kind, number, linked, words)
    _stacks(rows, kind, number, linked)
    kind[_blocking(rows, device[known], call_of[known], words)] = CODES["sync"]
    _syncs(rows, kind, device, launch, number, linked)
    _waits(trace, kind, number, launch, linked)
    calling = np.full(len(rows), -1, np.int64)
    calling[device] = call_of
    return Links(kind=kind, id=number, launch=launch, link=linked, value=value, operator=of_operator, call=calling)


def _find(keys: Ints, positions: npt.NDArray[np.intp], wanted: Ints) -> Ints:
    """For each of `wanted` the first of `positions` whose key is equal; -1 without one or for keys below 0."""
    if not len(keys):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(keys, kind="stable")
    place = np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)
    hit = (keys[order][place] == wanted) & (wanted >= 0)
    return np.where(hit, positions[order][place], -1)


def _operator_of(rows: Rows, operators: npt.NDArray[np.intp], external: Ints, thread: Ints, time: Ints) -> Ints:
    """The operator that calls made at `time` by `thread` belong to: the one that the trace names, if it runs then, else
    the innermost that does. Until torch 2.0 the number of a call is no operator's."""
    named = _find(rows["external"][operators], operators, external)
    at = np.maximum(named, 0)
    runs = (named >= 0) & (rows["stream"][at] == thread)
    runs &= (rows["start"][at] - _SLACK_NS <= time) & (time <= rows["end"][at] + _SLACK_NS)
    rest = np.flatnonzero(~runs)
    if len(rest) and len(operators):
        named[rest] = _innermost(rows, operators, thread[rest], time[rest])
    return named


def _innermost(rows: Rows, operators: npt.NDArray[np.intp], thread: Ints, time: Ints) -> Ints:
    """The operator of `thread` that began last of those that run at `time`; -1 for none."""
    own = rows["stream"][operators].astype(np.int64)
    order = np.lexsort((-rows["end"][operators], rows["start"][operators], own))
    operators, own = operators[order], own[order]
    start, end = rows["start"][operators], rows["end"][operators]
    parent = _parents(own, end, start)
    low = min(int(start.min()), int(time.min()))
    span = max(int(start.max()), int(time.max())) - low + 2
    place = np.searchsorted(own * span + (start - low), thread * span + (time - low), "right") - 1
    while True:
        at = np.maximum(place, 0)
        outside = (place >= 0) & (own[at] == thread) & (end[at] < time)
        if not outside.any():
            break
        place = np.where(outside, parent[at], place)
    at = np.maximum(place, 0)
    return np.where((place >= 0) & (own[at] == thread), operators[at], -1)


def _parents(thread: Ints, end: Ints, start: Ints) -> Ints:
    """Position of the slice that encloses each slice; -1 for none. Slices are ordered by thread and start."""
    parent: list[int] = []
    stack: list[tuple[int, int]] = []
    current = None
    for position, (own, begin, stop) in enumerate(zip(thread.tolist(), start.tolist(), end.tolist(), strict=True)):
        if own != current:
            stack, current = [], own
        while stack and stack[-1][1] <= begin and stack[-1][1] < stop:
            stack.pop()
        parent.append(stack[-1][0] if stack else -1)
        stack.append((position, stop))
    return np.array(parent, np.int64)


def _frees(rows: Rows, kind: npt.NDArray[np.uint8], number: Ints, linked: Ints, words: Vocabulary) -> None:
    """A free is linked to the allocation of the same address."""
    memory = np.flatnonzero(kind == CODES["memory"])
    memory = memory[np.argsort(rows["start"][memory], kind="stable")]
    alive: dict[int, int] = {}
    alloc = words.names.number("alloc") if len(memory) else -1
    columns = (rows[column][memory].tolist() for column in ("name", "correlation"))
    for position, name, address in zip(memory.tolist(), *columns, strict=True):
        if name == alloc:
            alive[address] = int(number[position])
        else:
            linked[position] = alive.pop(address, -1)


def _stacks(rows: Rows, kind: npt.NDArray[np.uint8], number: Ints, linked: Ints) -> None:
    """A function of Python is linked to its caller."""
    python = np.flatnonzero(kind == CODES["python"])
    caller = _find(rows["external"][python], python, rows["correlation"][python])
    linked[python] = np.where(caller >= 0, number[np.maximum(caller, 0)], -1)


def _blocking(rows: Rows, device: Ints, call: Ints, words: Vocabulary) -> Ints:
    """Calls that return after their copy has ended, to or from memory of the host: the host waits in them."""
    copies = rows["kind"][device] == CODES["memcpy"]
    names = np.array(["HtoD" in word or "DtoH" in word for word in words.names.words] + [False])
    waited = copies & names[rows["name"][device]] & (rows["end"][call] >= rows["end"][device])
    found: Ints = call[waited]
    return found


def _syncs(
    rows: Rows, kind: npt.NDArray[np.uint8], device: npt.NDArray[np.intp], launch: Ints, number: Ints, linked: Ints
) -> None:
    """A wait of the host is linked to the work of the GPU that ended last before it."""
    syncs = np.flatnonzero(kind == CODES["sync"])
    if not len(syncs) or not len(device):
        linked[syncs] = -1
        return
    order = device[np.argsort(rows["end"][device], kind="stable")]
    place = np.searchsorted(rows["end"][order], rows["end"][syncs], "right") - 1
    for _ in range(8):  # past work that was launched later
        at = order[np.maximum(place, 0)]
        late = (place >= 0) & (launch[at] > rows["end"][syncs])
        if not late.any():
            break
        place = np.where(late, place - 1, place)
    linked[syncs] = np.where(place >= 0, number[order[np.maximum(place, 0)]], -1)


def _waits(trace: RankTrace, kind: npt.NDArray[np.uint8], number: Ints, launch: Ints, linked: Ints) -> None:
    """A wait of a stream is linked to the call that recorded its event."""
    rows = trace.rows
    waits = np.flatnonzero(kind == CODES["wait"])
    if not len(waits):
        return
    calls = np.flatnonzero(kind == CODES["call"])
    made = _find(rows["correlation"][calls], calls, rows["correlation"][waits])
    launch[waits] = np.where(made >= 0, rows["start"][np.maximum(made, 0)], -1)
    recorded = np.array([trace.waits.get(position, (-1, -1))[0] for position in waits.tolist()], np.int64)
    record = _find(rows["correlation"][calls], calls, recorded)
    linked[waits] = np.where(record >= 0, number[np.maximum(record, 0)], -1)
