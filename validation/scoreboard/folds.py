"""Folded runs up to 98,304 GPUs: they end, take the step of the last commit, and that of a run of all ranks."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

from validation.scoreboard.rows import Case, Row, committed, within
from validation.scoreboard.simulate import Ran, error_of, trace

SAMPLE = "samples/llama_fsdp2.py"
SAME = 0.001  # of the step: folded and all, 0.07 % at most (docs/scale.md)
KEPT = 0.02  # of the last commit's step
SCRIPT = ("--layers", "2", "--steps", "3", "--warmup", "1")

# (name, cluster, --fold, arguments of the script)
FOLDS = (
    ("FSDP2 on 64 GPUs", "8x8xH100", "dp=64", ()),
    ("FSDP2 on 1,024 GPUs", "128x8xH100", "dp=1024", ()),
    ("FSDP2 on 8,192 GPUs, HSDP", "1024x8xH100", "replicate=16,shard=512", ("--replicate", "16")),
    ("FSDP2 on 8,192 GPUs, automatic, uneven rows", "1024x8xH100", "auto", ()),
    ("FSDP2 on 98,304 GPUs, HSDP", "12288x8xH100", "replicate=192,shard=512", ("--replicate", "192")),
)


def cases(_: Path | None) -> list[Case]:
    """A case for each fold, and one of 8 GPUs with and without folding."""
    folded = [Case("folds", name, partial(_kept, name, cluster, fold, words)) for name, cluster, fold, words in FOLDS]
    return [Case("folds", "FSDP2 on 8 GPUs, folded and all", _same), *folded]


def _step(ran: Ran) -> float:
    """Seconds of a step, as the sample prints them."""
    found = re.findall(r'\{.*"median_step_s".*\}', ran.output)
    if ran.status or not found:
        raise RuntimeError(error_of(ran))
    return float(json.loads(found[-1])["median_step_s"])


def _run(folder: Path, cluster: str, fold: str, words: tuple[str, ...]) -> Ran:
    return trace(folder, cluster, "--no-summary", "--no-recording", "--fold", fold, SAMPLE, *SCRIPT, *words)


def _same(folder: Path) -> list[Row]:
    every, few = (_step(_run(folder, "1x8xH100", fold, ())) for fold in ("off", "dp=8"))
    return [within("folds", "FSDP2 on 8 GPUs, folded and all", few / every - 1, SAME)]


def _kept(name: str, cluster: str, fold: str, words: tuple[str, ...], folder: Path) -> list[Row]:
    """The step of this run against that of the last commit, which its row has in ms."""
    ran = _run(folder, cluster, fold, words)
    ms = 1e3 * _step(ran)
    processes = re.findall(r"folded: (\d+) of", ran.output)
    note = f"{processes[-1]} processes, {ran.cpu:.0f} s of CPU" if processes else f"{ran.cpu:.0f} s of CPU"
    last = committed().get(("folds", name))
    known = last.figure if last and last.figure else ms
    verdict = within("folds", name, ms / known - 1, KEPT).verdict
    return [Row("folds", name, verdict, round(ms, 3), "ms", f"{100 * KEPT:g} % of the last commit", note)]
