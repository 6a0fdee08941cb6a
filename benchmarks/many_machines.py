"""Wall time and memory of one run on several nodes (`--ray`), next to the same run without.

python -m benchmarks.many_machines [--ranks 4 16 64] [--nodes 2 4] [--delay 0 0.1 0.5 2] [--layers 4] [--steps 10]

Nodes are agents as plain processes of this machine (tests/support/agents.py), so the cores are the same. The delay, in
ms each way, is that of all that passes between them: records, answers, messages, and the store of their ranks. A local
run goes before the runs of a number of ranks and another one after them; their mean is what others are compared with.
With --no-steps there is one local run, and no ratio of a step.

Columns: `wall` and its ratio to the local run; the ratio of a step alone, from a second run with one step; memory of a
rank and of the node with most, as sums of proportional set sizes; messages and bytes through the simulator's side.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.resources import children, descendants
from phantora.launch.daemon import VARIABLE
from phantora.process import proportional_bytes
from tests.support.agents import TRAFFIC

ROOT = Path(__file__).resolve().parents[1]
SAMPLE = ROOT / "samples" / "llama_fsdp2.py"
COLUMNS = (
    *("ranks", "nodes", "delay, ms", "wall", "ratio", "ratio of a step", "CPU"),
    *("memory of a rank", "of a node", "messages", "bytes"),
)
LOOK_SHARE = 0.05  # of a core, for looks at the memory


@dataclass(kw_only=True)
class Made:
    """One run."""

    wall: float = 0.0
    cpu: float = 0.0
    memory: int = 0
    """Most bytes of all its processes."""
    of_node: int = 0
    """Most bytes of an agent and its ranks."""
    messages: int = 0
    carried: int = 0
    """Bytes sent and received."""


def _watch(process: int, made: Made, stop: threading.Event) -> None:
    pause = 1.0
    while not stop.wait(pause):
        began = time.thread_time()
        of_children = [sum(map(proportional_bytes, descendants(child))) for child in children(process)]
        made.memory = max(made.memory, proportional_bytes(process) + sum(of_children))
        made.of_node = max(made.of_node, *of_children, 0)
        pause = max(1.0, (time.thread_time() - began) / LOOK_SHARE)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(ranks: int, ray: str, layers: int, steps: int) -> Made:
    """Runs the sample; a failure ends this program."""
    hosts = max(4, ranks // 8)
    where = ("--ray", ray) if ray else ("--fold", "off")
    command = [sys.executable, "-m", "tests.support.agents", "trace", *where, "--no-summary", "--no-recording"]
    command += ["--cluster", f"{hosts}x{ranks // hosts}xH100", "-o", "run.arrow", str(SAMPLE)]
    with tempfile.TemporaryDirectory(prefix="phantora-nodes-") as folder:
        traffic = Path(folder, "traffic.json")
        paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        before = _cpu()
        began = time.monotonic()
        process = subprocess.Popen(
            [*command, f"--layers={layers}", f"--steps={steps}", "--warmup=0"],
            cwd=folder,
            env={**os.environ, VARIABLE: "0", TRAFFIC: str(traffic), "PYTHONPATH": os.pathsep.join(paths)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        made, stop = Made(), threading.Event()
        watcher = threading.Thread(target=_watch, args=(process.pid, made, stop))
        watcher.start()
        output, _ = process.communicate()
        made.wall, made.cpu = time.monotonic() - began, _cpu() - before
        stop.set()
        watcher.join()
        if process.returncode:
            sys.exit(output[-4000:])
        if traffic.exists():
            counts = json.loads(traffic.read_text())
            made.messages = counts["messages_sent"] + counts["messages_received"]
            made.carried = counts["sent"] + counts["received"]
    return made


def line(name: str, made: Made, local: Made, ranks: int, step: str) -> str:
    """A row of the table."""
    return (
        f"| {name} | {made.wall:.1f} s | {made.wall / local.wall:.2f} | {step} | {made.cpu:.0f} s | "
        f"{made.memory / ranks / 2**20:.0f} MiB | {made.of_node / 2**30:.2f} GiB | "
        f"{made.messages:,} | {made.carried / 2**20:.1f} MiB |"
    )


def compare(ranks: int, given: argparse.Namespace) -> None:
    """Prints the rows of one number of ranks."""
    lengths = [given.steps] if given.no_steps else [given.steps, 1]

    def made(ray: str) -> list[Made]:
        runs = []
        for steps in lengths:
            runs.append(one := run(ranks, ray, given.layers, steps))
            about = f"{ranks} ranks, {ray or 'local'}, {steps} steps"
            print(f"{about}: {one.wall:.1f} s, {one.cpu:.0f} s CPU, {one.memory / 2**30:.1f} GiB", file=sys.stderr)
            sys.stderr.flush()
        return runs

    first = made("")
    others = {ray: made(ray) for ray in (f"{nodes}@{delay:g}" for nodes in given.nodes for delay in given.delay)}
    again = first if given.no_steps else made("")
    local = [replace(a, wall=(a.wall + b.wall) / 2, cpu=(a.cpu + b.cpu) / 2) for a, b in zip(first, again, strict=True)]
    for name, runs in {"": local, **others}.items():
        nodes, _, delay = name.partition("@")
        step = "" if given.no_steps else f"{(runs[0].wall - runs[1].wall) / (local[0].wall - local[1].wall):.2f}"
        print(line(f"{ranks} | {nodes or 'local'} | {delay}", runs[0], local[0], ranks, step), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--delay", type=float, nargs="+", default=[0, 0.1, 0.5, 2])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--no-steps", action="store_true", help="one local run, no ratio of a step alone")
    given = parser.parse_args()
    print(f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}", flush=True)
    for ranks in given.ranks:
        compare(ranks, given)


if __name__ == "__main__":
    main()
