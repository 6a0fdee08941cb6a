"""Constants of the error bar chosen on a random half of the runs and judged on the other half."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

from rich.console import Console
from rich.table import Table

from phantora.trace.analysis.hosts import step_on
from validation.compare.bar_parts import Parts

HALVES, INSIDE = 200, 0.9  # the bar says 9 in 10
LEAST = 8  # runs of a group
FOLLOWS = 0.05  # a step that takes so much longer on a host that is 1.5 times slower waits for it
COMMON_TRIED = tuple(percent / 1000 for percent in range(10, 40, 2))
TOGETHER_TRIED = tuple(tenth / 20 for tenth in range(21))
SPREAD_TRIED = tuple((1 - low / 100, 1 + high / 100) for low in range(0, 55, 5) for high in range(0, 75, 5))

Constants = tuple[float, ...]
Bar = Callable[[Parts, Constants], tuple[float, float]]


@dataclass(frozen=True)
class Judged:
    """Means over the halves that chose nothing; and the mean of the chosen."""

    inside: float
    width: float
    chosen: Constants


def waits(parts: Parts) -> bool:
    """True if the step follows its host."""
    return step_on(parts.by_host, parts.step_ns, 1.5) / parts.step_ns - 1 > FOLLOWS


def judge(runs: Sequence[tuple[float, Parts]], tried: Sequence[Constants], bar: Bar) -> Judged:
    """`runs`: the real step in s, and the simulated one. Chosen is what gives the least median width of all `tried`
    that hold 9 in 10 of the half, or, if none does, the one with most."""
    table = [[_outcome(real, parts, bar(parts, constants)) for real, parts in runs] for constants in tried]
    chance = random.Random(0)
    inside, widths, chosen = [], [], []
    for _ in range(HALVES):
        order = chance.sample(range(len(runs)), len(runs))
        ours, others = order[: len(order) // 2], order[len(order) // 2 :]
        best = min(range(len(tried)), key=lambda at: _rank([table[at][run] for run in ours]))
        judged = [table[best][run] for run in others]
        inside.append(sum(held for held, _ in judged) / len(judged))
        widths.append(statistics.median(width for _, width in judged))
        chosen.append(tried[best])
    means = tuple(statistics.mean(column) for column in zip(*chosen, strict=True))
    return Judged(statistics.mean(inside), statistics.mean(widths), means)


def _outcome(real: float, parts: Parts, bar: tuple[float, float]) -> tuple[bool, float]:
    below, above = bar
    return -below <= real * 1e9 / parts.step_ns - 1 <= above, below + above


def _rank(outcomes: Sequence[tuple[bool, float]]) -> tuple[float, float]:
    """Ascending: the best first."""
    held = sum(inside for inside, _ in outcomes)
    enough = math.ceil(INSIDE * len(outcomes))
    return max(0, enough - held), statistics.median(width for _, width in outcomes)


def in_use(runs: Sequence[tuple[float, Parts]]) -> Judged:
    """Result with the constants of a run's own bar, over all `runs`."""
    outcomes = [_outcome(real, parts, parts.bar()) for real, parts in runs]
    width = statistics.median(width for _, width in outcomes)
    return Judged(sum(held for held, _ in outcomes) / len(outcomes), width, ())


def report_halves(console: Console, runs: Sequence[tuple[float, Parts]]) -> None:
    """`runs`: real step in s, and what was simulated on the measured host."""
    reported = [(real, parts) for real, parts in runs if parts.prices is not None and parts.by_host]
    decided = [run for run in reported if not waits(run[1])]
    waiting = [run for run in reported if waits(run[1])]
    table = Table("host measured, parts known", "runs", "constants", "inside", "median width", box=None)
    for name, group in (("the GPU decides", decided), ("host-bound", waiting)):
        if len(group) < LEAST:
            continue
        if group is decided:
            found = judge(group, list(product(COMMON_TRIED, TOGETHER_TRIED)), lambda p, c: p.bar(c[0], c[1]))
            chosen = "common part {:.1%}, {:.2f} of the variance together".format(*found.chosen)
        else:
            found = judge(group, SPREAD_TRIED, lambda p, c: p.bar(spread=(c[0], c[1])))
            chosen = "hosts of {:.2f} to {:.2f}".format(*found.chosen)
        used = in_use(group)
        table.add_row(name, str(len(group)), "in use", f"{used.inside:.0%}", f"{used.width:.1%}")
        table.add_row("", "", f"of the other half: {chosen}", f"{found.inside:.0%}", f"{found.width:.1%}")
    console.print(table)
