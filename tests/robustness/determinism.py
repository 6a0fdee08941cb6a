"""Tests that the log is the same, bit for bit, however the machine schedules the ranks.

    python -m tests.robustness.determinism runs [--count 20] [--ranks 2] [--seed S] [--charges] [[--] SCRIPT \
        ARGUMENTS ...]
    python -m tests.robustness.determinism schedules [--count 10000] LOG
    python -m tests.robustness.determinism programs [--count 1000] [--seed S]

`runs`: the script is run while its processes are stopped (SIGSTOP) and go on at random, with random priorities and on
random cores; the rows of all logs are compared with those of a run that nobody disturbs. With `--charges` it prints
of a run that differs which Python function or call was charged to the host clock otherwise, and when. `schedules`:
the records of a recorded run are given to the engine in random interleavings, without processes; the digests of the
logs are compared. `programs`: programs of chance (kernels of all sizes on several streams, collectives, transfers,
events, waits), each said to the engine in four orders.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from tests.support.charges import differences
from tests.support.disturbed import Scene, difference, rows_of
from tests.support.programs import draw, played
from tests.support.schedules import Recording, log_of

PROGRAM = str(Path(__file__).with_name("fault_program.py"))


def disturb(scene: Scene, chooser: random.Random) -> int:
    """Until the run ends; how many disturbances there were."""
    count = 0
    cores = sorted(os.sched_getaffinity(0))
    while scene.process.poll() is None:
        pids = [pid for pid in scene.processes() if pid != scene.process.pid or chooser.random() < 0.3]
        if pids:
            with suppress(OSError):
                _do(chooser.choice(pids), chooser, cores)
                count += 1
        time.sleep(chooser.random() * 0.05)
    return count


def _do(pid: int, chooser: random.Random, cores: list[int]) -> None:
    what = chooser.random()
    if what < 0.6:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(chooser.random() ** 3 * 0.5)
        os.kill(pid, signal.SIGCONT)
    elif what < 0.8:
        os.sched_setaffinity(pid, chooser.sample(cores, chooser.randint(1, len(cores))))
    else:
        os.setpriority(os.PRIO_PROCESS, pid, chooser.randint(5, 19))


def runs(count: int, ranks: int, seed: int, asked: bool, words: list[str], folder: Path) -> int:
    """Makes disturbed runs and returns how many differ."""
    first: Path | None = None
    different = 0
    for index in range(-1, count + 1):  # the first fills caches of frameworks, such as that of datasets
        scene = Scene(folder / "run")
        charged = folder / ("charges" if index > 0 else "undisturbed")
        if asked:
            shutil.rmtree(charged, ignore_errors=True)
            charged.mkdir()
        variables = {"PHANTORA_CHARGES": str(charged)} if asked else {}
        arguments = "--cluster", str(ranks), "-o", str(scene.log), "--no-summary", *words
        scene.start("trace", *arguments, environment=variables)
        disturbed = disturb(scene, random.Random(seed + index)) if index > 0 else 0
        if scene.process.wait():
            print(scene.said())
            return count
        if index < 0:
            shutil.rmtree(scene.folder)
            continue
        if first is None:
            first = scene.log.replace(folder / "undisturbed.arrow")
            shutil.rmtree(scene.folder)
            print(f"undisturbed: {rows_of(first)[0]:,} rows", flush=True)
            continue
        differs = difference(first, scene.log)
        different += differs is not None
        print(f"run {index}: {disturbed} disturbances, {differs or 'the same'}", flush=True)
        if differs and asked:
            print(*differences(folder / "undisturbed", charged), sep="\n", flush=True)
        shutil.rmtree(scene.folder)
    print(f"{count - different} of {count} disturbed runs of {ranks} ranks gave the log of the undisturbed one")
    return different


def schedules(count: int, log: Path, folder: Path) -> int:
    """Replays interleavings of a recording and returns how many differ from the first."""
    from phantora import stubs
    from phantora.cost import model_for

    recording = Recording.of(log)
    engine, cost = stubs.ensure().engine, model_for(recording.cluster.gpu, folder)
    begin = time.process_time()
    first, different = "", []
    for seed in range(count):
        digest = log_of(recording, seed, engine, cost, folder / "run.arrow")
        first = first or digest
        if digest != first:
            different.append(seed)
            print(f"seed {seed} differs", flush=True)
    seconds = time.process_time() - begin
    reported = f"{count:,} schedules of {recording.records:,} records of {len(recording.said)} ranks"
    print(f"{reported}: {count - len(different):,} gave one log, {len(different)} others; {seconds:.0f} s of CPU")
    return len(different)


def programs(count: int, seed: int) -> int:
    """Runs random programs and returns how many depend on the order of their records."""
    from phantora import stubs

    engine = stubs.ensure().engine
    begin = time.process_time()
    different = []
    for number in range(seed, seed + count):
        program = draw(number, 2 + number % 2)
        logs = [played(engine, program, order) for order in range(4)]
        if any(log != logs[0] for log in logs):
            different.append(number)
            print(f"program {number} differs", flush=True)
    seconds = time.process_time() - begin
    print(f"{count:,} programs in 4 orders each: {len(different)} differ; {seconds:.0f} s of CPU")
    return len(different)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("runs")
    one.add_argument("--count", type=int, default=20)
    one.add_argument("--ranks", type=int, default=2)
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--charges", action="store_true")
    one.add_argument("words", nargs=argparse.REMAINDER)
    other = commands.add_parser("schedules")
    other.add_argument("--count", type=int, default=10_000)
    other.add_argument("log", type=Path)
    third = commands.add_parser("programs")
    third.add_argument("--count", type=int, default=1000)
    third.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.command == "programs":
        return 1 if programs(args.count, args.seed) else 0
    with tempfile.TemporaryDirectory() as folder:
        if args.command == "runs":
            words = args.words[args.words[:1] == ["--"] :] or [PROGRAM]
            return 1 if runs(args.count, args.ranks, args.seed, args.charges, words, Path(folder)) else 0
        return 1 if schedules(args.count, args.log, Path(folder)) else 0


if __name__ == "__main__":
    sys.exit(main())
