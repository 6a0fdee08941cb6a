"""A list of ranks as a short text: ``0+8x4,...`` is START+STRIDExCOUNT for each run of evenly spaced ranks."""

from __future__ import annotations

from collections.abc import Sequence


def format_ranks(ranks: Sequence[int]) -> str:
    """The text of `ranks`, in order."""
    found: list[str] = []
    at = 0
    while at < len(ranks):
        stride = ranks[at + 1] - ranks[at] if at + 1 < len(ranks) else 1
        count = 1
        while at + count < len(ranks) and ranks[at + count] - ranks[at + count - 1] == stride:
            count += 1
        found.append(f"{ranks[at]}+{stride}x{count}")
        at += count
    return ",".join(found)


def parse_ranks(text: str) -> list[int]:
    """The inverse of :func:`format_ranks`."""
    parts = [tuple(map(int, part.replace("+", "x").split("x"))) for part in text.split(",")]
    return [start + number * stride for start, stride, count in parts for number in range(count)]
