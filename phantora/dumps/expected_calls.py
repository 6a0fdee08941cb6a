"""Calls of flight recorder dumps next to the collectives of a simulated run of the same script.

The recorder numbers the collectives of a group, and a simulated run those of a communicator. Groups and communicators
with the same members are paired in the order of their creation. Sends and receives are paired by their number between
two ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from phantora.dumps.flight_recorder import Call, Dump
from phantora.errors import PhantoraError
from phantora.trace.analysis.communicators import collective_kind, groups, ranges
from phantora.trace.analysis.units import size
from phantora.trace.reader import Log

_BYTES = {"double": 8, "long": 8, "float": 4, "int": 4, "half": 2, "bfloat16": 2, "short": 2}
"""Size of an element; those of other types have one byte."""
_SENT = ("all_to_all", "alltoall", "gather", "scatter", "send_recv")
"""Collectives that NCCL makes of sends and receives."""
_COALESCED = "coalesced"


@dataclass(frozen=True)
class Expected:
    """A collective, send or receive of a simulated run."""

    kind: str
    """``all_reduce``."""
    bytes: int

    @property
    def what(self) -> str:
        """``all_reduce of 4.0 KiB``."""
        return f"{self.kind} of {size(self.bytes)}"


@dataclass
class Schedule:
    """Calls of a simulated run, in their order."""

    collectives: dict[int, dict[int, list[Expected]]] = field(default_factory=lambda: defaultdict(dict))
    """By rank and communicator."""
    pairs: dict[tuple[int, int], list[Expected]] = field(default_factory=lambda: defaultdict(list))
    """By rank and its partner."""
    members: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Ranks of a communicator."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """The first call of a rank that differs."""

    rank: int
    place: int
    """The number of the call, from 1, in `group`."""
    group: str
    real: Call | None
    """None: the rank has not issued it."""
    simulated: Expected | None
    """None: the simulated run ends before."""
    time: int
    """Time of the call, or of the rank's last one, ns."""


def schedule(log: Log) -> Schedule:
    """The calls of a simulated run's log."""
    found = Schedule()
    found.members = {number: group.ranks for number, group in groups(log).items()}
    names = log.words("name")
    columns = ("rank", "name", "comm", "seq", "bytes", "value", "start")
    order: dict[tuple[int, int], list[tuple[int, Expected]]] = defaultdict(list)
    pairs: dict[tuple[int, int], list[tuple[int, Expected]]] = defaultdict(list)
    for batch in log.batches(columns, kinds=("collective", "sendrecv")):
        for rank, name, comm, seq, count, peer, start in zip(*(batch[c].tolist() for c in columns), strict=True):
            call = Expected(_kind(names[name]), count)
            if seq >= 0:
                order[rank, comm].append((seq, call))
            elif peer >= 0:
                pairs[rank, peer].append((start, call))
    for (rank, comm), calls in order.items():
        found.collectives[rank][comm] = [call for _, call in sorted(calls, key=lambda item: item[0])]
    for key, calls in pairs.items():
        found.pairs[key] = [call for _, call in sorted(calls, key=lambda item: item[0])]
    return found


def _kind(name: str) -> str:
    flat = name.lower().lstrip("_")
    kind = collective_kind(flat)
    return "send_recv" if (kind != "all_gather" and flat.startswith(_SENT)) or kind in _SENT else kind


def _bytes(call: Call) -> int:
    width = _BYTES.get(call.dtypes[0].lower(), 1) if call.dtypes else 1
    return width * max(sum(map(prod, sizes)) for sizes in (call.input_sizes, call.output_sizes))


def first_differences(dumps: Sequence[Dump], simulated: Schedule) -> tuple[int, list[Found]]:
    """The number of calls that agree, and each rank's first one that does not, in the order of their times.

    Raises PhantoraError if the runs have no rank in common.
    """
    ranks = [dump for dump in dumps if dump.rank in simulated.collectives or not simulated.collectives]
    if not ranks:
        raise PhantoraError("the simulated run has none of the dumps' ranks: simulate as many GPUs")
    agreed, found = 0, []
    for dump in ranks:
        count, differs = _compare(dump, simulated)
        agreed += count
        found += differs
    return agreed, sorted(found, key=lambda one: (one.time, one.rank))


def _compare(dump: Dump, simulated: Schedule) -> tuple[int, list[Found]]:
    """The first call of a rank that differs, by the order of the rank's calls."""
    agreed = 0
    comms = _paired(dump, simulated)
    seen: dict[object, int] = defaultdict(int)
    last = max((call.created_ns for call in dump.calls), default=0)
    for call in dump.calls:
        if call.operation == _COALESCED:
            continue
        calls, place = _place(dump, call, comms, simulated, seen)
        if calls is None:
            continue
        expected = calls[place - 1] if place <= len(calls) else None
        if expected is not None and _agrees(call, expected):
            agreed += 1
            continue
        return agreed, [
            Found(
                rank=dump.rank,
                place=place,
                group=_label(dump, call.group),
                real=call,
                simulated=expected,
                time=call.created_ns,
            )
        ]
    return agreed, _unissued(dump, comms, simulated, last)


