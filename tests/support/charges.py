"""The first difference of two runs' host charges (PHANTORA_CHARGES, `stub/rank/runtime/charges.c`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice, zip_longest
from pathlib import Path

from phantora.wire.layout import Api

BEFORE = 3
AFTER = 6
MOST_RANKS = 4


def charges(path: Path) -> Iterator[str]:
    """The costs, functions, advances and answers of a rank, in order."""
    names = dict(enumerate(name.lower() for name in Api.names()))
    with path.open() as lines:
        for line in lines:
            number, _, name = line.rstrip("\n").partition(" ")
            if name:
                names[int(number)] = name
            else:
                yield names[int(number)] if number.isdecimal() else f"clock {number} ns"


def parting(one: Path, other: Path) -> list[str]:
    """The last equal charges and the first that differ, one to a line; none if all are equal."""
    sides = charges(one), charges(other)
    before: deque[str] = deque(maxlen=BEFORE)
    for first, second in zip_longest(*sides):
        if first == second:
            before.append(first)
            continue
        after = ([what or "the end", *islice(side, AFTER)] for what, side in zip((first, second), sides, strict=True))
        return [*before, *(f"{sign} {what}" for sign, rest in zip("-+", after, strict=True) for what in rest)]
    return []


def differences(one: Path, other: Path) -> Iterator[str]:
    """The same for the ranks of two runs, whose folders are given; of some ranks, if all differ."""
    names = sorted(path.name for path in one.iterdir())
    unlike = [name for name in names if (one / name).read_bytes() != (other / name).read_bytes()]
    differ = {name: lines for name in unlike if (lines := parting(one / name, other / name))}
    yield f"charges: {len(differ)} of {len(names)} ranks differ"
    for name, lines in list(differ.items())[:MOST_RANKS]:
        yield f"{name}:"
        yield from (f"    {line}" for line in lines)
