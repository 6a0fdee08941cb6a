"""The operation of each communication kernel of a real run, and its partners on other ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from phantora.importers.linking import Links
from phantora.importers.matching import Matches
from phantora.importers.rank import CODES, CommunicationCall, Group, RankTrace, Vocabulary
from phantora.importers.schedule import LEAST_NS, Ints, Joint, Part
from phantora.importers.spelling import COLLECTIVES, PARAMETERS, named_by_call
from phantora.trace.analysis.communicators import collective_kind
from phantora.wire.layout import Coll

_MOST_SHIFT = 256  # transfers by which one side's recording may begin later than the other's
_BY_NAME = {
    "all_reduce": Coll.ALL_REDUCE,
    "all_gather": Coll.ALL_GATHER,
    "reduce_scatter": Coll.REDUCE_SCATTER,
    "broadcast": Coll.BROADCAST,
    "reduce": Coll.REDUCE,
    "all_to_all": Coll.ALL_TO_ALL,
}


Joints = dict[int, dict[int, Joint]]
"""Joints by rank and by position in its rows."""


def complete_calls(trace: RankTrace, links: Links, words: Vocabulary) -> None:
    """Gives communication kernels that have no group or bytes those of the call that launched them."""
    rows = trace.rows
    kinds = (CODES["collective"], CODES["sendrecv"])
    for position in np.flatnonzero(np.isin(rows["kind"], kinds)).tolist():
        operator = int(links.operator[position])
        call = _call(rows["detail"][operator], words) if operator >= 0 else None
        if call is None:
            continue
        if rows["comm"][position] < 0:
            rows["comm"][position] = call.group
        if not rows["bytes"][position]:
            rows["bytes"][position] = call.bytes
        if rows["detail"][position] < 0:
            rows["detail"][position] = rows["detail"][operator]
        name = named_by_call(str(words.names.words[rows["name"][position]]), call.collective)
        rows["name"][position] = words.names.number(name)
        if call.collective in COLLECTIVES:  # NCCL runs some as sends and receives
            rows["kind"][position] = links.kind[position] = CODES["collective"]


def join(
    traces: Mapping[int, RankTrace],
    links: Mapping[int, Links],
    matches: Sequence[Matches],
    words: Vocabulary,
    ranks_per_host: int,
) -> Joints:
    """The kernels of all ranks whose partners are known."""
    found: Joints = {rank: {} for rank in traces}
    for each in matches:
        _collectives(each, traces, words, found)
    _transfers(traces, links, words, found)
    _count_crowds(traces, words, found, ranks_per_host)
    return found


def _call(number: int, words: Vocabulary) -> CommunicationCall | None:
    detail = words.details.words[number] if number >= 0 else None
    return detail if isinstance(detail, CommunicationCall) else None


def _collectives(found: Matches, traces: Mapping[int, RankTrace], words: Vocabulary, joints: Joints) -> None:
    group: Group = words.groups.words[found.group]
    if len(group.ranks) < 2 or any(rank not in found.first for rank in group.ranks):
        return
    begin = max(found.first[rank] for rank in group.ranks)
    stop = min(found.first[rank] + len(found.sequences[rank].rows) for rank in group.ranks)
    if stop <= begin:
        return
    places = {
        rank: found.sequences[rank].rows[begin - found.first[rank] : stop - found.first[rank]] for rank in group.ranks
    }
    starts = np.stack([traces[rank].rows["start"][rows] + traces[rank].base for rank, rows in places.items()])
    ends = np.stack([traces[rank].rows["end"][rows] + traces[rank].base for rank, rows in places.items()])
    took = np.maximum(np.median(ends, 0).astype(np.int64) - starts.max(0), LEAST_NS)
    first = traces[group.ranks[0]].rows
    parts: dict[tuple[int, int, int], Part | None] = {}
    for place, row in enumerate(places[group.ranks[0]].tolist()):
        key = int(first["detail"][row]), int(first["name"][row]), int(first["bytes"][row])
        if key not in parts:
            parts[key] = _part(*key, found.group, words)
        part = parts[key]
        if part is None:
            continue
        joint = Joint([part], int(took[place]))
        for rank, rows in places.items():
            joints[rank][int(rows[place])] = joint


def _part(detail: int, name: int, size: int, group: int, words: Vocabulary) -> Part | None:
    """The collective that a kernel runs; None if it is not one that can be simulated."""
    call = _call(detail, words)
    kind = COLLECTIVES.get(call.collective) if call is not None else None
    if kind is None:
        kind = _BY_NAME.get(collective_kind(str(words.names.words[name])))
    if kind is None:
        return None
    return Part(group=group, bytes=size, dtype=call.dtype if call is not None else "", collective=kind)


def _count_crowds(traces: Mapping[int, RankTrace], words: Vocabulary, joints: Joints, ranks_per_host: int) -> None:
    for rank, own in joints.items():
        ends = traces[rank].rows["end"]
        for within in (True, False):
            _crowd(
                [
                    (int(ends[row]), joint)
                    for row, joint in own.items()
                    if joint.parts[0].collective >= 0
                    and within == _in_a_host(words.groups.words[joint.parts[0].group], ranks_per_host)
                ]
            )


def _in_a_host(group: Group, ranks_per_host: int) -> bool:
    return len({rank // ranks_per_host for rank in group.ranks}) == 1


def _crowd(spans: Sequence[tuple[int, Joint]]) -> None:
    """Counts those that run together, of collectives that end at given times. The most crowded rank counts."""
    marks = sorted({time for end, joint in spans for time in (end - joint.duration, end)})
    begins = sorted(spans, key=lambda span: span[0] - span[1].duration)
    total = {id(joint): 0.0 for _, joint in spans}
    active: list[tuple[int, Joint]] = []
    place = 0
    for now, then in pairwise(marks):
        active = [span for span in active if span[0] > now]
        while place < len(begins) and begins[place][0] - begins[place][1].duration <= now:
            active.append(begins[place])
            place += 1
        for _, joint in active:
            total[id(joint)] += (then - now) * len(active)
    for _, joint in spans:
        joint.crowd = max(joint.crowd, total[id(joint)] / joint.duration)


# ---------------------------------------------------------------------- sends and receives


@dataclass
class _Side:
    """One side of a transfer."""

    rank: int
    row: int
    part: Part
    start: int
    """ns on the clock of all ranks."""
    end: int


def _transfers(traces: Mapping[int, RankTrace], links: Mapping[int, Links], words: Vocabulary, joints: Joints) -> None:
    ways: dict[tuple[int, int, int], tuple[list[_Side], list[_Side]]] = {}
    for rank, trace in traces.items():
        for row, parts in _calls_of_pairs(trace, links[rank], words):
            start, end = (int(trace.rows[column][row]) + trace.base for column in ("start", "end"))
            for part in parts:
                ranks = words.groups.words[part.group].ranks if part.group >= 0 else ()
                if not 0 <= part.peer < len(ranks) or ranks[part.peer] not in traces or ranks[part.peer] == rank:
                    continue
                other = ranks[part.peer]
                way = (part.group, rank, other) if part.sends else (part.group, other, rank)
                sides = ways.setdefault(way, ([], []))
                sides[0 if part.sends else 1].append(_Side(rank, row, part, start, end))
    for sends, receives in ways.values():
        shift = _shift(sends, receives)
        for place in range(max(0, shift), min(len(sends), len(receives) + shift)):
            pair = sends[place], receives[place - shift]
            size = max(side.part.bytes for side in pair)
            last = max(side.start for side in pair)
            for side in pair:
                joint = joints[side.rank].setdefault(side.row, Joint())
                joint.parts.append(
                    Part(
                        group=side.part.group,
                        bytes=size,
                        dtype=side.part.dtype,
                        collective=-1,
                        peer=side.part.peer,
                        sends=side.part.sends,
                    )
                )
                joint.duration = max(joint.duration, min(each.end for each in pair) - last)


def _calls_of_pairs(trace: RankTrace, links: Links, words: Vocabulary) -> list[tuple[int, list[Part]]]:
    """For each kernel of sends and receives, in order, the calls that it runs: those of its thread since the kernel
    before."""
    rows = trace.rows
    kernels = np.flatnonzero((rows["kind"] == CODES["sendrecv"]) & (links.launch >= 0))
    kernels = kernels[np.argsort(links.launch[kernels], kind="stable")]
    calls = [
        (int(rows["stream"][o]), int(rows["start"][o]), call)
        for o in np.flatnonzero((rows["kind"] == CODES["operator"]) & (rows["detail"] >= 0)).tolist()
        if (call := _call(rows["detail"][o], words)) is not None and call.of_pair
    ]
    parameters = words.names.number(PARAMETERS)
    if np.any(rows["name"][rows["kind"] == CODES["operator"]] == parameters):
        calls = [entry for entry in calls if entry[2].group >= 0]  # c10d's own operators are around these
    calls.sort(key=lambda entry: entry[1])
    pending: dict[int, list[tuple[int, CommunicationCall]]] = {}
    for thread, start, call in reversed(calls):
        pending.setdefault(thread, []).append((start, call))
    found: list[tuple[int, list[Part]]] = []
    for kernel in kernels.tolist():
        thread = int(rows["stream"][links.call[kernel]])
        waiting = pending.get(thread, [])
        own: list[CommunicationCall] = []
        while waiting and waiting[-1][0] <= links.launch[kernel]:
            own.append(waiting.pop()[1])
        group, share = int(rows["comm"][kernel]), int(rows["bytes"][kernel]) // max(1, len(own))
        parts = [
            Part(
                group=call.group if call.group >= 0 else group,
                bytes=call.bytes or share,
                dtype=call.dtype,
                collective=-1,
                peer=call.peer,
                sends=call.sends,
            )
            for call in own
        ]
        found.append((kernel, parts))
    return found


def _shift(sends: Sequence[_Side], receives: Sequence[_Side]) -> int:
    """Offset from sends to receives: the two ends of a transfer are close in time."""
    n, m = len(sends), len(receives)
    if not n or not m or n == m:
        return 0
    ends: list[Ints] = [np.array([side.end for side in sides], np.int64) for sides in (sends, receives)]
    best, place = float("inf"), 0
    for shift in range(max(1 - m, -_MOST_SHIFT), min(n, _MOST_SHIFT)):
        a, b = max(shift, 0), max(-shift, 0)
        length = min(n - a, m - b)
        if length * 2 < min(n, m):
            continue
        apart = float(np.median(np.abs(ends[0][a : a + length] - ends[1][b : b + length])))
        if apart < best:
            best, place = apart, shift
    return place
