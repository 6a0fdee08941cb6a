"""README's table of costs: CPU and wall seconds of its runs on this machine, which the last line names.

python -m benchmarks.cost [NAME ...]        without names: all, one after the other

CPU time is user and system of all processes of a run without a daemon (resources.py). `again` and `small` are second
runs with a daemon of their own, which has imported torch for the first.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.full_size import SAMPLES, cost_of, make_assets
from benchmarks.resources import Cost, measure, phantora_trace
from phantora.launch.daemon import VARIABLE
from phantora.run_process import PHANTORA

SAMPLE = ("--cluster", "1x4xH100", str(SAMPLES / "llama_fsdp2.py"))
SMALL = ("--cluster", "2xH100", str(SAMPLES / "llama_ddp.py"), "--layers", "2")
LARGE = "llama3-405b-8192"


def sample(*options: str) -> Cost:
    """README's sample, with its summary."""
    with tempfile.TemporaryDirectory() as folder:
        return measure([*PHANTORA, "trace", *options, *SAMPLE], folder)


def with_daemon(*words: str) -> Cost:
    """The second of two equal runs; its CPU is without that of the ranks."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as sockets:
        own = {VARIABLE: "5", "XDG_RUNTIME_DIR": sockets, "CI": ""}
        try:
            return [measure([*PHANTORA, "trace", *words], folder, own) for _ in range(2)][-1]
        finally:
            measure([*PHANTORA, "daemon", "--end"], folder, own)


def large() -> Cost:
    """A step of Llama 3 405B on 8,192 GPUs."""
    with tempfile.TemporaryDirectory() as folder:
        make_assets(folder)
        return cost_of(LARGE, folder, Path(folder, "run.arrow"))


def against_null() -> float:
    """CPU of the sample over that under stubs that do nothing."""
    with tempfile.TemporaryDirectory() as folder:
        full, null = (measure(phantora_trace(*more, *SAMPLE), folder) for more in ((), ("--null",)))
    return full.cpu / null.cpu


ROWS: dict[str, tuple[str, Callable[[], str]]] = {
    "sample": ("the sample above: 7B, FSDP2, 4 ranks, 7 steps", lambda: _both(sample())),
    "again": ("the same with a daemon", lambda: f"{with_daemon(*SAMPLE).wall:.1f} s"),
    "small": ("`llama_ddp.py --layers 2` on 2 GPUs with a daemon", lambda: f"{with_daemon(*SMALL).wall:.1f} s"),
    "large": ("a step of Llama 3 405B on 8,192 GPUs, folded", lambda: _both(large())),
    "null": ("the sample against stubs that do nothing (`--null`)", lambda: f"{against_null():.2f} times the CPU"),
}


def _both(cost: Cost) -> str:
    return f"{cost.cpu:.0f} s of CPU, {cost.wall:.0f} s"


def machine() -> str:
    """The machine of a table of costs."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU")
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores of {name}, Python {platform.python_version()}, torch {torch.__version__}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(ROWS))
    names = parser.parse_args().names
    if unknown := sorted(set(names) - set(ROWS)):
        parser.error(f"there is no row {', '.join(unknown)}; there are {', '.join(ROWS)}")
    print("| run | cost |\n| --- | --- |")
    for name in names or ROWS:
        text, cost = ROWS[name]
        print(f"| {text} | {cost()} |", flush=True)
    print(f"\n{machine()}")


if __name__ == "__main__":
    main()
