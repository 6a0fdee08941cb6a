"""Chakra execution traces (MLCommons' ``et_def.proto``): a file per rank, ``run.0.et``, with the ranks of each process
group in ``run.groups.json`` next to them, as ASTRA-sim reads them and ``phantora export`` writes them.

Nodes have a start and a duration in microseconds. Where all start at 0, as in traces made by hand, a node starts when
the last one that it depends on ends. Streams are not in the file: work that overlaps lies on different ones.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from phantora.errors import PhantoraError, cause_of
from phantora.importers.rank import CODES, Group, RankTrace, Record, RowBuilder, Vocabulary
from phantora.importers.reader import Reader, Report
from phantora.trace.export.chakra import COLLECTIVE, COMPUTE

_SUFFIX = ".et"
_NAME = re.compile(r"(.*?)\.(\d+)\.et$")
_SEND, _RECEIVE = 5, 6
_KINDS = {COMPUTE: "kernel", _SEND: "sendrecv", _RECEIVE: "sendrecv", COLLECTIVE: "collective"}
_DATA, _CONTROL = 5, 4
"""Fields of a node with the nodes that it depends on."""
_TYPES = ("AllReduce", "Reduce", "AllGather", "Gather", "Scatter", "Broadcast", "AllToAll", "ReduceScatter")
"""Names by CollectiveCommType, as NCCL spells them."""
_NS = 1000  # in a microsecond


@dataclass(kw_only=True)
class _Node:
    number: int = 0
    name: str = ""
    kind: int = 0
    after: list[int] = field(default_factory=list)
    start: int = 0
    duration: int = 0
    attributes: dict[str, int | str] = field(default_factory=dict)


def _read(path: str, words: Vocabulary, position: int, _: Report | None) -> list[RankTrace]:
    """The work of a rank's GPU in the file `path`. Raises PhantoraError for a file that is no Chakra trace."""
    try:
        with open(path, "rb") as file:
            messages = list(_messages(file.read()))
        nodes = [_node(message) for message in messages[1:]]  # the first is the file's own
        nodes = [node for node in nodes if node.kind in _KINDS]
    except OSError as error:
        raise PhantoraError(f"{path}: cannot read the trace: {cause_of(error)}") from error
    except (ValueError, IndexError, UnicodeDecodeError) as error:
        raise PhantoraError(f"{path}: not a Chakra trace ({error})") from error
    if not nodes:
        raise PhantoraError(f"{path}: not a Chakra trace: it has no nodes of a GPU")
    found = _NAME.match(os.path.basename(path))
    groups = _groups(path, found[1] if found else "")
    rank = int(found[2]) if found else position
    world = max([rank + 1, *(1 + max(ranks) for ranks in groups.values() if ranks)])
    rows = RowBuilder()
    rows.add(_records(nodes, groups, words))
    return [
        RankTrace(
            rank=rank,
            source=path,
            rows=rows.rows(),
            world_size=world,
            missing={"launches": "torch.profiler", "shapes": "torch.profiler", "memory": "torch.profiler"},
        )
    ]


def _groups(path: str, stem: str) -> dict[str, tuple[int, ...]]:
    """Ranks by the name of their process group; empty without the file."""
    try:
        with open(os.path.join(os.path.dirname(path), f"{stem}.groups.json"), encoding="utf-8") as file:
            listed = json.load(file)
        return {str(name): tuple(int(rank) for rank in ranks) for name, ranks in listed.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def _records(nodes: list[_Node], groups: dict[str, tuple[int, ...]], words: Vocabulary) -> Iterator[Record]:
    starts = {node.number: node.start * _NS for node in nodes}
    if not any(starts.values()):
        _by_dependencies(nodes, starts)
    free: dict[bool, list[int]] = {True: [], False: []}  # by streams of communication and of work
    lanes: list[bool] = []  # a number for each stream
    numbers: dict[tuple[bool, int], int] = {}
    for node in sorted(nodes, key=lambda node: (starts[node.number], node.number)):
        start = starts[node.number]
        end = start + max(1, node.duration) * _NS
        moves = node.kind != COMPUTE
        lane = next((i for i, until in enumerate(free[moves]) if until <= start), len(free[moves]))
        free[moves][lane : lane + 1] = [end]
        if (moves, lane) not in numbers:
            numbers[moves, lane] = len(lanes)
            lanes.append(moves)
        group, name = -1, node.name
        if moves:
            label = str(node.attributes.get("pg_name", ""))
            group = words.groups.number(Group(label, "", groups.get(label, ())))
            name = _spelled(node)
        size = node.attributes.get("comm_size", node.attributes.get("tensor_size", 0))
        count = len(groups.get(str(node.attributes.get("pg_name", "")), ())) or 1
        if node.kind == COLLECTIVE and "AllGather" in name:
            size = int(size) * count  # Chakra counts what a rank gives
        number = words.names.number(name)
        kind = CODES[_KINDS[node.kind]]
        yield kind, numbers[moves, lane], number, -1, group, start, end, int(size), -1, -1, -1, 0, -1


def _spelled(node: _Node) -> str:
    """The name of a communication, with the kind of collective where it does not tell it."""
    kind = node.attributes.get("comm_type")
    if node.kind != COLLECTIVE or not isinstance(kind, int) or not 0 <= kind < len(_TYPES):
        return node.name
    flat = node.name.replace("_", "").lower()
    return node.name if _TYPES[kind].lower() in flat else f"{node.name} {_TYPES[kind]}"


def _by_dependencies(nodes: list[_Node], starts: dict[int, int]) -> None:
    """Fills `starts`: each node when the last one that it depends on ends. Nodes come after these in the file."""
    ends: dict[int, int] = {}
    for node in nodes:
        starts[node.number] = max((ends.get(other, 0) for other in node.after), default=0)
        ends[node.number] = starts[node.number] + max(1, node.duration) * _NS


# ---------------------------------------------------------------------- protocol buffers


def _messages(data: bytes) -> Iterator[bytes]:
    """Messages, each behind its length."""
    at = 0
    while at < len(data):
        length, at = _varint(data, at)
        if at + length > len(data):
            raise ValueError("a message is cut short")
        yield data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError("a number has too many bytes")


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers of fields with their values."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire = key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if wire == 2:
            length, at = _varint(data, at)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire}")
        if at + length > len(data):
            raise ValueError("a field is cut short")
        yield key >> 3, data[at : at + length]
        at += length


def _node(data: bytes) -> _Node:
    node = _Node()
    for number, value in _fields(data):
        if isinstance(value, bytes):
            if number == 2:
                node.name = value.decode()
            elif number in (_DATA, _CONTROL):
                at = 0
                while at < len(value):
                    other, at = _varint(value, at)
                    node.after.append(other)
            elif number == 10:
                node.attributes.update(_attribute(value))
        elif number == 1:
            node.number = value
        elif number == 3:
            node.kind = value
        elif number in (_DATA, _CONTROL):
            node.after.append(value)
        elif number == 6:
            node.start = value
        elif number == 7:
            node.duration = value
    return node


def _attribute(data: bytes) -> dict[str, int | str]:
    """A node's attribute: its name, then its value in the field of its type."""
    name = ""
    found: int | str | None = None
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            name = value.decode()
        elif isinstance(value, int):
            found = value
        elif number in (28, 29):
            found = value.decode()
    return {name: found} if found is not None else {}


READER = Reader(
    reads=lambda path: path.endswith(_SUFFIX),
    read=_read,
    suffixes=(_SUFFIX,),
    description="Chakra, one file per rank, with groups.json",
)
