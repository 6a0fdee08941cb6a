"""What a simulation costs: the README's table, and the programs that are slowest next to ``--null``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from benchmarks.cost import LARGE
from benchmarks.full_size import OFFLINE, RUNS, make_assets, paths
from validation.scoreboard.rows import Case, Row, absent, at_most
from validation.scoreboard.simulate import ROOT, error_of, trace

SAMPLE = ("1x4xH100", "samples/llama_fsdp2.py")
SAMPLE_CPU_S = 20.0  # README: 16 s; a slower machine may take more
LARGE_NAME, LARGE_CPU_S = "Llama 3 405B on 8,192 GPUs", 350.0
NULL = 3.0  # times the CPU of the same program under --null
SLOWEST = (  # (folder of --cases, ranks, words); each runs to its end under --null, which computes no values
    ("zoo/one", 1, ("pyg_sage.py", "sage")),
    ("zoo/one", 1, ("pyg_sage.py", "gcn")),
    ("zoo/one", 1, ("hvp_power.py",)),
    ("zoo/one", 1, ("dynamic_lengths.py",)),
    ("zoo/many", 4, ("unet3d_syncbn.py",)),
)


def cases(_: Path | None) -> list[Case]:
    """The rows of README's table (``benchmarks/cost.py``), against numbers of seconds and ``--null``."""
    return [
        Case("cost", LARGE_NAME, _large),
        Case("cost", "the README's sample", partial(_sample, "the README's sample")),
    ]


def _cpu(
    folder: Path, cluster: str, *words: str, cwd: Path = ROOT, environment: Mapping[str, str] | None = None
) -> float:
    ran = trace(folder, cluster, "--no-summary", *words, cwd=cwd, environment=environment)
    if ran.status:
        raise RuntimeError(error_of(ran))
    return ran.cpu


def _sample(name: str, folder: Path) -> list[Row]:
    cluster, script = SAMPLE
    full, null = _cpu(folder, cluster, script), _cpu(folder, cluster, "--null", script)
    return [
        at_most("cost", f"{name}: CPU", full, SAMPLE_CPU_S, "s"),
        at_most("cost", f"{name}: CPU next to --null", full / null, NULL, "times"),
    ]


def _large(folder: Path) -> list[Row]:
    run = RUNS[LARGE]
    make_assets(str(folder))
    cpu = _cpu(folder, run.cluster, *run.arguments, cwd=folder, environment={"PYTHONPATH": paths(), **OFFLINE})
    return [at_most("cost", f"{LARGE_NAME}: CPU", cpu, LARGE_CPU_S, "s")]


def slowest(cases: Path | None) -> list[Case]:
    """Programs whose simulation took longest next to ``--null``."""
    return [Case("speed", _name(words), partial(_ratio, cases, *entry)) for entry in SLOWEST for words in (entry[2],)]


def _name(words: tuple[str, ...]) -> str:
    return " ".join(re.sub(r"\.py$", "", word) for word in words)


def _ratio(cases: Path | None, where: str, ranks: int, words: tuple[str, ...], folder: Path) -> list[Row]:
    cwd = (cases / where).resolve() if cases else None
    if cwd is None or not (cwd / words[0]).exists():
        return [absent("speed", _name(words), f"--cases has no {where}/{words[0]}")]
    cluster = f"1x{ranks}xH200"
    full, null = _cpu(folder, cluster, *words, cwd=cwd), _cpu(folder, cluster, "--null", *words, cwd=cwd)
    return [
        at_most("speed", _name(words), full / null, NULL, "times", f"{full:.0f} s of CPU, {null:.0f} s with --null")
    ]
