"""Kineto's arguments of operators and collectives, from the log's texts.

Names and forms are those of ``torch/csrc/profiler`` and ``torch/csrc/distributed/c10d/ParamCommsUtils.hpp``, which
HolisticTraceAnalysis and TraceLens read.
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from phantora.trace.analysis.communicators import Group, collective_kind, group_of, groups
from phantora.trace.reader import Log

# Short dtype of the log -> (C++ name in operators' arguments, name in collectives' arguments, bytes).
_DTYPES = {
    "bf16": ("c10::BFloat16", "BFloat16", 2),
    "fp16": ("c10::Half", "Half", 2),
    "fp32": ("float", "Float", 4),
    "fp64": ("double", "Double", 8),
    "i64": ("long int", "Long", 8),
    "i32": ("int", "Int", 4),
    "i16": ("short int", "Short", 2),
    "i8": ("signed char", "Char", 1),
    "u8": ("unsigned char", "Byte", 1),
    "bool": ("bool", "Bool", 1),
}
_OF_KERNELS = {"f16": "fp16", "f32": "fp32", "f64": "fp64", "u8": "u8", "bf16": "bf16"}
"""Types in names of NCCL's kernels -> as the log writes them."""
_BYTES = "u8"  # a collective whose dtype the log does not have is one of bytes
_COLLECTIVES = {
    "all_reduce": "allreduce",
    "all_gather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "all_to_all": "all_to_all",
}
TENSOR = re.compile(r"(?:sparse_\w+ )?(\w+)\[([\d,]*)\](?:@\w+)?")
"""A tensor in the log's text of arguments: its dtype and extents."""
_FIRST_TENSOR = re.compile(r"\b(\w+)\[\d")
_KERNEL_DTYPE = re.compile(r"_(bf16|f16|f32|f64|u8)_")
_NUMBER = re.compile(r"-?(?:\d+\.?\d*(?:e[-+]?\d+)?|inf|nan)|True|False")
_C10D = "c10d::"


def operator_args(shape: str) -> str:
    """``"Input Dims": [[64, 64]], ...`` of an operator whose arguments the log writes as `shape`."""
    dims: list[Any] = []
    types: list[str] = []
    values: list[str] = []
    for item in _items(shape.split(" -> ")[0]):
        if tensor := TENSOR.fullmatch(item):
            dims.append(_extents(tensor))
            types.append(_DTYPES.get(tensor[1], (f"c10::{tensor[1].capitalize()}",))[0])
            values.append("")
        elif item.startswith("(") and TENSOR.search(item):
            dims.append([_extents(tensor) for tensor in TENSOR.finditer(item)])
            types.append("TensorList")
            values.append("")
        else:
            dims.append([])
            types.append("ScalarList" if item.startswith("(") else "Scalar" if _NUMBER.fullmatch(item) else "")
            values.append(item.replace("(", "[").replace(")", "]") if types[-1] else "")
    return json.dumps({"Input Dims": dims, "Input type": types, "Concrete Inputs": values})[1:-1]


def _extents(tensor: re.Match[str]) -> list[int]:
    return [int(n) for n in tensor[2].split(",") if n]


def _items(text: str) -> list[str]:
    """Arguments, separated by commas outside of brackets."""
    found: list[str] = []
    depth = begin = 0
    for place, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            found.append(text[begin:place].strip())
            begin = place + 1
    return [*found, text[begin:].strip()] if text else []


def _purpose(group: Group) -> str:
    return group.name if group.name not in ("", "communicator") else "undefined"


class CollectiveArgs:
    """The arguments of collectives' kernels."""

    def __init__(self, log: Log) -> None:
        self._groups = groups(log)
        self._names = log.words("name")
        self._dtype = self._dtypes(log)

    @staticmethod
    def _dtypes(log: Log) -> dict[tuple[int, int], str]:
        """Short dtype by (rank, id) of the operators of torch.distributed that launch collectives."""
        operators, shapes = log.words("op"), log.words("shape")
        c10d = np.array([word.startswith(_C10D) for word in operators] + [False])
        if not c10d.any():
            return {}
        found: dict[tuple[int, int], str] = {}
        for batch in log.batches(("rank", "id", "op", "shape"), kinds=("operator",)):
            own = c10d[batch["op"]] & (batch["shape"] >= 0)
            columns = (batch[column][own].tolist() for column in ("rank", "id", "shape"))
            for rank, number, shape in zip(*columns, strict=True):
                if match := _FIRST_TENSOR.search(shapes[shape]):
                    found[rank, number] = match[1]
        return found

    def config(self, rank: int) -> list[dict[str, Any]]:
        """``distributedInfo.pg_config`` of a rank."""
        return [
            {
                "pg_name": str(group.comm),
                "pg_desc": _purpose(group),
                "backend_config": "cuda:nccl",
                "pg_size": len(group.ranks),
                "ranks": list(group.ranks),
            }
            for group in self._groups.values()
            if rank in group.ranks
        ]

    def of(self, row: dict[str, Any]) -> str:
        """JSON text of the arguments of a collective's or a transfer's row."""
        name = self._names[row["name"]] if row["name"] >= 0 else ""
        group, kind = group_of(self._groups, row["comm"]), collective_kind(name)
        named = _KERNEL_DTYPE.search(name)
        dtype = self._dtype.get((row["rank"], row["link"])) or (_OF_KERNELS[named[1]] if named else _BYTES)
        _, spelled, width = _DTYPES.get(dtype, _DTYPES[_BYTES])
        if row["bytes"] % width:
            _, spelled, width = _DTYPES[_BYTES]
        most, size = row["bytes"] // width, max(1, len(group.ranks))
        args = {
            "Collective name": _COLLECTIVES.get(kind, kind),
            "In msg nelems": most // size if kind == "all_gather" else most,
            "Out msg nelems": most // size if kind == "reduce_scatter" else most,
            "Group size": size,
            "dtype": spelled,
            "In split size": "[]",
            "Out split size": "[]",
            "Process Group Name": str(row["comm"]),
            "Process Group Description": _purpose(group),
            "Process Group Ranks": str(list(group.ranks)),
            "Seq": row["seq"],
        }
        if row["ready"] > row["start"]:
            args["wait (us)"] = (row["ready"] - row["start"]) / 1000
        return json.dumps(args)[1:-1]
