"""The cause of a hang, from the flight recorder dumps of its ranks.

A rank is blocked by its first call that has not completed. That call waits for the members of its group that have not
issued it, or have not come to it because an earlier call blocks them. Those are blocked by that call in turn, or by
nothing: then their own code has not reached it. So the chain ends at a rank that is missing, at ranks that wait for
each other, or at a call that all members issued.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from phantora.dumps.flight_recorder import Call, Dump
from phantora.trace.analysis.communicators import ranges

MISSING = "missing"
"""A rank has not issued a call that its group waits for, and no other call blocks it."""
NO_DUMP = "no dump"
"""A rank that its group waits for wrote no dump."""
MISMATCH = "mismatch"
"""Members of a group issued different calls under one number."""
CROSSED = "crossed"
"""Ranks wait for each other: they issued calls of two groups, or sends, in different orders."""
SILENT = "silent"
"""All calls of the dumps have completed, and ranks of their groups wrote no dump."""
STUCK = "stuck"
"""All members issued the same call, and it does not complete."""
NONE = "none"
"""No call waits."""
# Sizes of these differ between ranks by right.
_UNEVEN = ("all_to_all", "alltoall", "gather", "scatter", "send", "recv", "coalesced")


@dataclass(frozen=True, kw_only=True)
class Hang:
    """A cause with its evidence."""

    kind: str
    ranks: tuple[int, ...]
    """The ranks to look at."""
    waiting: tuple[int, ...]
    """The ranks that wait for them."""
    call: Call | None
    """The call that waits, of the first of `waiting`."""
    members: tuple[int, ...]
    """Group of the call."""
    others: Mapping[int, Call]
    """Calls of `ranks`: of a mismatch, what they issued instead; else their last ones."""


def find_hang(dumps: Sequence[Dump]) -> Hang:
    """The first cause. `dumps` are those of one job."""
    by_rank = {dump.rank: dump for dump in dumps}
    mismatch = _mismatch(dumps)
    if mismatch is not None:
        return mismatch
    blocked = {dump.rank: dump.blocked for dump in dumps}
    silent = tuple(sorted({rank for dump in dumps for group in dump.groups.values() for rank in group} - set(by_rank)))
    waits = {rank: _absent(by_rank, rank, call) for rank, call in blocked.items() if call is not None}
    if not waits:
        return Hang(kind=SILENT if silent else NONE, ranks=silent, waiting=(), call=None, members=(), others={})
    start = min(waits, key=lambda rank: _order(blocked[rank], rank))
    seen: list[int] = []
    rank = start
    while True:
        seen.append(rank)
        absent = waits[rank]
        if not absent:
            return _stuck(by_rank, rank, blocked)
        free = [other for other in absent if other not in waits]
        if free:
            return _missing(by_rank, rank, tuple(free), blocked)
        following = min(absent)
        if following in seen:
            circle = seen[seen.index(following) :]
            return _crossed(by_rank, circle, blocked)
        rank = following


def _order(call: Call | None, rank: int) -> tuple[int, int]:
    return (call.created_ns if call is not None else 0, rank)


def _members(dump: Dump, call: Call) -> tuple[int, ...]:
    return dump.groups.get(call.group, ())


def _absent(by_rank: Mapping[int, Dump], rank: int, call: Call) -> list[int]:
    """The members of the call's group that have not issued their part of it, or have not come to it, in order."""
    dump = by_rank[rank]
    members = _members(dump, call)
    if call.point_to_point and call.peers is not None:
        peers = [members[peer] for peer in call.peers if peer < len(members)]
        members = tuple(peer for peer in peers if peer != rank)
    return [other for other in members if other != rank and not (other in by_rank and _came(by_rank[other], call))]


def _came(dump: Dump, call: Call) -> bool:
    """True if the rank of `dump` has issued its part of `call` and no call before that part blocks it."""
    partner = _partner(dump, call)
    return partner is not None and (dump.blocked is None or partner is call or dump.blocked.record >= partner.record)


