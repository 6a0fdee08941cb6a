"""Name of a stream: by the group whose collectives run on it, or by its most frequent work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

import numpy as np

from phantora.trace.analysis.communicators import Group, group_of, groups, ranges
from phantora.trace.analysis.grouping import group
from phantora.trace.reader import Log
from phantora.trace.schema import COMMUNICATION_KINDS, COPY_KINDS, DEVICE_KINDS, KINDS

Key = tuple[int, int]


def stream_names(log: Log, ranks: Collection[int] | None = None) -> dict[Key, str]:
    """``stream 7 (NCCL dp_shard)`` by rank and number of the stream, for streams on which anything ran."""
    known = groups(log)
    time: dict[Key, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for batch in log.batches(("kind", "rank", "stream", "comm", "start", "end"), DEVICE_KINDS, ranks):
        keys, place = group([batch[c] for c in ("rank", "stream", "kind", "comm")])
        took = np.bincount(place, batch["end"] - batch["start"], len(keys))
        for (rank, stream, kind, comm), ns in zip(keys, took.tolist(), strict=True):
            time[rank, stream][_use(KINDS[kind], group_of(known, comm))] += int(ns)
    per_host = max(1, log.metadata.ranks_per_host)
    found: dict[Key, str] = {}
    for (rank, stream), uses in sorted(time.items()):
        own_default = stream == rank % per_host  # the default streams of a host's GPUs come first
        found[rank, stream] = _text(stream, max(sorted(uses), key=uses.__getitem__), own_default)
    return found


def _use(kind: str, of: Group) -> str:
    if kind in COMMUNICATION_KINDS:
        members = f"ranks {ranges(of.ranks)}" if of.ranks else str(of.comm)
        return f"NCCL {of.name if of.name not in ('', 'communicator') else members}"
    return "copies" if kind in COPY_KINDS else ""


def _text(stream: int, use: str, default: bool) -> str:
    if default and not use:
        use = "default"
    return f"stream {stream} ({use})" if use else f"stream {stream}"
