"""Are the logs of runs on several nodes those of one machine, bit for bit?

    python -m tests.robustness.node_logs [--only fsdp2,megatron,moe] [--nodes 2,4] [--delay 0.1] [--ranks 8]

Nodes are agents as plain processes of this machine (``tests.support.agents``). Every row and column is compared. Exit
status 1 if any differs. The first of two local runs fills caches of compiled code; what it differs in is only printed.
`megatron` and `moe` need megatron-core.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from phantora.launch.daemon import VARIABLE
from tests.robustness.sample_logs import SAMPLES, difference, rows

ROOT = SAMPLES.parent
SHOWN = 5
MEGATRON = ("--seq-length", "1024", "--train-iters", "2", "--attention", "sdpa")


@dataclass(frozen=True)
class Case:
    ranks: int
    script: str
    arguments: Callable[[int], tuple[str, ...]]
    """Of the script, by the number of ranks."""
    options: tuple[str, ...] = ()


def _three_axes(ranks: int) -> tuple[str, ...]:
    layout = ("--tp", "2", "--sequence-parallel", "--pp", "2", "--global-batch-size", str(ranks))
    return ("--model", "llama2-7b", "--num-layers", "4", *layout, "--use-distributed-optimizer", *MEGATRON)


def _experts(ranks: int) -> tuple[str, ...]:
    layout = ("--ep", str(min(8, ranks)), "--use-distributed-optimizer")
    return ("--model", "mixtral-8x7b", "--num-layers", "2", *layout, *MEGATRON)


CASES = {
    "fsdp2": Case(64, "llama_fsdp2.py", lambda _: ("--layers", "4", "--steps", "3")),
    "megatron": Case(32, "megatron/pretrain_gpt.py", _three_axes),
    "moe": Case(32, "megatron/pretrain_gpt.py", _experts, ("--moe-routing", "zipf:1.2")),
}


def run(case: Case, ranks: int, ray: str, log: Path) -> str:
    """Writes the log of one run; its wall time in words. A run that fails ends this program."""
    hosts = max(4, ranks // 8)
    where = ("--ray", ray) if ray else ("--fold", "off")
    command = [sys.executable, "-m", "tests.support.agents", "trace", *where, "-o", str(log), *case.options]
    command += ["--no-summary", "--no-recording", "--force", "--cluster", f"{hosts}x{ranks // hosts}xH100"]
    began = time.monotonic()
    done = subprocess.run(
        [*command, str(SAMPLES / case.script), *case.arguments(ranks)],
        cwd=log.parent,
        env={**os.environ, VARIABLE: "0", "PYTHONPATH": os.pathsep.join([str(ROOT), *_path()])},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stdout[-2000:] + done.stderr[-6000:])
    return f"{time.monotonic() - began:.1f} s"


def _path() -> list[str]:
    return [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]


def differences(expected: pa.Table, found: pa.Table) -> str:
    """What differs, with the first rows that do; "equal" if nothing does."""
    what = difference(expected, found)
    lines = [what or "equal"]
    for place in range(min(len(expected), len(found)) if what else 0):
        a, b = (table.slice(place, 1).to_pylist()[0] for table in (expected, found))
        if repr(a) != repr(b):
            named = ", ".join(f"{name} {a[name]} and {b[name]}" for name in a if repr(a[name]) != repr(b[name]))
            lines.append(f"    row {place}, {a['kind']} {a['name']} of rank {a['rank']}: {named}")
        if len(lines) > SHOWN:
            break
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--nodes", default="2,4")
    parser.add_argument("--delay", type=float, default=0.0, metavar="MS", help="each way")
    parser.add_argument("--ranks", type=int, help="instead of each case's own")
    given = parser.parse_args()
    unequal = 0
    for name in given.only.split(","):
        case = CASES[name]
        ranks = given.ranks or case.ranks
        about = f"{name:9} {ranks} ranks,"
        with tempfile.TemporaryDirectory(prefix="phantora-nodes-") as folder:
            log = Path(folder, "run.arrow")
            print(f"{about} local: {run(case, ranks, '', log)}", flush=True)
            first = rows(log)
            wall = run(case, ranks, "", log)
            expected = rows(log)
            print(f"{about} local again: {wall}, {differences(first, expected)}", flush=True)
            for nodes in given.nodes.split(","):
                wall = run(case, ranks, f"{nodes}@{given.delay}", log)
                found = differences(expected, rows(log))
                unequal += found != "equal"
                print(f"{about} {nodes} nodes: {wall}, {len(expected):,} rows  {found}", flush=True)
    return 1 if unequal else 0


if __name__ == "__main__":
    sys.exit(main())
