"""The dimensions that rank 0 cuts into chunks for a group of ranks, by FSDP2 and by DTensor (``--fold auto``).

Where the number of ranks does not divide a dimension, ranks of several kinds follow each other: see
``phantora.fold.discovery.kinds_of_chunks``.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from types import ModuleType
from typing import Any

from phantora.rank.importhook import on_import

_FSDP = "torch.distributed.fsdp._fully_shard._fsdp_param"
_DTENSOR = "torch.distributed.tensor.placement_types"


def install(path: str) -> None:
    """Appends each (rows, parts) to a file. Call it in the rank, before its script runs."""
    known: set[tuple[int, int]] = set()

    def note(rows: Any, parts: Any) -> None:
        cut = rows, parts
        if cut not in known and isinstance(rows, int) and isinstance(parts, int) and rows % parts:
            known.add(cut)
            with open(path, "a") as file:
                file.write(json.dumps({"rows": rows, "parts": parts}) + "\n")

    def cutting(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def cut(tensor: Any, parts: int, *arguments: Any, **more: Any) -> Any:
            note(tensor.size(more.get("dim", arguments[-1] if arguments else 0)), parts)
            return call(tensor, parts, *arguments, **more)

        return cut

    def meet(module: ModuleType) -> None:
        chunk = getattr(module, "_chunk_with_empty", None)
        if chunk is not None:
            module._chunk_with_empty = cutting(chunk)  # type: ignore[attr-defined]
        shard: Any = getattr(module, "Shard", None)
        if shard is None or module.__name__ != _DTENSOR:
            return
        if split := getattr(shard, "_split_tensor_helper", None):
            shard._split_tensor_helper = staticmethod(cutting(split))
        if count := getattr(shard, "local_shard_size_and_offset", None):

            @functools.wraps(count)
            def counted(rows: int, parts: int, *arguments: Any) -> Any:
                note(rows, parts)
                return count(rows, parts, *arguments)

            shard.local_shard_size_and_offset = staticmethod(counted)

    on_import((_FSDP, _DTENSOR), meet)
