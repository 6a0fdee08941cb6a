"""Allocations at the peak of one memory snapshot that are missing in another, by line and size."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from phantora.dumps.frames import program_line
from phantora.dumps.memory_snapshot import ROUNDED, WORTH_NAMING, Block, Snapshot
from phantora.trace.analysis.memory_rows import LOCATED
from phantora.trace.analysis.units import size

WITHOUT_LINE = "without a line"
"""The place of blocks of autograd's threads, of small blocks of simulated runs, and of blocks before the history."""
_MOST = 4


@dataclass(frozen=True, kw_only=True)
class Unmatched:
    """Equal blocks of one snapshot that are missing in the other."""

    place: str
    bytes: int
    """Size of one block."""
    count: int
    in_first: bool
    """The first snapshot has them."""

    @property
    def total(self) -> int:
        """Bytes of all."""
        return self.bytes * self.count


def unmatched(first: Snapshot, second: Snapshot) -> list[Unmatched]:
    """Blocks at the peaks that have no partner of the same size, the most bytes first.

    Blocks are paired by line and size, and those that are left by size alone: the line of a block of autograd's threads
    is unknown in a real snapshot.
    """
    one, other = _at_peak(first), _at_peak(second)
    one, other = one - other, other - one
    _pair_by_size(one, other)
    found = [
        Unmatched(place=place, bytes=count, count=number, in_first=blocks is one)
        for blocks in (one, other)
        for (place, count), number in blocks.items()
        if number
    ]
    return sorted(found, key=lambda each: (-each.total, each.place, each.bytes))


def _at_peak(snapshot: Snapshot) -> Counter[tuple[str, int]]:
    event = snapshot.peak_event
    return Counter(
        (_place(block), -(-block.bytes // ROUNDED) * ROUNDED)
        for block in snapshot.blocks
        if block.begin <= event < block.end
    )


def _place(block: Block) -> str:
    line = program_line(block.frames) if block.bytes >= LOCATED else None
    return str(line) if line is not None and " of " not in str(line) else WITHOUT_LINE


def _pair_by_size(one: Counter[tuple[str, int]], other: Counter[tuple[str, int]]) -> None:
    by_size: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for key in other:
        by_size[key[1]].append(key)
    for mine in one:
        for theirs in by_size[mine[1]]:
            pairs = min(one[mine], other[theirs])
            one[mine] -= pairs
            other[theirs] -= pairs


def answer(first: Snapshot, second: Snapshot) -> list[tuple[str, str]]:
    """Both peaks and the blocks of one alone, at most five lines: a word and its text each."""
    lines = [("PEAK", f"{size(first.peak)} in {first.path}, {size(second.peak)} in {second.path}")]
    least = WORTH_NAMING * max(first.peak, second.peak)
    found = unmatched(first, second)
    for each in [one for one in found if one.total >= least][:_MOST]:
        path = second.path if each.in_first else first.path
        blocks = f"{each.count} blocks" if each.count > 1 else "1 block"
        lines.append(("LACKS", f"{path}: {blocks} of {size(each.bytes)}, {each.place}"))
    if len(lines) == 1:
        rest = size(sum(one.total for one in found))
        lines.append(("SAME", f"every block at the peak has a partner, but {rest} of small ones" if found else
                      "every block at the peak has a partner"))  # fmt: skip
    return lines
