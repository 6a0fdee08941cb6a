"""Name of a stream by its role: the collectives of a group, copies, or compute."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

import numpy as np

from phantora.trace.analysis.communicators import Group, collective_kind, group_of, groups, ranges
from phantora.trace.analysis.grouping import group
from phantora.trace.reader import Log
from phantora.trace.schema import COMMUNICATION_KINDS, COPY_KINDS, DEVICE_KINDS, KINDS

Key = tuple[int, int]
_COPIES = "copies"
_COLUMNS = ("rank", "stream", "kind", "comm", "name", "cls")


def stream_names(log: Log, ranks: Collection[int] | None = None) -> dict[Key, str]:
    """``stream 7 (all_gather dp_shard)`` by rank and number of the stream, for streams on which anything ran: what
    takes most of its time."""
    known, names, classes = groups(log), log.words("name"), log.words("cls")
    copying = {i for i, word in enumerate(classes) if word == "copy"}
    time: dict[Key, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for batch in log.batches((*_COLUMNS, "start", "end"), DEVICE_KINDS, ranks):
        communicates = np.isin(batch["kind"], [KINDS.index(kind) for kind in COMMUNICATION_KINDS])
        # Of names only those of collectives count: a stream has thousands of kernels.
        columns = {column: batch[column] for column in _COLUMNS}
        columns["name"] = np.where(communicates, batch["name"], -1)
        keys, place = group(list(columns.values()))
        took = np.bincount(place, batch["end"] - batch["start"], len(keys))
        for (rank, stream, kind, comm, name, cls), ns in zip(keys, took.tolist(), strict=True):
            if KINDS[kind] in COMMUNICATION_KINDS:
                role = _collectives(names[name] if name >= 0 else "", group_of(known, comm))
            else:
                role = _COPIES if KINDS[kind] in COPY_KINDS or cls in copying else "compute"
            time[rank, stream][role] += int(ns)
    return {
        (rank, stream): f"stream {stream} ({max(sorted(roles), key=roles.__getitem__)})"
        for (rank, stream), roles in sorted(time.items())
    }


def _collectives(name: str, of: Group) -> str:
    kind = collective_kind(name)
    members = f"ranks {ranges(of.ranks)}" if of.ranks else str(of.comm)
    return f"{kind if kind != name else 'NCCL'} {of.name if of.name not in ('', 'communicator') else members}"
