"""Runs trainers of other projects, each in an environment of its own, and renews docs/frameworks/trainers.md.

    python -m tests.upstream.trainers
    python -m tests.upstream.trainers --only TRL --folder /tmp/trainers

Needs uv and PyPI. An environment has the newest release of a trainer, with the tested torch if both go together, else
with the torch that the trainer takes; it is deleted afterwards. The models have two layers and no weights, the data a
few rows; a run itself needs no network. Status 1 if one that ran before did not.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from phantora.run_process import PHANTORA
from phantora.stubs.find import TESTED
from tests.upstream.trainers.registry import TRAINERS, Trainer

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = Path(__file__).parent / "programs"
PAGE = ROOT / "docs" / "frameworks" / "trainers.md"
_RAN = "ran"
_HEAD = "| trainer | version | torch | GPUs | result | what was set |"


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    name: str
    version: str
    torch: str
    gpus: str
    result: str
    set: str

    def line(self) -> str:
        """Markdown."""
        return f"| {' | '.join((self.name, self.version, self.torch, self.gpus, self.result, self.set))} |"


def call(command: Sequence[str], folder: Path, more: Mapping[str, str], limit: float) -> tuple[int | None, str]:
    """Status (None: it took longer than `limit` seconds) and output of a command."""
    log = folder / "output.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=folder, env={**os.environ, **more}, stdout=out, stderr=out, start_new_session=True
        )
        try:
            status: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()
            status = None
    return status, log.read_text(errors="replace")


def install(trainer: Trainer, folder: Path) -> tuple[Path, str]:
    """The interpreter of a new environment, and why the installation failed."""
    made = folder / "venv"
    interpreter = made / "bin" / "python"
    pip = ["uv", "pip", "install", "-q", "--python", str(interpreter)]
    needed = [*pip, "-r", str(ROOT / "pyproject.toml"), *trainer.requirements]
    python = sys.executable if sys.version_info >= trainer.python else f">={trainer.python[0]}.{trainer.python[1]}"
    commands = [["uv", "venv", "-q", "--python", python, str(made)]]
    commands += [[*pip, *words] for words in trainer.before]
    for command in commands:
        status, output = call(command, folder, trainer.environment, 1800)
        if status != 0:
            return interpreter, _last(output)
    for command in ([*needed, f"torch=={TESTED}"], needed):
        status, output = call(command, folder, trainer.environment, 1800)
        if status == 0:
            return interpreter, ""
    return interpreter, _last(output)


def version_of(interpreter: Path, distribution: str) -> str:
    """Of an installed distribution, without a local part; "" if there is none."""
    code = f"import importlib.metadata as m; print(m.version({distribution!r}).partition('+')[0])"
    done = subprocess.run([interpreter, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def run(trainer: Trainer, folder: Path, limit: float) -> Row:
    """Installs a trainer, runs it, and says how that ended."""
    interpreter, error = install(trainer, folder)
    result = f"not installed: {error}"
    if not error:
        more = {
            "HF_HUB_OFFLINE": "1",
            "PATH": f"{interpreter.parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "WANDB_MODE": "disabled",
            "PROGRAMS": str(PROGRAMS),
            **trainer.environment,
        }
        commands = [[str(interpreter), str(PROGRAMS / words[0]), *words[1:]] for words in trainer.prepared]
        trace = [str(interpreter), *PHANTORA[1:], "trace", "--cluster", trainer.cluster, "-o", "run.arrow"]
        commands.append([*trace, *(word.replace("PROGRAMS", str(PROGRAMS)) for word in trainer.command)])
        for command in commands:
            status, output = call(command, folder, more, limit)
            result = _RAN if status == 0 else "takes too long" if status is None else _cause(output, folder)
            if status != 0:
                break
        (folder.parent / f"{trainer.name}.log").write_text(output)
    version, torch = (version_of(interpreter, name) for name in (trainer.distribution, "torch"))
    return Row(trainer.name, version, torch, trainer.cluster, result, trainer.set)


def _cause(output: str, folder: Path) -> str:
    """The line of a run that names why it failed, with files relative to `folder`."""
    failed = re.findall(r"^FAILED: (.*)$", output.replace(f"{folder}/", ""), re.MULTILINE)
    return f"failed: {failed[-1] if failed else _last(output)}"[:160].replace("|", "/")


def _last(output: str) -> str:
    return " ".join((output.strip().splitlines() or ["no output"])[-1].split())[:160].replace("|", "/")


def table(page: str) -> dict[str, Row]:
    """The rows that a page has."""
    lines = page.partition(_HEAD)[2].splitlines()[2:]
    cells = (line.strip("| ").split(" | ") for line in lines if line.startswith("|"))
    return {words[0]: Row(*words) for words in cells}


def written(page: str, rows: Mapping[str, Row]) -> str:
    """The page with `rows` in its table, in the order of the trainers."""
    start, _, rest = page.partition(_HEAD)
    after = rest.partition("\n\n")[2]
    lines = [rows[trainer.name].line() for trainer in TRAINERS if trainer.name in rows]
    return "\n".join((start + _HEAD, "|" + " --- |" * 6, *lines)) + (f"\n\n{after}" if after else "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[trainer.name for trainer in TRAINERS], help="default: all")
    parser.add_argument("--folder", type=Path, help="where outputs are kept")
    parser.add_argument("--limit", type=float, default=900, help="seconds of real time for a run")
    options = parser.parse_args()
    worse = False
    for trainer in TRAINERS:
        if options.only and trainer.name not in options.only:
            continue
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="phantora-trainer-", dir=options.folder) as folder:
            row = run(trainer, Path(folder), options.limit)
        page = PAGE.read_text()
        rows = table(page)
        before = rows.get(trainer.name)
        worse |= before is not None and before.result == _RAN != row.result
        PAGE.write_text(written(page, {**rows, trainer.name: row}))
        print(f"{row.line()} {time.monotonic() - begun:.0f} s: {shlex.join(trainer.command)}", flush=True)
    return int(worse)


if __name__ == "__main__":
    sys.exit(main())
