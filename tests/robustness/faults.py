"""Runs that are killed, stopped, starved or robbed, at random moments.

    python -m tests.robustness.faults [--moments N] [--seed S] [--workload NAME] [--seconds S] [--json FILE] [FAULT ...]

Each fault is done to a run at N moments, drawn from the CPU time that an undisturbed run takes. Checked are the exit
status, that exactly one line of ours says what went wrong and no traceback of ours, that the log opens and can be read
to its last whole batch, and that no process, temporary file or shared memory is left. Prints a table; ends with
status 1 if anything was not as expected. Needs root: /tmp and /dev/shm are file systems of its own in a mount
namespace, limits are control groups.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from phantora import stubs
from tests.robustness import fault_places
from tests.robustness.fault_cases import CASES, Case, Run
from tests.support import charges
from tests.support.disturbed import ROOT, Scene, difference, rows_of

HOME = Path("/tmp/phantora-faults")  # in the mount namespace of this program
END_S = 240.0
TRIES = 4
"""For each moment: often a run ends before its fault comes."""
SAMPLES = ROOT / "samples"
PROGRAM = str(Path(__file__).with_name("fault_program.py"))
LAUNCHERS = {"torchrun": "torchelastic_"}
"""Files that a launcher leaves in TMPDIR by itself, as it does without Phantora. It prints its own tracebacks, too."""
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python")


def workloads() -> dict[str, tuple[str, ...]]:
    """Words of `phantora trace` behind its output options."""
    titan = SAMPLES / "torchtitan"
    return {
        "fsdp2": ("--cluster", "2", PROGRAM),
        "torchrun": ("--cluster", "2", "--", *TORCHRUN[:-1], PROGRAM),
        "deepspeed": (
            "--cluster",
            "2",
            str(SAMPLES / "deepspeed/decoder.py"),
            "--model",
            "llama2-7b",
            "--layers",
            "2",
            "--config",
            str(SAMPLES / "deepspeed/zero3.json"),
        ),
        "torchtitan": (
            "--cluster",
            "2",
            "-m",
            "torchtitan.train",
            "--job.config_file",
            str(titan / "llama3_8b.toml"),
            "--experimental.custom_import",
            "layers",
            "--model.flavor",
            "8B-2layers",
            "--training.steps",
            "4",
            "--model.hf_assets_path",
            str(HOME / "torchtitan/assets/tokenizer"),
            "--training.dataset_path",
            str(HOME / "torchtitan/assets/text"),
        ),
    }


@dataclass
class Outcome:
    """Outcome of one fault at one moment."""

    status: int
    message: str
    rows: int | None
    state: str
    """State of the log: whole, cut, or the reason why it cannot be read."""
    wrong: list[str] = field(default_factory=list)


class Bench:
    """Runs of one workload, and the undisturbed one to which they are compared."""

    def __init__(self, name: str, words: tuple[str, ...]) -> None:
        self.name = name
        self.words = words
        self.reference = HOME / name / "reference.arrow"
        self.charges = HOME / name / "charges"
        self.reference_charges = HOME / name / "reference_charges"
        self.cpu = 0.0
        self._undisturbed()  # fills caches, those of torch and of datasets: what the next runs do not do
        self._undisturbed()

    def scene(self) -> Scene:
        """A new folder, always of the same name: what a run costs before its first step may depend on that."""
        shutil.rmtree(self.charges, ignore_errors=True)
        self.charges.mkdir(parents=True)
        os.environ["PHANTORA_CHARGES"] = str(self.charges)  # why a log differs
        return Scene(HOME / self.name / "run")

    def _undisturbed(self) -> None:
        scene = self.scene()
        scene.start("trace", "-o", str(scene.log), "--no-summary", *self.words)
        self.cpu = 0.0
        while scene.process.poll() is None:
            self.cpu = max(self.cpu, scene.cpu_seconds())
            time.sleep(0.05)
        if scene.process.returncode:
            sys.exit(f"{self.name} fails undisturbed:\n{scene.said()}")
        left = self.left(scene)
        if left:
            sys.exit(f"{self.name} leaves undisturbed: {left}")
        scene.log.replace(self.reference)
        shutil.rmtree(self.reference_charges, ignore_errors=True)
        self.charges.rename(self.reference_charges)
        shutil.rmtree(scene.folder)

    def left(self, scene: Scene, usual: str = "$^") -> list[str]:
        """Files of a run next to those that match `usual` and those of the launcher."""
        usual += "|" + LAUNCHERS.get(self.name, "$^")
        return [what for what in scene.left() if not re.search(usual, what)]

    def do(self, case: Case, chooser: random.Random) -> Outcome | None:
        """None: the run had ended before the fault came."""
        scene = self.scene()
        run = Run(scene, self.words, self.cpu, chooser, self.reference)
        try:
            if not case.act(run):
                return None
            status = _ended(scene)
            return self._judge(case, run, status)
        finally:
            for pid in scene.processes():
                os.kill(pid, signal.SIGKILL)
            run.undo()
            shutil.rmtree(scene.folder, ignore_errors=True)

    def _judge(self, case: Case, run: Run, status: int | None) -> Outcome:
        scene = run.scene
        if status is None:
            return Outcome(-1, "", None, "", [f"did not end within {END_S:.0f} s; {scene.said()[-300:]}"])
        errors = scene.errors()
        rows, state = rows_of(run.log) if case.log else (None, "no log")
        wrong = [f"left: {what}" for what in self.left(scene, case.may_leave)]
        if status not in case.status:
            wrong.append(f"status {status}; {errors or scene.said()[-300:]}")
        if scene.tracebacks() and self.name not in LAUNCHERS:
            wrong.append("traceback: " + scene.said()[-400:])
        if status == 0:
            if errors:
                wrong.append(f"says an error and succeeds: {errors}")
            if case.same and (differs := difference(self.reference, run.log)):
                lines = " ".join(charges.differences(self.reference_charges, self.charges))
                wrong.append(f"another log than undisturbed: {differs}; {lines}")
        elif status > 0:
            if not errors and case.speaks:
                pass
            elif len(errors) != 1:
                wrong.append(f"{len(errors)} messages: {errors}; {scene.said()[-300:]}")
            elif not re.search(case.said, errors[0]):
                wrong.append(f"says {errors[0]}")
        empty = not run.log.exists() or run.log.stat().st_size == 0
        if state not in ("whole", "cut", "no log") and not empty:
            wrong.append(f"log: {state}")
        message = errors[0].replace(f"{ROOT}/", "") if errors else ""  # what is kept is not of one machine
        return Outcome(status, message, rows, state, wrong)


def _ended(scene: Scene) -> int | None:
    try:
        return scene.process.wait(END_S)
    except subprocess.TimeoutExpired:
        return None


@dataclass
class Line:
    """A row of the table."""

    workload: str
    fault: str
    seed: int
    moments: int
    statuses: dict[int, int]
    rows: str
    message: str
    wrong: list[str]


def repeat(bench: Bench, case: Case, moments: int, seed: int) -> Line:
    """Injects a fault at each of several moments."""
    outcomes: list[Outcome] = []
    for index in range(TRIES * moments):
        if len(outcomes) == moments:
            break
        chooser = random.Random(f"{seed} {bench.name} {case.name} {index}")
        outcome = bench.do(case, chooser)
        if outcome is not None:
            outcomes.append(outcome)
            for wrong in outcome.wrong:
                print(f"  {case.name}, seed {seed}, {index}: {wrong}", flush=True)
    counts = Counter(outcome.status for outcome in outcomes)
    rows = sorted(outcome.rows for outcome in outcomes if outcome.rows is not None)
    message = Counter(o.message for o in outcomes if o.message).most_common(1)
    line = Line(
        bench.name,
        case.name,
        seed,
        len(outcomes),
        dict(sorted(counts.items())),
        f"{rows[0]:,} to {rows[-1]:,}" if rows else "none",
        message[0][0] if message else "",
        [wrong for outcome in outcomes for wrong in outcome.wrong],
    )
    statuses = ", ".join(f"{status} ({count})" for status, count in line.statuses.items())
    verdict = "wrong" if line.wrong else "right"
    reported = (bench.name, case.name, str(line.moments), statuses, line.rows, verdict, line.message)
    print("| " + " | ".join(reported), flush=True)
    return line


def of_own(words: Iterable[str]) -> None:
    """A mount namespace in which /tmp and /dev/shm are empty and nobody else's."""
    if ctypes.CDLL(None, use_errno=True).unshare(0x00020000) != 0:  # CLONE_NEWNS
        sys.exit("faults.py needs to be root, to have a mount namespace of its own")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    for place in words:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4g", "tmpfs", place], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workload", action="append", choices=list(workloads()), help="all by default")
    parser.add_argument("--seconds", type=float, help="in an order of chance, for so long in all")
    parser.add_argument("--json", type=Path, help="append what was seen, a line each")
    parser.add_argument("faults", nargs="*", metavar="FAULT", help="parts of names; all by default")
    args = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGHUP):  # a shell may have had them ignored
        signal.signal(number, signal.default_int_handler)
    reported = open(args.json, "a") if args.json else None  # noqa: SIM115 (to the end)
    of_own(("/tmp", "/dev/shm"))
    fault_places.prepare(HOME)
    stubs.ensure()  # a build would count as the reference's CPU time
    failed = 0
    names = args.workload or list(workloads())
    for name in names:
        chosen = [
            case
            for case in CASES
            if name in case.workloads and (not args.faults or any(part in case.name for part in args.faults))
        ]
        if not chosen:
            continue
        if args.seconds:
            random.Random(args.seed).shuffle(chosen)
        deadline = time.monotonic() + (args.seconds or math.inf) / len(names)
        if name == "torchtitan":
            _torchtitan()
        bench = Bench(name, workloads()[name])
        print(f"{name}: an undisturbed run takes {bench.cpu:.1f} s of CPU", flush=True)
        for case in chosen:
            if time.monotonic() > deadline:
                break
            line = repeat(bench, case, args.moments if case.random else min(args.moments, 2), args.seed)
            failed += bool(line.wrong)
            if reported:
                print(json.dumps(asdict(line)), file=reported, flush=True)
    print("all as expected" if not failed else f"{failed} faults not as expected")
    return 1 if failed else 0


def _torchtitan() -> None:
    titan = SAMPLES / "torchtitan"
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(titan), os.environ.get("PYTHONPATH"))))
    assets = HOME / "torchtitan" / "assets"
    assets.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, str(titan / "make_assets.py"), str(assets)], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
