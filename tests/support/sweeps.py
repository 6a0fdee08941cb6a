"""A sweep's answer without a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from phantora.sweeps.answer import Answer, answer
from phantora.sweeps.compare import Choice, Comparison, Question
from phantora.sweeps.objective import Objective
from phantora.sweeps.plan import make_plan
from phantora.sweeps.result import OUT_OF_MEMORY, RAN, Measured, Result
from phantora.sweeps.runner import Entry
from phantora.sweeps.space import space_of
from phantora.sweeps.task import Shared, Task

GIB = 1 << 30


def measured(step_ms: float, memory: int = 40, error: float = 0.05, **changes: Any) -> Measured:
    step = step_ms * 1e6
    found = Measured(
        step_time=step,
        lowest=step,
        highest=step,
        steps=2,
        error=error,
        error_above=error,
        mfu=0.4,
        tokens_per_second=None,
        samples_per_second=None,
        exposed=0.1,
        idle=0.1,
        overlap=0.5,
        fits=True,
        memory=memory * GIB,
        capacity=80 * GIB,
        peak_allocated=memory * GIB,
        peak_reserved=memory * GIB,
        holds_up="Host-bound: <b>",
    )
    return replace(found, **changes)


def small_answer(folder: Path) -> Answer:
    """tp 1 takes 100 ms without and 120 ms with checkpointing; tp 2 twice as long, in half of the memory; tp 4 does not
    fit; tp 8 was not run."""
    table = {
        "target": ["train.py"],
        "cluster": "1x8xH100",
        "matrix": {"tp": [1, 2, 4, 8], "ac": ["none", "full"]},
        "tokens": "4096",
        "arguments": {"tp": "--tp", "ac": "--ac"},
    }
    entries = []
    for point in make_plan(space_of(table, "small")).points:
        task = Task.of(point, Shared(folder))
        tp, slow = int(point.values["tp"]), 1.2 if point.values["ac"] == "full" else 1.0
        found = measured(100 * tp * slow, 60 // tp)
        words = ("phantora", "trace", "a", *["--width 4096"] * 30)
        run = Result(task.key, point.values, RAN, measured=found, command=words, fold="dp=8:first", processes=1)
        if tp == 4:
            run = replace(run, status=OUT_OF_MEMORY, measured=measured(1, fits=False), needs=93 * GIB)
        entries.append(Entry(task, skipped="slower") if tp == 8 else Entry(task, run))
    return answer(entries, Objective("speed", {"": 2.0}), ["tp", "ac"], folder)


def choice(
    cluster: str, step_ms: float, price: float | None, error: float = 0.05, memory: int = 40, days: float | None = None
) -> Choice:
    """A machine of 8 GPUs on which a step has 8,000 tokens."""
    table = {"target": ["train.py"], "cluster": cluster, "tokens": "8000"}
    point = make_plan(space_of(table, "compare")).points[0]
    found = measured(step_ms, memory, error)
    entry = Entry(Task.of(point, Shared(Path("x"))), Result("key", {}, RAN, measured=found))
    row = answer([entry], Objective(), [], Path("x")).rows[0]
    return Choice(
        cluster=cluster,
        gpu=point.gpu,
        gpus=point.world,
        value=None,
        row=row,
        unit="tokens",
        dollars_per_hour=None if price is None else point.world * price,
        time=None if days is None else days * 86400,
    )


def small_comparison(folder: Path) -> tuple[Comparison, Question]:
    """H100 and B200, 8 and 64 of each; 64 H100 are dominated."""
    machines = [
        ("1x8xH100", 100, 3.0, 40),
        ("1x8xB200", 40, 5.0, 16),
        ("8x8xH100", 100, 3.0, 5.1),
        ("8x8xB200", 41, 5.0, 2.1),
    ]
    found = [choice(cluster, step, price, days=days) for cluster, step, price, days in machines]
    choices = tuple(replace(one, dollars=(one.dollars_per_hour or 0) * (one.time or 0) / 3600) for one in found)
    verdict = ("1x8xB200 is the cheapest <b>",)
    comparison = Comparison(choices=choices, best=choices[1:2], verdict=verdict, folder=folder)
    return comparison, Question(gpus=("H100", "B200"), counts=(8, 64))
