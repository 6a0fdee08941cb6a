"""Calibrates each program by its trace and predicts its other configurations.

    python -m validation.calibration.predict OUT.jsonl [--only PROGRAM ...] [--logs FOLDER]

A program is simulated in the traced configuration, calibrated by ``traces/PROGRAM.arrow``, then simulated with
``--calibration`` in all its configurations. A line has the seconds of a step: the mean of the median step of those that
end with a synchronisation, and of a step of several in a row. Logs in FOLDER are simulated once.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from phantora.run_process import PHANTORA

HERE = Path(__file__).parent
ONE, TWO, FOUR = "1x1xH100", "1x2xH200", "1x4xH200"
TRACED = "base"
PROGRAMS: Mapping[str, Mapping[str, str]] = {
    **{name: dict.fromkeys((TRACED, "deep", "long", "wide"), ONE) for name in ("gpt", "bert", "decode", "rnn")},
    "messages": dict.fromkeys((TRACED, "deep", "large", "small"), ONE),
    "cifar": dict.fromkeys((TRACED, "deep", "wide", "small"), ONE),
    "policy": dict.fromkeys((TRACED, "long", "epochs", "wide"), ONE),
    "accumulate": dict.fromkeys((TRACED, "deep", "many", "wide"), ONE),
    "ddp": {TRACED: FOUR, "deep": FOUR, "many": FOUR, "two": TWO},
    "fsdp": {TRACED: FOUR, "deep": FOUR, "long": FOUR, "two": TWO},
    "tensor": {TRACED: FOUR, "deep": FOUR, "sequence": FOUR, "two": TWO},
    "pipeline": {TRACED: FOUR, "deep": FOUR, "gpipe": FOUR, "two": TWO},
}
"""Configurations of each program and their clusters."""


def step_seconds(row: Mapping[str, Any]) -> float:
    """Seconds of a step by a line of programs/common.py."""
    return float(row["median_iter_s"] + row["in_a_row_s"]) / 2


def run(*words: str) -> str:
    """Standard output of a `phantora` command. Exits when it fails."""
    done = subprocess.run([*PHANTORA, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"phantora {' '.join(words)}\n{done.stderr[-1000:]}")
    return done.stdout


def simulate(program: str, configurations: Sequence[str], log: Path, host: Path | None = None) -> list[float]:
    """Seconds of a step in each of `configurations`, which have one cluster."""
    cluster = PROGRAMS[program][configurations[0]]
    options = ["-q", "--no-summary", "--cluster", cluster, "-o", str(log)]
    options += ["--calibration", str(host)] if host is not None else []
    text = run("trace", *options, "-m", f"validation.calibration.programs.{program}", *configurations, "--short")
    lines = (re.sub(r"^\[rank\d+\]: ", "", line) for line in text.splitlines())
    return [step_seconds(json.loads(line)) for line in lines if line.startswith("{")]


def predict(program: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Lines of a program's configurations."""
    traced, host = folder / f"{program}.arrow", folder / f"{program}.toml"
    if not traced.exists():
        simulate(program, [TRACED], traced)
    print(run("calibrate", str(HERE / "traces" / f"{program}.arrow"), str(traced), "--out", str(host)), file=sys.stderr)
    for _, group in groupby(PROGRAMS[program].items(), key=itemgetter(1)):
        names = [name for name, _ in group]
        for name, seconds in zip(names, simulate(program, names, folder / "calibrated.arrow", host), strict=True):
            yield {"program": program, "configuration": name, "step_s": round(seconds, 6)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="*", default=list(PROGRAMS))
    parser.add_argument("--logs", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, args.out.open("a") as file:
        for program in args.only:
            for row in predict(program, args.logs or Path(folder)):
                print(json.dumps(row), file=file, flush=True)


if __name__ == "__main__":
    main()
