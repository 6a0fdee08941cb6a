"""The headline of many loops at two lengths: near the settled step, and independent of the number of steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from phantora.trace.analysis.analyze import Filters, analyze
from phantora.trace.reader import open_log
from tests.support.fakelog import METADATA, FakeRun, Kind

US = 1000
Work = list[tuple[str, float]]  # kernels: name, us
FORWARD: Work = [("embedding", 20), ("mm", 100), ("gelu", 30), ("mm", 120), ("loss", 15)]
BACKWARD: Work = [("loss_backward", 15), ("mm_backward", 240), ("gelu_backward", 40), ("mm_backward", 200)]
UPDATE: Work = [("adam", 60)]
TRAIN = [*FORWARD, *BACKWARD, *UPDATE]
LENGTHS = (13, 37)  # the first is start-up


def us(work: Work) -> float:
    return sum(time for _, time in work)


@dataclass
class Loop:
    """A loop of one rank's GPU. `step` gives the kernels of step k; "adam" ones are the optimizer's."""

    settled: float
    """us of a step."""
    step: Callable[[int], Work]
    marks: tuple[str, ...] = ("optimizer",)
    gap: float = 0
    """us between two kernels: the host is late."""
    pause: dict[int, float] = field(default_factory=dict)
    """us without work after step k."""
    before: Work = field(default_factory=list)
    """Kernels before the first step."""
    ranks: int = 1
    last: Work = field(default_factory=list)
    """Kernels after the last step."""


def plain(*marks: str, **more: object) -> Loop:
    return replace(Loop(us(TRAIN), lambda _: TRAIN, marks), **more)  # type: ignore[arg-type]


def scaled(work: Work, factor: float) -> Work:
    return [(name, time * factor) for name, time in work]


def warming(*factors: float) -> Callable[[int], Work]:
    """The first steps take `factors` times as long."""
    return lambda k: scaled(TRAIN, factors[k] if k < len(factors) else 1.0)


def jitter(k: int) -> Work:
    return scaled(TRAIN, 1 + 0.004 * ((7 * k) % 5 - 2))


EVALUATION: Work = [("mm", 100), ("gelu", 30), ("mm", 120), ("argmax", 8)] * 6
ACCUMULATED = [*(FORWARD + BACKWARD) * 4, *UPDATE]
GAN = [*FORWARD, *BACKWARD, ("adam", 60), *FORWARD, *BACKWARD[:2], ("adam_of_generator", 45)]
MANY = [FORWARD[0], *FORWARD[1:4] * 6, FORWARD[4], BACKWARD[0], *BACKWARD[1:] * 6, *[("adam", 12)] * 5]

LOOPS: dict[str, Loop] = {
    "plain": plain("optimizer"),
    "profiler": plain("profiler"),
    "no marks": plain(),
    "optimizer and profiler": plain("optimizer", "profiler"),
    "slow first step": plain("optimizer", step=warming(6.0)),
    "slow first step, profiler": plain("profiler", step=warming(6.0)),
    "slow first step, no marks": plain(step=warming(6.0)),
    "three slow steps": plain("optimizer", step=warming(8.0, 1.3, 1.1)),
    "fast first steps": plain("optimizer", step=warming(0.9, 0.95)),
    "jitter": plain("optimizer", step=jitter),
    "jitter, profiler": plain("profiler", step=jitter),
    "jitter, no marks": plain(step=jitter),
    "work before": plain("optimizer", before=[("normal", 30)] * 40),
    "work before, no marks": plain(before=[("normal", 30)] * 40),
    "work after": plain("optimizer", last=EVALUATION * 3),
    "checkpoint": plain("optimizer", pause={4: 50_000}),
    "checkpoint, no marks": plain(pause={4: 50_000}),
    "evaluation every four steps": Loop(us(TRAIN), lambda k: TRAIN + (EVALUATION if k % 4 == 3 else [])),
    "evaluation once": Loop(us(TRAIN), lambda k: TRAIN + (EVALUATION * 4 if k == 5 else [])),
    "accumulation": Loop(us(ACCUMULATED), lambda _: ACCUMULATED),
    "accumulation, no marks": Loop(us(ACCUMULATED), lambda _: ACCUMULATED, ()),
    "two optimizers": Loop(us(GAN), lambda _: GAN),
    "two optimizers, profiler": Loop(us(GAN), lambda _: GAN, ("profiler",)),
    "many layers": Loop(us(MANY), lambda _: MANY),
    "many layers, no marks": Loop(us(MANY), lambda _: MANY, ()),
    "inference": Loop(us(FORWARD), lambda _: FORWARD, ()),
    "tiny step": Loop(us(scaled(TRAIN, 0.05)), lambda _: scaled(TRAIN, 0.05)),
    "long step": Loop(us(scaled(TRAIN, 200)), lambda _: scaled(TRAIN, 200)),
    "lengths in turn": Loop(us(TRAIN), lambda k: scaled(TRAIN, (0.8, 1.0, 1.2, 1.0)[k % 4])),
    "every second step is longer": Loop(us(TRAIN) + 15, lambda k: TRAIN + ([("ema", 30)] if k % 2 else [])),
    "late host": plain("optimizer", gap=25, settled=us(TRAIN) + 25 * len(TRAIN)),
    "late host, profiler": plain("profiler", gap=25, settled=us(TRAIN) + 25 * len(TRAIN)),
    "two ranks": plain("optimizer", ranks=2),
    "a slow first step of two ranks": plain("optimizer", ranks=2, step=warming(4.0)),
}


def log_of(loop: Loop, steps: int) -> FakeRun:
    """The host launches 5 us ahead, so steps of the host are those of the GPU."""
    run = FakeRun(metadata=replace(METADATA, world_size=loop.ranks, ranks_per_host=loop.ranks))
    price = run.price("gemm", "measured", 1e9, error=0.02)
    for rank in range(loop.ranks):
        t = 1000.0

        def play(work: Work, t: float, rank: int = rank) -> float:
            begun: float | None = None
            for name, time in [*work, ("", 0.0)]:
                updates = name.startswith("adam")
                if not updates and begun is not None and "optimizer" in loop.marks:
                    run.add(Kind.ANNOTATION, rank, round(begun * US), round((t - 5.5) * US), "Optimizer.step#Adam.step")
                begun = None if not updates else t - 5.5 if begun is None else begun
                if name:
                    row = round(t * US), round((t + time) * US)
                    sig = run.signature(f"aten::{name}", "bf16[64,64]")
                    run.add(Kind.KERNEL, rank, *row, name, launch=row[0] - 5 * US, stream=0, price=price, sig=sig)
                    t += time + loop.gap
            return t

        t = play(loop.before, t)
        for k in range(steps):
            begin, t = t, play(loop.step(k), t)
            if "profiler" in loop.marks:
                run.add(Kind.ANNOTATION, rank, round((begin - 5) * US), round((t - 5) * US), f"ProfilerStep#{k}")
            t += loop.pause.get(k, 0.0)
        play(loop.last, t)
    return run


@pytest.mark.parametrize("name", LOOPS)
def test_the_headline_is_the_settled_step(tmp_path: Path, name: str) -> None:
    loop, found = LOOPS[name], []
    for steps in LENGTHS:
        log = open_log(log_of(loop, steps).write(tmp_path / f"{steps}.arrow"))
        headline = analyze(log, Filters(), details=False).headline
        found.append(headline.step_time / US)
        low, high = 1 - max(0.01, headline.error or 0.0), 1 + max(0.01, headline.error_above or 0.0)
        assert low * found[-1] <= loop.settled <= high * found[-1], (steps, found[-1])
    assert found[1] == pytest.approx(found[0], rel=0.01)
