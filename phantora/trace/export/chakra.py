"""Chakra execution traces: a file per rank, ``run.0.et``, for network simulators such as ASTRA-sim, and the ranks of
each communicator, ``run.groups.json``.

A file is a GlobalMetadata and Nodes of MLCommons' ``et_def.proto``, each behind its length as a varint. Nodes are the
work of the rank's GPU, in order of their start. A node depends on the one before it on its stream, and on the work
behind each event that its stream waits for. Durations are microseconds, at least 1. ``comm_size`` of a collective is
the bytes of its input on this rank, as Chakra's converter of PyTorch traces counts them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field

from phantora.errors import PhantoraError
from phantora.trace.analysis.communicators import collective_kind, group_of, groups
from phantora.trace.export import proto
from phantora.trace.export.files import replacing
from phantora.trace.export.selection import Progress, Selection
from phantora.trace.export.selector import Selector
from phantora.trace.reader import Log
from phantora.trace.schema import COPY_KINDS, KINDS

COMPUTE, COLLECTIVE = 4, 7
_TYPES = {"all_reduce": 0, "reduce": 1, "all_gather": 2, "broadcast": 5, "all_to_all": 6, "reduce_scatter": 7}
"""CollectiveCommType."""
_INT64, _BOOL, _STRING = 9, 27, 29
_ORDERED = ("kernel", *COPY_KINDS, "collective", "sendrecv", "record", "wait")
_COLUMNS = ("kind", "rank", "stream", "name", "start", "end", "ready", "id", "link", "comm", "bytes", "flops")


@dataclass
class _Rank:
    """State of a rank while its rows are read in order of their end."""

    last: dict[int, int] = field(default_factory=dict)
    """Node by stream."""
    behind: dict[int, int] = field(default_factory=dict)
    """Node by event record."""
    waited: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    """Nodes that the next of a stream depends on, in addition to the stream's last."""
    nodes: list[tuple[int, bytes]] = field(default_factory=list)
    """Nodes with the start of each."""


def write(log: Log, path: str, selection: Selection, progress: Progress | None = None) -> list[str]:
    """Writes ``PATH`` with the rank before its suffix. Raises PhantoraError for a run with sends: the log does not have
    their direction, and for kernels on the memory of peers."""
    selector = Selector(log, selection, progress)
    names, known = log.words("name"), groups(log)
    ranks = {rank: _Rank() for rank in selector.ranks}
    for batch in selector.batches(_COLUMNS, _ORDERED):
        for values in zip(*(batch[column].tolist() for column in _COLUMNS), strict=True):
            row = dict(zip(_COLUMNS, values, strict=True))
            kind, own = KINDS[row["kind"]], ranks[row["rank"]]
            if kind == "record":
                own.behind[row["id"]] = own.last.get(row["stream"], -1)
            elif kind == "wait":
                own.waited[row["stream"]].add(own.behind.get(row["link"], -1))
            elif kind == "sendrecv":
                raise PhantoraError(f"{log.path}: has sends, of which the log has no direction: Chakra needs it")
            else:
                name = names[row["name"]] if row["name"] >= 0 else kind
                members = group_of(known, row["comm"]).ranks
                own.nodes.append((row["start"], _node(row, kind, name, own, len(members))))
                own.last[row["stream"]] = row["id"]
    of_groups = f"{path.removesuffix('.et')}.groups.json"
    with replacing(of_groups) as file:
        file.write(json.dumps({str(group.comm): list(group.ranks) for group in known.values()}).encode())
    return [*(_file(path, rank, own) for rank, own in ranks.items()), of_groups]


def _node(row: dict[str, int], kind: str, name: str, own: _Rank, members: int) -> bytes:
    stream = row["stream"]
    before = sorted({own.last.get(stream, -1), *own.waited.pop(stream, ())} - {-1})
    start = max(row["start"], row["ready"]) if kind == "collective" else row["start"]
    attributes = [_attribute("is_cpu_op", _BOOL, 0)]
    if kind == "collective":
        if (found := collective_kind(name)) not in _TYPES:
            raise PhantoraError(f"Chakra has no collective like {name}; leave it out with --kinds")
        attributes.append(_attribute("comm_type", _INT64, _TYPES[found]))
        size = row["bytes"] // max(1, members) if found == "all_gather" else row["bytes"]
        attributes.append(_attribute("comm_size", _INT64, size))
        attributes.append(proto.blob(10, proto.blob(1, "pg_name"), proto.blob(_STRING, str(row["comm"]))))
        attributes.append(_attribute("group_size", _INT64, members))
    else:
        attributes.append(_attribute("num_ops", _INT64, round(row["flops"])))
        attributes.append(_attribute("tensor_size", _INT64, row["bytes"]))
    return b"".join(
        (
            proto.number(1, row["id"]),
            proto.blob(2, name),
            proto.number(3, COLLECTIVE if kind == "collective" else COMPUTE),
            proto.blob(5, *(proto.varint(node) for node in before)) if before else b"",
            proto.number(6, start // 1000),
            proto.number(7, max(1, round((row["end"] - start) / 1000))),
            *attributes,
        )
    )


def _attribute(name: str, kind: int, value: int) -> bytes:
    return proto.blob(10, proto.blob(1, name), proto.number(kind, value))


def _file(path: str, rank: int, own: _Rank) -> str:
    name = f"{path.removesuffix('.et')}.{rank}.et"
    with replacing(name) as file:
        for message in (proto.blob(1, "0.0.4"), *(node for _, node in sorted(own.nodes))):
            file.write(proto.varint(len(message)) + message)
    return name