def _partner(dump: Dump, call: Call) -> Call | None:
    """The call of `dump` that belongs to `call` of another rank; one that left the recorder counts as `call`."""
    own = [one for one in dump.calls if one.group == call.group and one.point_to_point == call.point_to_point]
    if call.point_to_point:
        found = (one for one in own if one.peers == call.peers and one.operation != call.operation)
        mine = [one for one in found if one.sequence == call.sequence]
        return mine[0] if mine else None
    found_one = next((one for one in own if one.sequence == call.sequence), None)
    if found_one is None and own and own[0].sequence > call.sequence:
        return call
    return found_one


def _mismatch(dumps: Sequence[Dump]) -> Hang | None:
    """The first collective, by its time, that members of a group issued differently."""
    issued: dict[tuple[str, tuple[int, ...], int], dict[int, Call]] = {}
    for dump in dumps:
        for call in dump.calls:
            if not call.point_to_point:
                key = (call.group, _members(dump, call), call.sequence)
                issued.setdefault(key, {})[dump.rank] = call
    found: list[tuple[int, Hang]] = []
    for (_, members, _), calls in issued.items():
        if all(call.completed for call in calls.values()):
            continue
        kinds: dict[object, list[int]] = {}
        for rank, call in sorted(calls.items()):
            kinds.setdefault(_signature(call), []).append(rank)
        if len(kinds) > 1:
            usual = max(kinds.values(), key=lambda ranks: (len(ranks), -ranks[0]))
            odd = tuple(rank for ranks in kinds.values() if ranks is not usual for rank in ranks)
            first = calls[usual[0]]
            hang = Hang(
                kind=MISMATCH,
                ranks=odd,
                waiting=tuple(usual),
                call=first,
                members=members,
                others={rank: calls[rank] for rank in odd},
            )
            found.append((min(call.created_ns for call in calls.values()), hang))
    return min(found, key=lambda item: item[0])[1] if found else None


def _signature(call: Call) -> object:
    if any(name in call.name for name in _UNEVEN):
        return call.operation, call.dtypes[:1]
    return call.operation, call.input_sizes, call.dtypes


def _waiting(by_rank: Mapping[int, Dump], call: Call, blocked: Mapping[int, Call | None]) -> tuple[int, ...]:
    """The ranks that the same call blocks."""
    return tuple(
        rank
        for rank, own in sorted(blocked.items())
        if own is not None and (own.group, own.sequence, own.name) == (call.group, call.sequence, call.name)
    )


def _last(by_rank: Mapping[int, Dump], ranks: Sequence[int]) -> dict[int, Call]:
    return {rank: by_rank[rank].calls[-1] for rank in ranks if rank in by_rank and by_rank[rank].calls}


def _missing(by_rank: Mapping[int, Dump], rank: int, free: tuple[int, ...], blocked: Mapping[int, Call | None]) -> Hang:
    call = blocked[rank]
    assert call is not None
    dumped = tuple(other for other in free if other in by_rank)
    kind, ranks = (MISSING, dumped) if dumped else (NO_DUMP, free)
    waiting = _waiting(by_rank, call, blocked)
    return Hang(
        kind=kind,
        ranks=ranks,
        waiting=waiting,
        call=call,
        members=_members(by_rank[rank], call),
        others=_last(by_rank, ranks),
    )


def _stuck(by_rank: Mapping[int, Dump], rank: int, blocked: Mapping[int, Call | None]) -> Hang:
    call = blocked[rank]
    assert call is not None
    members = _members(by_rank[rank], call)
    behind = tuple(
        other
        for other in members
        if other in by_rank and (own := _partner(by_rank[other], call)) is not None and own.state == "scheduled"
    )
    started = len(behind) < len([other for other in members if other in by_rank])
    ranks = behind if started else ()
    return Hang(
        kind=STUCK, ranks=ranks, waiting=_waiting(by_rank, call, blocked), call=call, members=members, others={}
    )


def _crossed(by_rank: Mapping[int, Dump], circle: Sequence[int], blocked: Mapping[int, Call | None]) -> Hang:
    call = blocked[circle[0]]
    assert call is not None
    others = {rank: own for rank in circle[1:] if (own := blocked[rank]) is not None}
    return Hang(
        kind=CROSSED,
        ranks=tuple(sorted(circle)),
        waiting=(circle[0],),
        call=call,
        members=_members(by_rank[circle[0]], call),
        others=others,
    )


