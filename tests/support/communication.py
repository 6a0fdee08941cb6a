"""Collectives, sends and receives of a log, counted for a comparison with a layout's arithmetic."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

from phantora.trace.reader import open_log


class Message(NamedTuple):
    """A kind of communication kernel: ``AllGather``, ``AllReduce``, ``SendRecv`` ..., members of its group, bytes."""

    kind: str
    group: int
    bytes: int


def groups(log: Path) -> dict[int, tuple[int, ...]]:
    """The ranks of each communicator."""
    opened = open_log(log)
    texts = opened.words("shape")
    found = {}
    for batch in opened.batches(("comm", "shape"), kinds=("communicator",)):
        for comm, shape in zip(batch["comm"].tolist(), batch["shape"].tolist(), strict=True):
            found[comm] = tuple(int(rank) for rank in texts[shape].split(","))
    return found


def messages(log: Path, rank: int) -> Counter[Message]:
    """Counts of each kind of message on `rank` in the whole run."""
    members = groups(log)
    opened = open_log(log)
    names = [name.removeprefix("ncclDevKernel_").split("_")[0].split("(")[0] for name in opened.words("name")]
    count: Counter[Message] = Counter()
    for batch in opened.batches(("name", "comm", "bytes"), kinds=("collective", "sendrecv"), ranks=(rank,)):
        for name, comm, size in zip(*(batch[c].tolist() for c in ("name", "comm", "bytes")), strict=True):
            count[Message(names[name], len(members[comm]), size)] += 1
    return count


def flops(log: Path, rank: int) -> float:
    """Floating-point operations of all kernels of `rank`."""
    return sum(float(batch["flops"].sum()) for batch in open_log(log).batches(("kind", "flops"), ranks=(rank,)))


def peak_allocated(log: Path, rank: int) -> int:
    """Bytes, by the framework's allocator."""
    batches = open_log(log).batches(("value",), kinds=("memory",), ranks=(rank,))
    return max(int(batch["value"].max(initial=0)) for batch in batches)


def barriers(log: Path, rank: int) -> list[int]:
    """Ends of the barriers of all ranks (an all-reduce of 4 bytes), in order."""
    opened = open_log(log)
    everybody = {comm for comm, ranks in groups(log).items() if len(ranks) == opened.metadata.world_size}
    ends = []
    for batch in opened.batches(("comm", "bytes", "end"), kinds=("collective",), ranks=(rank,)):
        for comm, size, end in zip(*(batch[c].tolist() for c in ("comm", "bytes", "end")), strict=True):
            if comm in everybody and size == 4:
                ends.append(end)
    return sorted(ends)
