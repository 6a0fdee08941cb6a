"""The rank of a folded run with the most work in an optimizer that is cut unevenly (docs/scale.md).

Megatron's distributed optimizer and DeepSpeed's ZeRO-1 and -2 keep parameters in long buffers, of which each rank
updates a part as large as any other. Where a part begins and ends has nothing to do with where parameters do: one rank
has two pieces of large matrices, another twenty small vectors and many more kernels. All wait for that one. Or they
wait for the one that has pieces of the largest parameters, since some copies are made of whole ones.

After the update the parts are gathered into the buffer. So rank 0, run alone without a simulation, sees which
parameters lie in whose part. It ends when a buffer is gathered again.
"""

from __future__ import annotations

import gc
import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from multiprocessing import util
from types import ModuleType
from typing import Any

Span = tuple[int, int]  # first byte, first byte behind


def pieces(buffer: Span, parameters: Iterable[Span], ranks: Sequence[int]) -> tuple[Counter[int], Counter[int]]:
    """Parameters with bytes in the part of each of `ranks`, which share the buffer evenly and in order: their number,
    and their bytes in total."""
    begin, end = buffer
    part = (end - begin) // len(ranks)
    found: Counter[int] = Counter()
    touched: Counter[int] = Counter()
    for first, behind in parameters:
        low, high = max(first, begin), min(behind, end)
        if low < high:
            owners = ranks[(low - begin) // part : (high - 1 - begin) // part + 1]
            found.update(owners)
            touched.update(dict.fromkeys(owners, behind - first))
    return found, touched


def install(c10d: ModuleType, path: str) -> None:
    """Watches what this process gathers, and writes what it has seen to `path` when it ends."""
    known: set[Span] = set()
    counted: Counter[int] = Counter()
    touched: Counter[int] = Counter()

    def write() -> None:
        with open(path, "w") as file:
            json.dump([(rank, count, touched[rank]) for rank, count in sorted(counted.items())], file)

    def see(group: Any, gathered: Any) -> None:
        buffer = _span(gathered)
        if buffer in known:  # one step has passed
            write()
            os._exit(0)
        ranks = c10d.get_process_group_ranks(group)
        if len(ranks) < 2 or gathered.numel() < len(ranks):
            return
        here, bytes_of = pieces(buffer, _parameters(), ranks)
        if here:
            known.add(buffer)
            counted.update(here)
            touched.update(bytes_of)

    kind: Any = c10d.ProcessGroup
    one, many = kind._allgather_base, kind.allgather_into_tensor_coalesced

    def gather(self: Any, output: Any, *arguments: Any) -> Any:
        see(self, output)
        return one(self, output, *arguments)

    def gather_many(self: Any, outputs: Any, *arguments: Any) -> Any:
        for output in outputs:
            see(self, output)
        return many(self, outputs, *arguments)

    kind._allgather_base, kind.allgather_into_tensor_coalesced = gather, gather_many
    util.Finalize(None, write, exitpriority=0)


def _span(tensor: Any) -> Span:
    begin = tensor.data_ptr()
    return begin, begin + tensor.numel() * tensor.element_size()


def _parameters() -> list[Span]:
    """All parameters on the GPU. The garbage collector knows those without a name as well."""
    import torch

    every = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.nn.Parameter)]
    return sorted({_span(parameter) for parameter in every if parameter.is_cuda and parameter.numel()})