def answer(dumps: Sequence[Dump]) -> list[tuple[str, str]]:
    """The cause in at most five lines, a word and its text each."""
    hang = find_hang(dumps)
    if hang.kind == SILENT:
        ranks = ranges(hang.ranks)
        cause = f"rank {ranks} wrote no dump, and every call in the other dumps has completed"
        return [("HANG", f"{cause}: it ended, or waits outside of NCCL's calls"), ("NEXT", _next(hang))]
    if hang.kind == NONE or hang.call is None:
        return [("HANG", "none: every call in these dumps has completed"), ("NEXT", "look at the ranks' own logs")]
    call = hang.call
    number = "" if call.point_to_point else f" (number {call.sequence} of {_group(dumps, call, hang.members)})"
    found = [("HANG", _cause(hang, number))]
    if call.completed:  # of a mismatch: this part found what it took for its partners
        found.append(("AGAINST", f"rank {ranges(hang.waiting)}: {_at(call)}, completed"))
    else:
        group = f" of {_name(dumps, call)}" if hang.kind == CROSSED else ""
        found.append(("WAITING", f"rank {ranges(hang.waiting)} in {_at(call, group)}{_since(dumps, hang)}"))
    word = {MISMATCH: "INSTEAD", MISSING: "LAST"}.get(hang.kind, "AND")
    for rank, other in list(hang.others.items())[:2]:
        group = f" of {_name(dumps, other)}" if hang.kind == CROSSED else ""
        found.append((word, f"rank {rank}: {_at(other, group)}, {other.state}"))
    found.append(("NEXT", _next(hang)))
    return found


def _at(call: Call, group: str = "") -> str:
    return f"{call.what}{group} at {call.place}" if call.place else f"{call.what}{group}"


def _name(dumps: Sequence[Dump], call: Call) -> str:
    """The description of the call's group if it has one: ``default_pg``; else its name: ``group 3``."""
    found = next((dump.descriptions.get(call.group, "") for dump in dumps if call.group in dump.groups), "")
    return found if found not in ("", "undefined") else f"group {call.group}"


def _group(dumps: Sequence[Dump], call: Call, members: Sequence[int]) -> str:
    return f"{_name(dumps, call)}, ranks {ranges(tuple(members))}"


def _cause(hang: Hang, number: str) -> str:
    call, ranks = hang.call, ranges(hang.ranks)
    assert call is not None
    if hang.kind == MISSING:
        return f"rank {ranks} did not issue {call.what}{number}"
    if hang.kind == NO_DUMP:
        return f"rank {ranks} wrote no dump, and {call.what} waits for it{number}: it ended or does not answer"
    if hang.kind == MISMATCH:
        same = all(other.operation == call.operation for other in hang.others.values())
        what = f"{call.operation} of another size or type" if same else "another collective"
        return f"rank {ranks} issued {what} than rank {ranges(hang.waiting)}{number}"
    if hang.kind == CROSSED:
        return f"ranks {ranks} wait for each other: they issued their calls in different orders"
    if hang.ranks:
        return f"all ranks issued {call.what}{number}; on rank {ranks} the GPU's work before it does not end"
    return f"all ranks issued {call.what}{number}, and it does not end: work before it on a GPU, the network or NCCL"


def _since(dumps: Sequence[Dump], hang: Hang) -> str:
    """How long the call had waited when the last call of any rank was made; "" below a second."""
    assert hang.call is not None
    last = max((call.created_ns for dump in dumps for call in dump.calls), default=0)
    seconds = (last - hang.call.created_ns) / 1e9
    return f", {seconds:.0f} s before the last call of any rank" if seconds >= 1 else ""


def _next(hang: Hang) -> str:
    if hang.kind in (MISSING, MISMATCH, CROSSED):
        return "phantora trace of the script with as many GPUs: the simulation hangs at the same call, with its line"
    if hang.kind == SILENT:
        return f"py-spy dump of rank {ranges(hang.ranks)}; a first send or receive waits for its peer unrecorded"
    if hang.kind == NO_DUMP:
        return f"the log of rank {ranges(hang.ranks)}: an error, an out-of-memory kill or a lost host"
    begun = "" if hang.ranks else "TORCH_NCCL_ENABLE_TIMING=1 records which ranks have begun it; "
    return f"{begun}the health of the links (ib_write_bw, dcgmi); phantora trace shows whether the script goes on"
