"""Tests that nothing grows with the length of a run, or from run to run.

    python -m tests.robustness.long_runs steps [--steps 5000] [--ranks 4]
    python -m tests.robustness.long_runs rows [--count 100]
    python -m tests.robustness.long_runs log [--events 100000000] [--folder DIR]

`steps`: one run of many steps; a table of the resident memory of each process and its CPU per step in each quarter of
the run, and of the log's bytes per step. `rows`: N short runs, one after the other; what is left after each: no
process, file, shared memory or descriptor may be. `log`: a log of N events (`large_log.py`, 64 ranks) is written,
analysed and exported; seconds, and the most memory that each took. Ends with status 1 if something grows, is left, or
takes more than 8 GiB.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from phantora.run_process import PHANTORA
from phantora.trace.recording import CHUNK_RECORDS, RECORD
from tests.support.disturbed import ROOT, Scene, roles

PROGRAM = str(Path(__file__).with_name("fault_program.py"))
MIB = 1 << 20
QUARTERS = 4
GROWTH_BYTES = 100
"""Growth of memory, for each rank and step, from half to half: below it is the allocator's noise."""
DRIFT = 0.15
"""Drift of CPU per step, from the second quarter to the last, on a machine with other work."""
MOST_KIB = 8 << 20
"""Memory limit for a reader of a large log."""
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Sample:
    """Values that were read at once."""

    steps: int
    log_bytes: int
    memory: dict[str, int]
    """Resident bytes by role."""
    cpu: dict[str, float]
    """Seconds by role."""


def _memory(pid: int) -> int:
    found = re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found[1]) << 10 if found else 0


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def samples(scene: Scene, seconds: float) -> Iterator[Sample]:
    """Samples at a fixed interval, until the run ends."""
    while scene.process.poll() is None:
        lines = re.findall(r"^\[rank0\]: step (\d+) ", (scene.folder / "out.txt").read_text(), re.MULTILINE)
        if lines:
            try:
                pids = roles(scene.process.pid)
                memory, cpu = {r: _memory(p) for r, p in pids.items()}, {r: _cpu(p) for r, p in pids.items()}
                yield Sample(int(lines[-1]), scene.log.stat().st_size, memory, cpu)
            except OSError:
                continue  # one is just ending
        time.sleep(seconds)


def _at(seen: list[Sample], share: float) -> Sample:
    """The sample nearest to this share of the steps."""
    return min(seen, key=lambda sample: abs(sample.steps - share * seen[-1].steps))


