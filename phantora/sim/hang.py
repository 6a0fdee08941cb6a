"""A hang in words: what each rank waits for, where in its script, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from phantora.trace.analysis.communicators import ranges
from phantora.wire.stacks import Place

_TRANSFERS = frozenset({"send", "recv", "isend", "irecv", "batch_isend_irecv", "send_object_list", "recv_object_list"})
_RANK = re.compile(r"^  rank (\d+) (.*)$")


def describe(diagnosis: str, places: Mapping[int, Place]) -> str:
    """The engine's `diagnosis`, a line a rank, with equal ranks as one and the places of those whose place is known."""
    groups: dict[tuple[str, str], list[int]] = {}
    for line in diagnosis.splitlines():
        match = _RANK.match(line)
        if match is not None:
            place = places.get(int(match[1]))
            groups.setdefault((match[2], str(place) if place else ""), []).append(int(match[1]))
    lines = []
    for (state, where), members in groups.items():
        others = f" (same: rank {ranges(tuple(members[1:]))})" if len(members) > 1 else ""
        lines.append(f"  rank {members[0]} {state.rstrip('.')}{others}")
        if where:
            lines.append(f"      at {where}")
    header = f"deadlock: {_remedy(diagnosis, places)}"
    return "\n".join((header, *lines))


def working(seconds: float, places: Mapping[int, Place], stopped: Mapping[int, int]) -> str:
    """A notice: others wait, in real time, for ranks that compute outside of CUDA at `places`, or that are `stopped`
    (rank to process)."""
    where = [f"rank {rank} is stopped; `kill -CONT {pid}` lets it go on" for rank, pid in sorted(stopped.items())]
    where += [f"rank {rank} computes on the CPU at {place}" for rank, place in sorted(places.items())]
    return f"for {seconds:.0f} s nothing has been launched: " + ("; ".join(where[:4]) or "no rank's place is known")


def _remedy(diagnosis: str, places: Mapping[int, Place]) -> str:
    if " bytes in " in diagnosis or any(place.call in _TRANSFERS for place in places.values()):
        return (
            "each send needs a receive of the same size; two ranks that both send first block each other: use "
            "batch_isend_irecv, or receive first on one of them"
        )
    if "has exited" in diagnosis or " died" in diagnosis:
        return "a rank ended before the collectives of its group; find out why it ended"
    outside = "runs or sleeps outside CUDA" in diagnosis
    if outside and "waits in" not in diagnosis:
        return "the ranks wait outside CUDA for a key of the store, a lock, a queue or a file"
    return "every member of a group must call the same collectives in the same order"
