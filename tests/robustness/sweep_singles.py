"""Compares a sweep with its single runs: stopped and continued, and through Ray.

    python -m tests.robustness.sweep_singles FOLDER [--ray] [SWEEP WORDS...]

Runs 12 points (SWEEP WORDS choose others, as of ``phantora sweep``) as a sweep that is killed (SIGKILL) when half of
them are done and then started again; each point once more as a run of its own of ``phantora trace``, with a fork server
of its own; and with --ray once more through a cluster of Ray of two nodes, one of whose workers is killed. Prints a row
for each point with its place by its single run, and ends with status 1 unless all numbers are equal bit for bit, no
point was run twice, nothing was left running, and both orders are the same.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import phantora
from phantora.json_data import encode
from phantora.run_process import PHANTORA
from phantora.sweeps.journal import NAME, read
from phantora.sweeps.measure import measure

WORDS = (
    "--preset",
    "fsdp2",
    "--model",
    "small",
    "--set",
    "layers=2",
    "--set",
    "batch=1,2",
    "--set",
    "ac=none",
    "--cluster",
    "1x1xH100",
    "--cluster",
    "1x2xH100",
    "--cluster",
    "1x4xH100",
)
OF_THE_RUN = ("seconds", "log")
"""Columns that tell of this machine."""

Row = dict[str, Any]


def command(folder: Path, words: tuple[str, ...]) -> list[str]:
    return [*PHANTORA, "sweep", *words, "--all", "-o", str(folder)]


def rows(folder: Path) -> dict[str, Row]:
    """Rows by key, the best first."""
    return {row["key"]: row for row in json.loads((folder / "sweep.json").read_text())}


def done(folder: Path) -> int:
    """Points in the journal."""
    journal = folder / NAME
    return max(0, journal.read_bytes().count(b"\n") - 1) if journal.exists() else 0


def running(folder: Path) -> dict[int, str]:
    """Processes that have to do with the points of `folder`: their parents' command lines."""
    found = {}
    for one in Path("/proc").glob("[0-9]*"):
        try:
            if f"{folder}/points".encode() in (one / "cmdline").read_bytes():
                parent = (one / "stat").read_text().rpartition(")")[2].split()[1]
                found[int(parent)] = Path("/proc", parent, "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
    return found


def disturbed(words: list[str], folder: Path, disturb: Callable[[int], bool]) -> int:
    """Runs a sweep; `disturb` is called with its process' number until it has done what it shall."""
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    while process.poll() is None and not disturb(process.pid):
        time.sleep(0.05)
    return process.wait()


def killed(folder: Path, words: tuple[str, ...], count: int) -> list[str]:
    """The sweep, killed at half and gone on with; what is wrong."""

    def kill(pid: int) -> bool:
        if done(folder) < count // 2:
            return False
        os.kill(pid, signal.SIGKILL)
        return True

    status = disturbed(command(folder, words), folder, kill)
    before, _ = read(folder / NAME)
    time.sleep(1)
    left = running(folder)
    subprocess.run(command(folder, words), check=True, stdout=subprocess.DEVNULL)
    after, _ = read(folder / NAME)
    print(f"killed with status {status} after {len(before)} of {count} points, {len(left)} processes left")
    print(f"then {len(after) - len(before)} points ran; {len({one.key for one in after})} keys in {len(after)} lines")
    wrong = [] if status == -signal.SIGKILL else ["it ended before it was killed"]
    wrong += ["processes were left"] if left else []
    return wrong + ([] if after[: len(before)] == before and len(after) == count else ["points were repeated"])


def single(row: Row, log: Path) -> Row:
    """The numbers of a run of its own."""
    words = row["command"]
    at = words.index("--output")
    words = [*words[1:at], "-o", str(log), "--force", "--no-summary", *words[at + 2 :]]
    subprocess.run([*PHANTORA, *words], check=True, capture_output=True)
    return {**encode(measure(log)), **phantora.open(log).summary()}


def compare(found: dict[str, Row], folder: Path) -> list[str]:
    """Each row next to its run; what is wrong."""
    wrong, singles = [], {}
    for key, row in found.items():
        numbers = singles[key] = single(row, folder / "single.arrow")
        names = [name for name in row if name in numbers and name not in OF_THE_RUN]
        assert {"step_time_ns", "lowest_ns", "error", "mfu", "memory_bytes", "peak_reserved_bytes"} <= {*names}
        unequal = [name for name in names if row[name] != numbers[name]]
        wrong += [f"{row['rank']}: {name} is {row[name]}, alone {numbers[name]}" for name in unequal]
    rates = {
        key: row["tokens_per_second"] * row["step_time_ns"] / singles[key]["step_time_ns"] for key, row in found.items()
    }
    order = sorted(found, key=lambda key: -rates[key])
    print("| point | place | place of its run | step, ns | step of its run | memory, bytes | of its run |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for key, row in found.items():
        values = f"{row['cluster']} batch={row.get('batch')} reshard={row.get('reshard')}"
        alone = singles[key]
        print(
            f"| {values} | {row['rank']} | {order.index(key) + 1} | {row['step_time_ns']} | "
            f"{alone['step_time_ns']} | {row['memory_bytes']} | {alone['memory_bytes']} |"
        )
    return wrong + ([] if order == list(found) else ["the order is another"])


def rayed(folder: Path, words: tuple[str, ...], count: int) -> list[str]:
    """The sweep through Ray, one of whose workers is killed; what is wrong."""
    from ray.cluster_utils import Cluster

    def kill(pid: int) -> bool:
        workers = [pid for pid, words in running(folder).items() if words.startswith("ray::")]
        if not workers or done(folder) < count // 3:
            return False
        os.kill(workers[0], signal.SIGKILL)
        print(f"killed worker {workers[0]} of {len(workers)} after {done(folder)} points", flush=True)
        return True

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    try:
        cluster.add_node(num_cpus=2)
        status = disturbed([*command(folder, words), "--ray", cluster.address], folder, kill)
    finally:
        cluster.shutdown()
    after, _ = read(folder / NAME)
    print(f"through Ray: status {status}, {len({one.key for one in after})} keys in {len(after)} lines")
    return [] if status == 0 and len(after) == len({one.key for one in after}) == count else ["not each point once"]


def main() -> int:
    arguments = [word for word in sys.argv[1:] if word != "--ray"]
    folder, words = Path(arguments[0]).resolve(), tuple(arguments[1:]) or WORDS
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    planned = subprocess.run([*command(folder, words), "--dry-run", "--json"], check=True, capture_output=True)
    count = len(json.loads(planned.stdout)["points"])
    wrong = killed(folder / "killed", words, count)
    found = rows(folder / "killed")
    wrong += compare(found, folder)
    if "--ray" in sys.argv:
        wrong += rayed(folder / "rayed", words, count)
        other = rows(folder / "rayed")
        same = [{k: v for k, v in row.items() if k not in OF_THE_RUN} for row in found.values()]
        if [{k: v for k, v in row.items() if k not in OF_THE_RUN} for row in other.values()] != same:
            wrong.append("Ray's numbers are others")
    print("\n".join(wrong) or f"{len(found)} points: all numbers equal, the same order")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
