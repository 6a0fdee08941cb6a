"""Communicators and the process groups that made them, and how collectives are known by name."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from phantora.trace.reader import Log


@dataclass(frozen=True)
class Group:
    """A communicator. `ranks` is empty when the log does not list them."""

    comm: int
    name: str
    ranks: tuple[int, ...]

    @cached_property
    def label(self) -> str:
        """``dp_shard: ranks 0-7 (8)``, short enough for a table."""
        members = ranges(self.ranks)
        if len(members) > 24:
            members = f"{members[:20]}..."
        unknown = f"communicator {self.comm}" if self.comm >= 0 else "unknown ranks"
        text = f"ranks {members}" if self.ranks else unknown
        return f"{self.name}: {text}" if self.name not in ("", "communicator") else text


def groups(log: Log) -> dict[int, Group]:
    """All communicators of the log by number."""
    names, shapes = log.words("name"), log.words("shape")
    found: dict[int, Group] = {}
    for batch in log.batches(("comm", "name", "shape"), kinds=("communicator",)):
        for comm, name, shape in zip(*(batch[c].tolist() for c in ("comm", "name", "shape")), strict=True):
            if comm not in found:
                label = names[name] if name >= 0 else ""
                found[comm] = Group(comm, label, _members(shapes[shape] if shape >= 0 else ""))
    return found


def group_of(found: dict[int, Group], comm: int) -> Group:
    """The group of communicator `comm`; one without members if the log has none."""
    return found.get(comm, Group(comm, "", ()))


def _members(text: str) -> tuple[int, ...]:
    """``"0,1,4-7"`` as numbers."""
    ranks: list[int] = []
    for piece in text.strip("()[]").split(","):
        first, dash, last = piece.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            return ()
        ranks += range(int(first), int(last if dash else first) + 1)
    return tuple(ranks)


def ranges(numbers: tuple[int, ...]) -> str:
    """``0-3,7``; evenly spaced numbers as ``0-56 by 8``."""
    if len(numbers) > 2:
        stride = numbers[1] - numbers[0]
        if stride > 1 and numbers == tuple(range(numbers[0], numbers[-1] + 1, stride)):
            return f"{numbers[0]}-{numbers[-1]} by {stride}"
    pieces: list[list[int]] = []
    for number in numbers:
        if pieces and pieces[-1][1] == number - 1:
            pieces[-1][1] = number
        else:
            pieces.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in pieces)


def collective_kind(name: str) -> str:
    """``all_reduce`` from ``ncclDevKernel_AllReduce_Sum_bf16_RING_LL(...)``; else the name itself."""
    flat = name.replace("_", "").lower()
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv", "reduce"):
        if kind.replace("_", "") in flat:
            return kind
    return name


def bus_factor(kind: str, ranks: int) -> float | None:
    """Bus bandwidth over algorithm bandwidth, as nccl-tests define them (their PERFORMANCE.md);
    None when the number of ranks is unknown."""
    if ranks < 2:
        return None
    if kind == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if kind in ("all_gather", "reduce_scatter", "all_to_all"):
        return (ranks - 1) / ranks
    return 1.0
