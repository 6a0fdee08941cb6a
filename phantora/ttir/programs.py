"""The work of a launch, from the counts of a few of its programs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import prod

from phantora.ttir.launch import Launch
from phantora.ttir.parse import Function
from phantora.ttir.walk import Counts, Walker
from phantora.ttir.work import COUNTERS, Dot, Work

FIRST, PAIRS = 4, 8  # programs, in symmetric pairs of the grid: if the first count the same, they represent all
MOST_PAIRS = 64  # else further batches of PAIRS, at most MOST_PAIRS in all, within this number of operations:
OPERATIONS = 6_000
EARLY = (0, 3)  # pairs that come first: one in the middle, one near both ends of the grid, where programs may differ
FILLED = 0.999  # of the bytes of its sectors: all that is written, but for rounding


def followed(grid: tuple[int, int, int], pairs: int) -> list[tuple[int, int, int]]:
    """Programs that represent all: spread evenly, each with its opposite, so that counts that grow along the grid have
    a true mean."""
    total = prod(grid)
    if total <= 2 * pairs:
        return [(i % grid[0], i // grid[0] % grid[1], i // grid[0] // grid[1]) for i in range(total)]
    chosen = []
    for i in (*EARLY, *(i for i in range(pairs) if i not in EARLY)):
        # Additive recurrences of the plastic number's powers cover three dimensions evenly.
        one = tuple(
            int((0.5 + i * share) % 1.0 * n) for share, n in zip((0.8191725, 0.6710436, 0.5497005), grid, strict=True)
        )
        chosen += [one, tuple(n - 1 - p for n, p in zip(grid, one, strict=True))]
    return chosen  # type: ignore[return-value]


def _batches(grid: tuple[int, int, int]) -> Sequence[list[tuple[int, int, int]]]:
    every = followed(grid, MOST_PAIRS)
    if prod(grid) <= 2 * MOST_PAIRS and len(every) > 2 * PAIRS:
        stride = len(every) // (2 * PAIRS) + 1
        every = [p for start in range(stride) for p in every[start::stride]]
    return [every[:FIRST], *(every[i : i + 2 * PAIRS] for i in range(FIRST, len(every), 2 * PAIRS))]


def work_of(functions: dict[str, Function], launch: Launch) -> Work:
    """The work of `launch`. Raises Unreadable for unknown IR."""
    walker = Walker(functions, launch)
    programs = prod(launch.grid)
    if not programs:
        return Work(
            programs=0,
            warps=launch.warps,
            stages=launch.stages,
            shared=launch.shared,
            registers=launch.registers,
            spills=launch.spills,
            counts={},
            longest=1.0,
            read=0.0,
            written=0.0,
        )
    each: list[Counts] = []
    for batch in _batches(launch.grid):
        each += [walker.run(program) for program in batch]
        if walker.operations_run > OPERATIONS or all(c == each[0] for c in each):
            break
    mean: Counts = defaultdict(float)
    for counts in each:
        for key, value in counts.items():
            mean[key] += value / len(each)
    weight = [c["flops"] + c["load_bytes"] + c["store_bytes"] for c in each]
    longest = max(weight) * len(weight) / sum(weight) if sum(weight) else 1.0
    moved = {"read": 0.0, "written": 0.0}
    for key, value in mean.items():
        if isinstance(key, tuple) and key[0] in moved:
            limit = walker.memories[key[1]].bytes if key[1] >= 0 else float("inf")
            moved[key[0]] += min(value * programs, limit)
        if isinstance(key, tuple) and key[0] == "cut" and value:  # what no store fills is read to be written back
            limit = walker.memories[key[1]].bytes if key[1] >= 0 else float("inf")
            written = min(mean["written", key[1]] * programs, limit)
            if mean["asked", key[1]] * programs < FILLED * written:
                moved["read"] += min(value * programs, written)
    products = [(key, n) for key, n in mean.items() if isinstance(key, tuple) and key[0] == "dot"]
    dots = tuple(Dot(key[1], key[2], key[3], key[4], n) for key, n in products)
    counted = {key: float(mean[key]) for key in COUNTERS if mean.get(key)}
    return Work(
        programs=programs,
        warps=launch.warps,
        stages=launch.stages,
        shared=launch.shared,
        registers=launch.registers,
        spills=launch.spills,
        counts=counted,
        longest=float(longest),
        read=moved["read"],
        written=moved["written"],
        dots=dots,
        copy_engine=bool(mean.get("copied")),
        unknown=tuple(sorted(walker.unknown)),
    )