def steps(count: int, ranks: int, folder: Path) -> int:
    """One long run."""
    scene = Scene(folder / "long")
    words = (PROGRAM, "--steps", str(count), "--workers", "0", "--layers", "1", "--kernels", "20", "--sgd")
    scene.start("trace", "--cluster", str(ranks), "-o", str(scene.log), "--no-summary", *words)
    seen = list(samples(scene, 0.5 if count < 1000 else 2.0))
    seen = [sample for sample in seen if f"rank{ranks - 1}" in sample.memory]  # at the end they go before the simulator
    if scene.process.returncode or len(seen) < 20:
        print(scene.said() or "the run is too short to look at")
        return 1
    marks = [_at(seen, quarter / QUARTERS) for quarter in range(QUARTERS + 1)]
    print(f"{ranks} ranks, {count:,} steps; log {scene.log.stat().st_size / MIB:.1f} MiB with its recording")
    print("| process | " + " | ".join(f"MiB at step {mark.steps:,}" for mark in marks) + " | CPU ms/step by quarter |")
    grown = 0
    for role in sorted(set(marks[1].memory) & set(marks[-1].memory)):
        memory = [mark.memory.get(role, 0) for mark in marks]
        spans = list(itertools.pairwise(marks[1:]))
        cpu = [1e3 * (b.cpu[role] - a.cpu[role]) / (b.steps - a.steps) for a, b in spans]
        reported = [role, *(f"{m / MIB:.1f}" for m in memory), " ".join(f"{c:.2f}" for c in cpu)]
        print(f"| {' | '.join(reported)} |")
        # Of the most in each half: what waits for the next chunk of a recording comes and goes.
        waits = ranks * CHUNK_RECORDS * RECORD.itemsize if role == "top" else 0
        most = [max(s.memory.get(role, 0) for s in half) for half in (seen[: len(seen) // 2], seen[len(seen) // 2 :])]
        growth = (most[1] - most[0] - waits) / (marks[-1].steps - marks[2].steps)
        if growth > GROWTH_BYTES * (ranks if role == "top" else 1):
            print(f"  grows by {growth:.0f} bytes a step")
            grown += 1
        if cpu[0] > 1 and cpu[-1] / cpu[0] > 1 + DRIFT:
            print(f"  a step takes {cpu[-1] / cpu[0]:.2f} times the CPU")
            grown += 1
    spans = list(itertools.pairwise(marks[1:]))
    log = [(b.log_bytes - a.log_bytes) / (b.steps - a.steps) for a, b in spans]
    print("log: " + ", ".join(f"{size:.0f}" for size in log) + " bytes a step, by quarter from the second on")
    return grown


def rows(count: int, folder: Path) -> int:
    """Runs in a row."""
    failed = 0
    shm, descriptors = set(os.listdir("/dev/shm")), len(os.listdir("/proc/self/fd"))
    begin = time.monotonic()
    words = (PROGRAM, "--steps", "1", "--workers", "1", "--layers", "1", "--kernels", "1")
    for index in range(count):
        scene = Scene(folder / str(index))
        scene.start("trace", "--cluster", "2", "-o", str(scene.log), "--no-summary", *words)
        status = scene.process.wait()
        left = scene.left() + [name for name in os.listdir("/dev/shm") if name not in shm and name.startswith("torch_")]
        if status or left or len(os.listdir("/proc/self/fd")) != descriptors:
            print(f"run {index}: status {status}, left {left}; {scene.said()[-300:]}", flush=True)
            failed += 1
    print(f"{count} runs in a row in {time.monotonic() - begin:.0f} s: {failed} failed or left something")
    return failed


def log(events: int, folder: Path) -> int:
    """A large log, from its first row to its timeline."""
    file, made = folder / "large.arrow", folder / "large.perfetto"
    steps = str(max(10, events // 500_000))
    commands = {
        "write": ["-m", "benchmarks.large_log", str(file), str(events), "64", steps],
        "analyze": [*PHANTORA[1:], "analyze", str(file), "--json"],
        "export": [*PHANTORA[1:], "export", str(file), "-o", str(made)],
    }
    too_much = 0
    for name, words in commands.items():
        begin = time.monotonic()
        with open(os.devnull, "wb") as nowhere:
            child = subprocess.Popen(
                [sys.executable, *words], stdout=nowhere, env={**os.environ, "PYTHONPATH": str(ROOT)}
            )
        _, status, used = os.wait4(child.pid, 0)
        size = made if name == "export" else file
        print(
            f"{name}: status {os.waitstatus_to_exitcode(status)}, {time.monotonic() - begin:.0f} s, "
            f"{used.ru_utime + used.ru_stime:.0f} s of CPU, {used.ru_maxrss / 2**20:.2f} GiB of memory at most, "
            f"{size.name} has {size.stat().st_size / MIB if size.exists() else 0:.0f} MiB",
            flush=True,
        )
        too_much += status != 0 or used.ru_maxrss > MOST_KIB
    return too_much


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parsers = parser.add_subparsers(dest="command", required=True)
    one = parsers.add_parser("steps")
    one.add_argument("--steps", type=int, default=5000)
    one.add_argument("--ranks", type=int, default=4)
    other = parsers.add_parser("rows")
    other.add_argument("--count", type=int, default=100)
    large = parsers.add_parser("log")
    large.add_argument("--events", type=int, default=100_000_000)
    large.add_argument("--folder", help="where there is room for it")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=getattr(args, "folder", None)) as folder:
        if args.command == "log":
            return 1 if log(args.events, Path(folder)) else 0
        if args.command == "steps":
            return 1 if steps(args.steps, args.ranks, Path(folder)) else 0
        return 1 if rows(args.count, Path(folder)) else 0


if __name__ == "__main__":
    sys.exit(main())