def _agrees(call: Call, expected: Expected) -> bool:
    if call.point_to_point:
        return _bytes(call) == expected.bytes
    if _kind(call.operation) != expected.kind:
        return False
    return _kind(call.operation) == "send_recv" or _bytes(call) == expected.bytes  # parts may differ by rank


def _paired(dump: Dump, simulated: Schedule) -> Mapping[str, int]:
    """The communicator of each group of a dump that has collectives."""
    own = simulated.collectives.get(dump.rank, {})
    used = {call.group for call in dump.calls if not call.point_to_point}
    by_members: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for comm in sorted(own):
        by_members[simulated.members.get(comm, ())].append(comm)
    found = {}
    for group in sorted(used, key=lambda name: (len(name), name)):
        candidates = by_members.get(dump.groups.get(group, ()))
        if candidates:
            found[group] = candidates.pop(0)
    return found


def _place(
    dump: Dump, call: Call, comms: Mapping[str, int], simulated: Schedule, seen: dict[object, int]
) -> tuple[list[Expected] | None, int]:
    """The simulated calls among which `call` is to be found, and its number there. None for a group without any."""
    if not call.point_to_point:
        comm = comms.get(call.group)
        return ([] if comm is None else simulated.collectives[dump.rank][comm]), call.sequence
    members, peers = dump.groups.get(call.group, ()), call.peers
    if peers is None or max(peers) >= len(members) or dump.calls[0].record:
        return None, 0  # earlier ones have left the recorder, and their number is not known
    peer = next((members[one] for one in peers if members[one] != dump.rank), dump.rank)
    seen[peer] += 1
    return simulated.pairs.get((dump.rank, peer), []), seen[peer]


def _unissued(dump: Dump, comms: Mapping[str, int], simulated: Schedule, last: int) -> list[Found]:
    """The first simulated collective of each group that the rank has not issued."""
    found = []
    for group, comm in comms.items():
        issued = max(call.sequence for call in dump.calls if call.group == group and not call.point_to_point)
        calls = simulated.collectives[dump.rank][comm]
        if issued < len(calls):
            found.append(
                Found(
                    rank=dump.rank,
                    place=issued + 1,
                    group=_label(dump, group),
                    real=None,
                    simulated=calls[issued],
                    time=last,
                )
            )
    return found


def _label(dump: Dump, group: str) -> str:
    described = dump.descriptions.get(group, "")
    name = described if described not in ("", "undefined") else f"group {group}"
    return f"{name}, ranks {ranges(dump.groups.get(group, ()))}"


def answer(dumps: Sequence[Dump], log: Log) -> list[tuple[str, str]]:
    """The first call that differs, in at most five lines: a word and its text each."""
    agreed, found = first_differences(dumps, schedule(log))
    lines = [("AGREE", f"{agreed} call{'s' * (agreed != 1)} of the dumps, in number, kind and bytes")]
    differing = [one for one in found if one.real is not None and one.simulated is not None]
    beyond = [one for one in found if one.simulated is None]
    missing = [one for one in found if one.real is None]
    if differing:
        for one in differing[:2]:
            assert one.real is not None and one.simulated is not None
            real = f"{one.real.what} ({size(_bytes(one.real))})" + (f" at {one.real.place}" if one.real.place else "")
            lines.append(
                ("DIFFERS", f"rank {one.rank}, call {one.place} of {one.group}: {real}; simulated {one.simulated.what}")
            )
    elif missing and (first := _behind(dumps, missing)):
        lines.append(("MISSING", first))
    elif beyond:
        one = beyond[0]
        assert one.real is not None
        lines.append(
            (
                "BEYOND",
                f"rank {one.rank}, call {one.place} of {one.group}, {one.real.what}: the simulated run has ended",
            )
        )
        lines.append(("NEXT", "simulate as many steps as the job ran"))
        return lines
    elif missing:
        one = missing[0]
        assert one.simulated is not None
        lines.append(("NEXT CALL", f"all ranks stop in one place; the simulated run goes on with {one.simulated.what}"))
    else:
        lines.append(("SAME", "the simulated run ends with the same calls"))
    return lines


def _behind(dumps: Sequence[Dump], missing: Sequence[Found]) -> str:
    """The call that a rank has not issued, and another rank has; "" without one."""
    for one in missing:
        for dump in dumps:
            for call in dump.calls:
                same = _label(dump, call.group) == one.group and call.sequence == one.place
                if dump.rank != one.rank and not call.point_to_point and same:
                    assert one.simulated is not None
                    where = f" at {call.place}" if call.place else ""
                    return (
                        f"rank {one.rank} did not issue call {one.place} of {one.group}: simulated "
                        f"{one.simulated.what}; rank {dump.rank} issued it{where}"
                    )
    return ""
