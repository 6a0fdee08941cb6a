"""Training programs with real steps: those of the README's table, the zoo, and public repositories.

All of them lie in the folder of ``--cases``, which is not committed: ``truth/`` (scripts of the README's runs),
``zoo/one`` and ``zoo/many`` (``COMMANDS``, ``results.jsonl``), and ``repos`` (``sim.py``, ``COMMANDS.jsonl``,
``real_h200.jsonl``, ``src/``).
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from validation.compare.accuracy import Headline, parse, replay
from validation.data import rows as measured
from validation.scoreboard.rows import Case, Row, absent, within
from validation.scoreboard.simulate import Ran, error_of, run, seconds_left, trace

README_RUNS = "2026-11-22-h200x4/train.jsonl"
STEP, MEMORY = 0.05, 0.01
ANY_STEP = 0.25  # of programs whose host decides
LIMIT_S = 900.0
_PREPARED = threading.Lock()
_ZOO_THREADS = {"OMP_NUM_THREADS": "8"}
"""Not known of the real runs. One thread takes 1.0 s for the optimizer of `offload2` (host_ranks.jsonl), whose step
took 0.33 s."""
_MEMORY = {"allocated": "max_memory_allocated", "reserved": "max_memory_reserved"}


def _limit() -> float:
    return min(LIMIT_S, max(seconds_left(), 1))


def _folder(cases: Path | None, *parts: str) -> Path | None:
    folder = cases.joinpath(*parts).resolve() if cases else None
    return folder if folder and folder.is_dir() else None


def _absent_folder(group: str, name: str) -> Case:
    row = absent(group, name, f"--cases has no {name}/")
    return Case(group, name, lambda _: [row])


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def runs(cases: Path | None) -> list[Case]:
    """The README's runs on 1 to 4 H200."""
    folder = _folder(cases, "truth")
    every = {row["run_id"]: row for row in measured(README_RUNS) if not row.get("name", "").endswith(".rank")}
    return [Case("runs", name, partial(_readme_run, name, row, folder)) for name, row in every.items()]


def _readme_run(name: str, row: dict[str, Any], truth: Path | None, folder: Path) -> list[Row]:
    if truth is None:
        return [absent("runs", f"{name}: step", "--cases has no truth/")]
    outcome = replay(name, row, truth, "H200", folder / "run.arrow", _limit())
    if outcome.simulated is None and "No module named" in outcome.error:
        return [absent("runs", f"{name}: step", outcome.error)]
    if outcome.simulated is None:
        raise RuntimeError(outcome.error)
    return _compared("runs", name, outcome.real, outcome.simulated, outcome.headline, STEP)


def _compared(
    group: str,
    name: str,
    real: Mapping[str, Any],
    ours: Mapping[str, Any],
    headline: Headline | None,
    most: float,
    holds: Callable[[float], bool] = lambda _: False,
) -> list[Row]:
    """Rows for the step and the peaks of memory, by the names that the scripts print. The run's PEAK `holds` a peak."""
    step = real["median_iter_s"]
    rows = [within(group, f"{name}: step", ours["median_iter_s"] / step - 1, most, _inside(headline, step))]
    for word, key in _MEMORY.items():
        if real.get(key) and ours.get(key):
            inside = word == "allocated" and holds(real[key])
            rows.append(within(group, f"{name}: {word}", ours[key] / real[key] - 1, MEMORY, inside))
    return rows


def _inside(headline: Headline | None, seconds: float) -> bool:
    if headline is None:
        return False
    low, high = 1 - headline.error, 1 + headline.error_above
    return low <= seconds * 1e9 / headline.step_ns <= high


def zoo(cases: Path | None) -> list[Case]:
    """Programs in the manner of different people, on one and on four H200."""
    found: list[Case] = []
    for part in ("one", "many"):
        folder = _folder(cases, "zoo", part)
        if folder is None:
            found.append(_absent_folder("zoo", f"zoo/{part}"))
            continue
        real = {row["run"]: row for row in _lines(folder / "results.jsonl") if "median_iter_s" in row}
        for line in (folder / "COMMANDS").read_text().splitlines():
            name, *words = line.split()
            ranks = words.pop(0) if words and words[0].isdigit() else "1"
            if name in real:
                found.append(Case("zoo", name, partial(_zoo_program, name, ranks, words, real[name], folder)))
    return found


def _zoo_program(name: str, ranks: str, words: list[str], real: dict[str, Any], cwd: Path, folder: Path) -> list[Row]:
    ran = trace(folder, f"1x{ranks}xH200", *words, cwd=cwd, environment=_ZOO_THREADS)
    if missing := _missing(ran):
        return [absent("zoo", f"{name}: step", missing)]
    ours = parse(ran.output)
    if ran.status or ours is None:
        raise RuntimeError(error_of(ran))
    return _compared("zoo", name, real, ours, ran.headline, ANY_STEP, ran.holds)


def _missing(ran: Ran) -> str:
    found = re.search(r"No module named '[\w.]+'", ran.output)
    return found[0] if ran.status and found else ""


def public(cases: Path | None) -> list[Case]:
    """Training programs of public repositories on one H200."""
    folder = _folder(cases, "repos")
    if folder is None:
        return [_absent_folder("public", "repos")]
    real = {row["name"]: row for row in _lines(folder / "real_h200.jsonl") if row.get("mean_s")}
    every = [row for row in _lines(folder / "COMMANDS.jsonl") if row["name"] in real]
    return [Case("public", row["name"], partial(_public, row, real[row["name"]], folder)) for row in every]


def _public(row: dict[str, Any], real: dict[str, Any], repos: Path, folder: Path) -> list[Row]:
    name = row["name"]
    if not (repos / "src" / row["dir"]).is_dir():
        return [absent("public", f"{name}: step", f"--cases has no repos/src/{row['dir']}")]
    with _PREPARED:  # several programs have the same data
        run(
            [sys.executable, "-c", f"import common\nfor each in common.commands({name!r}): common.prepare(each)"],
            folder,
            repos,
        )
    out = folder / "out.jsonl"
    options = ["--only", name, "--gpu", "H200", "--limit", str(_limit()), "--keep", str(folder)]
    ran = run([sys.executable, "sim.py", str(out), *options], folder / f"{name}.arrow", repos)
    ours = _lines(out)[-1] if out.exists() else {}
    if missing := re.search(r"No module named '[\w.]+'", ours.get("tail", "")):
        return [absent("public", f"{name}: step", missing[0])]
    if not ours.get("mean_s"):
        raise RuntimeError(ours.get("tail", "").strip()[-160:] or error_of(ran))
    inside = _inside(ran.headline, real["mean_s"])
    rows = [within("public", f"{name}: step", ours["mean_s"] / real["mean_s"] - 1, ANY_STEP, inside)]
    rows += [within("public", f"{name}: {key}", ours[key] / real[key] - 1, MEMORY) for key in ("alloc", "reserved")]
    return rows
