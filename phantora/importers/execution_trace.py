"""PyTorch execution traces (``ExecutionTraceObserver``), which Chakra converts: operators with their tensors, no times.

A log of one has its operators in order, a nanosecond apart, with their shapes.
"""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Sequence
from typing import Any

import orjson

from phantora.cost.parse import signature_text
from phantora.cost.tensors import contiguous_strides
from phantora.cost.types import OperatorSignature, TensorSpec
from phantora.errors import PhantoraError
from phantora.importers.rank import CODES, Operator, RankTrace, Record, RowBuilder, Vocabulary
from phantora.importers.reader import Reader, Report
from phantora.importers.signatures import operator_dtype

_GZIP_HEAD = b"\x1f\x8b"
_TENSOR = re.compile(r"Tensor\((.+)\)")
_SCHEMA = re.compile(rb'"schema"\s*:\s*"[^"]*"')
_OPERATOR = re.compile(r"[\w]+::[\w.]+")
_HEAD_BYTES = 4096
_TIMES = "times"
_LEAST_JOINED = 0.5  # of the operators must be in the profiler's trace


def _is_trace(path: str) -> bool:
    """True if the file `path` begins as an execution trace does."""
    try:
        return _SCHEMA.search(_unpacked(path, _HEAD_BYTES)) is not None
    except (OSError, EOFError):
        return False


def _unpacked(path: str, most: int = -1) -> bytes:
    with open(path, "rb") as file:
        packed = file.read(2) == _GZIP_HEAD
    with gzip.open(path) if packed else open(path, "rb") as content:
        data: bytes = content.read(most)
        return data


def _join(path: str, words: Vocabulary, traces: Sequence[RankTrace]) -> None:
    """Gives operators of that of `traces` which is of the same run and process the arguments in the file `path`: those
    of one record function id. Raises PhantoraError if there is none."""
    nodes, _ = _operators(path, words)
    described = {number: node for node in nodes if (number := _function(node)) > 0}
    best, most = None, 0
    for trace in traces:
        names = trace.rows["name"]
        same = {
            position: node
            for number, node in described.items()
            if (position := trace.functions.get(number, -1)) >= 0
            and words.names.words[names[position]] == str(node["name"])
        }
        if len(same) > most:
            best, most, joined = trace, len(same), same
    if best is None or most < _LEAST_JOINED * len(described):
        raise PhantoraError(
            f"{path}: not of the same run as the profiler's trace: {most} of {len(described)} operators have the "
            "record function id and the name of one there; observe and profile the same steps with torch 2.2 or later"
        )
    for position, node in joined.items():
        best.rows["sig"][position] = _signature(node, words)
    best.missing.pop("shapes", None)


def _function(node: dict[str, Any]) -> int:
    """The id that the profiler gave a node, 0 for none."""
    listed = node.get("attrs") or []
    values = [entry.get("value") for entry in listed if entry.get("name") == "rf_id"]
    number = values[0] if values else node.get("rf_id", 0)
    return number if isinstance(number, int) else 0


def _operators(path: str, words: Vocabulary) -> tuple[list[dict[str, Any]], RowBuilder]:
    """The operators in the file `path`, and a row for each."""
    try:
        nodes = [node for node in orjson.loads(_unpacked(path))["nodes"] if _OPERATOR.match(str(node["name"]))]
        rows = RowBuilder()
        rows.add(_record(place, node, words) for place, node in enumerate(nodes))
    except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise PhantoraError(f"{path}: cannot read the execution trace: {error}") from error
    return nodes, rows


def _read(path: str, words: Vocabulary, position: int, _: Report | None) -> list[RankTrace]:
    """The operators in the file `path`. Raises PhantoraError for a file that cannot be read."""
    rows = _operators(path, words)[1]
    return [
        RankTrace(
            rank=position,
            source=path,
            rows=rows.rows(),
            world_size=position + 1,
            missing={_TIMES: "torch.profiler next to ExecutionTraceObserver", "kernels": "torch.profiler"},
            notes=[f"{os.path.basename(path)}: an execution trace has no times; its operators are in order, 1 ns each"],
        )
    ]


def _record(place: int, node: dict[str, Any], words: Vocabulary) -> Record:
    name, sig = words.names.number(str(node["name"])), _signature(node, words)
    return CODES["operator"], 0, name, sig, -1, place, place + 1, 0, -1, -1, -1, -1, -1


def _signature(node: dict[str, Any], words: Vocabulary) -> int:
    """The number of the operator with its arguments."""
    inputs = node.get("inputs", {})
    if isinstance(inputs, list):  # until version 1.0.2
        inputs = {"values": inputs, "shapes": node.get("input_shapes"), "types": node.get("input_types")}
    columns = [inputs.get(part) or [] for part in ("values", "shapes", "types")]
    args = tuple(_argument(*parts) for parts in zip(*columns, strict=False))
    signature = OperatorSignature(str(node["name"]), args)
    return words.signatures.number(Operator(signature, signature_text(signature)))


def _argument(value: Any, shape: Any, kind: Any) -> Any:
    tensor = _TENSOR.fullmatch(str(kind))
    if tensor is not None:
        extents = tuple(int(n) for n in shape)
        device = str(value[-1]) if isinstance(value, list) and value else ""
        where = "cpu" if device == "cpu" else "cuda"
        return TensorSpec(operator_dtype(tensor[1]), extents, stride=contiguous_strides(extents), device=where)
    if isinstance(value, list):
        kinds = re.findall(r"[\w]+(?:\([^)]*\))?", str(kind).partition("[")[2].rstrip("]"))
        shapes = shape if isinstance(shape, list) else []
        return tuple(
            _argument(item, shapes[i] if i < len(shapes) else [], kinds[min(i, len(kinds) - 1)] if kinds else "")
            for i, item in enumerate(value)
        )
    return value if isinstance(value, int | float | str | bool) else None


READER = Reader(
    reads=_is_trace,
    read=_read,
    join=_join,
    suffixes=(".json", ".json.gz"),
    description="torch.profiler's execution trace, next to the trace of its run",
)
