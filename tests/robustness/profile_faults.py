"""`phantora profile` killed at random moments, and on a full disk: what is left, and what it says. On a machine with
a GPU.

    python -m tests.robustness.profile_faults LIST.jsonl OUT.jsonl [--moments 10] [--seed 0] [--faults FAULT ...]

LIST is a file of operators (`phantora trace --missing`). A line for each fault and moment: the status, our own lines,
processes and files that are left, operators in the table when the same command has run once more with a budget of 0,
and what is wrong with that, if anything is. Needs root: the full disk is a file system of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from phantora.cost.table import read_table
from phantora.errors import PhantoraError
from tests.support.disturbed import Scene

STATUS = {"SIGINT": 130, "SIGTERM": 143, "SIGKILL": -signal.SIGKILL, "worker": 0, "full": 1}
BEFORE_READY = 1.5  # s: Python itself starts, and ends by the signal in its own way
LONGEST = 14.0  # s until the fault
BUDGET = "20"
END_S = 120.0
FULL = "size=24k"


def worker_of(pid: int) -> int | None:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else None


def one(fault: str, moment: float, operators: Path, folder: Path) -> dict[str, object]:
    """Does `fault` after `moment` s."""
    scene = Scene(folder)
    out = folder / "out" / "table.parquet"
    if fault == "full":
        out.parent.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", FULL, "tmpfs", str(out.parent)], check=True)
    words = ("profile", str(operators), "--out", str(out), "-q")
    scene.start(*words, "--budget", BUDGET)
    if fault != "full":
        time.sleep(moment)
        with suppress(OSError):
            pid = worker_of(scene.process.pid) if fault == "worker" else scene.process.pid
            if pid:
                os.kill(pid, signal.SIGKILL if fault == "worker" else signal.Signals[fault])
    try:
        status = scene.process.wait(END_S)
    except subprocess.TimeoutExpired:
        scene.process.kill()
        status = 999
    left, said = scene.left(), scene.errors()
    wrong = []
    if status not in (STATUS[fault], 0):
        wrong.append(f"status {status}")
    if left:
        wrong.append(f"left: {left}")
    if scene.tracebacks():
        wrong.append("a traceback")
    if fault == "full" and len(said) != 1:
        wrong.append(f"{len(said)} lines of ours")
    if fault == "full":
        subprocess.run(["umount", str(out.parent)], check=True)
        return {"fault": fault, "status": status, "said": said, "wrong": wrong}
    scene.start(*words, "--budget", "0")
    again = scene.process.wait(END_S)
    rows = 0
    try:
        rows = len(read_table(out)) if out.exists() else 0
    except PhantoraError as error:
        wrong.append(str(error))
    if again:
        wrong.append(f"the same command again: status {again}: {scene.errors()}")
    return {"fault": fault, "moment": round(moment, 2), "status": status, "said": said, "rows": rows, "wrong": wrong,
            "output": scene.said()[-800:] if wrong else ""}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operators", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--moments", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", nargs="+", choices=STATUS, default=list(STATUS))
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it, and so would children
    chooser = random.Random(options.seed)
    for turn in range(options.moments):
        for fault in options.faults:
            moment = BEFORE_READY + chooser.random() * (LONGEST - BEFORE_READY)
            with tempfile.TemporaryDirectory() as home, open(options.out, "a", encoding="utf-8") as file:
                row = one(fault, moment, options.operators.resolve(), Path(home) / f"{fault}-{turn}")
                print(json.dumps(row), file=file)


if __name__ == "__main__":
    main()
