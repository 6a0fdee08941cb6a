"""Runs that are disturbed: who belongs to one, how far it is, and what it leaves."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from phantora.errors import PhantoraError
from phantora.process import children_by_parent
from phantora.run_process import PHANTORA
from phantora.trace.reader import Batch, Log, open_log
from phantora.trace.schema import KINDS

ROOT = Path(__file__).resolve().parents[2]
LOOKS = 5
"""So often in a row, 20 ms apart, must a process be seen to count as living."""
LINGER_S = 10.0
"""So long may processes of a run that has ended take to go."""
_TICKS = os.sysconf("SC_CLK_TCK")
_CACHES = ("torchinductor_",)  # of torch, for other processes
_NO_ERROR = re.compile(r"phantora: (note|warning|building|\d+ ranks? ran|\d+/\d+ )")


@dataclass
class Scene:
    """A folder for one run: its TMPDIR lies there, and its processes carry the folder's name."""

    folder: Path
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.temporary.mkdir(parents=True)

    @property
    def temporary(self) -> Path:
        """TMPDIR of the run."""
        return self.folder / "tmp"

    @property
    def log(self) -> Path:
        """Path of the run's log."""
        return self.folder / "out" / "run.arrow"

    def start(self, *words: str, environment: Mapping[str, str] | None = None, **options: Any) -> None:
        """Runs ``phantora WORDS`` with its output in files; `options` of ``Popen`` come first."""
        self.log.parent.mkdir(exist_ok=True)
        more = {"PHANTORA_SCENE": str(self.folder), "TMPDIR": str(self.temporary), **(environment or {})}
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        with open(self.folder / "out.txt", "ab") as out, open(self.folder / "err.txt", "ab") as err:
            files: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
            self.process = subprocess.Popen(
                [*PHANTORA, *words],
                cwd=self.folder / "out",
                env={**os.environ, "PYTHONPATH": paths, **more},
                **(files | options),
            )

    def said(self) -> str:
        """Its standard error so far."""
        return (self.folder / "err.txt").read_text(errors="replace")

    def errors(self) -> list[str]:
        """Lines of our own that name an error."""
        ours = [line for line in self.said().splitlines() if line.startswith("phantora: ")]
        return [line for line in ours if not _NO_ERROR.match(line)]

    def tracebacks(self) -> int:
        """Tracebacks that no rank printed."""
        return len(re.findall(r"^Traceback \(most", self.said(), re.MULTILINE))

    def processes(self) -> list[int]:
        """Living processes that carry the folder's name."""
        mark = f"PHANTORA_SCENE={self.folder}".encode()
        found = []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                if mark in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                    found.append(int(entry))
            except OSError:
                continue
        return found

    def left(self) -> list[str]:
        """Things that the run should not leave: processes, and files in TMPDIR."""
        deadline = time.monotonic() + LINGER_S
        while (alive := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        files = [path.name for path in sorted(self.temporary.iterdir()) if not path.name.startswith(_CACHES)]
        return [_name(pid) for pid in alive] + files

    def cpu_seconds(self) -> float:
        """CPU time of all its processes so far, the ended children of each included."""
        total = 0.0
        for pid in self.processes():
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            total += sum(map(int, fields[11:15])) / _TICKS
        return total

    def wait_for(self, role: str, seconds: float = 60.0) -> int | None:
        """The process of this role, see :func:`roles`, once it has lived for 0.1 s: the fork server has short children,
        too. None if it never comes."""
        deadline = time.monotonic() + seconds
        seen: list[int | None] = []
        while time.monotonic() < deadline:
            seen.append(roles(self.process.pid).get(role))
            if seen[-1] is not None and seen[-LOOKS:] == [seen[-1]] * LOOKS:
                return seen[-1]
            if self.process.poll() is not None:
                return None
            time.sleep(0.02)
        return None


def roles(top: int) -> dict[str, int]:
    """Roles of the processes under `top`: ``top``, ``server``, ``store``, ``rank0``, ``rank1``, ..., ``worker`` (of a
    rank's DataLoader); under a launcher ``agent`` and the ranks."""
    table = children_by_parent()
    found = {"top": top}
    for child in table.get(top, ()):
        words = _command(child)
        children = sorted(table.get(child, ()))
        if "phantora.launch.forkserver" in words:
            found["server"] = child
            if children:
                found["store"] = children[0]
            ranks = children[1:]
        elif "torch.distributed.run" in words:
            found["agent"] = child
            ranks = children
        else:
            continue
        for index, rank in enumerate(ranks):
            found[f"rank{index}"] = rank
            if table.get(rank):
                found.setdefault("worker", table[rank][0])
    return found


def lives(pid: int) -> bool:
    """True if the process exists and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def rows_of(log: Path) -> tuple[int | None, str]:
    """Number of readable rows of a log, and the reason if none can be read: every batch is decoded. None: there is no
    log."""
    if not log.exists():
        return None, "no log"
    try:
        opened = open_log(log)
        rows = sum(len(batch) for batch in opened.batches())
    except PhantoraError as error:
        return 0, str(error)
    return rows, "whole" if opened.complete else "cut"


def same_rows(one: Path, other: Path) -> bool:
    """True if the columns of two logs are equal, and their texts."""
    return difference(one, other) is None


def difference(one: Path, other: Path) -> str | None:
    """The first thing in which two logs differ; None if their columns and texts are equal."""
    logs = [open_log(path) for path in (one, other)]
    at = 0
    for first, second in itertools.zip_longest(*(log.batches() for log in logs)):
        if first is None or second is None or len(first) != len(second):
            return f"{[sum(map(len, log.batches())) for log in logs]} rows"
        rows = [
            int(np.nonzero(_bits(column) != _bits(second[name]))[0][0])
            for name, column in first.columns.items()
            if column.tobytes() != second[name].tobytes()
        ]
        if rows:
            return f"row {at + min(rows):,}: {_told(logs[0], first, min(rows))}; {_told(logs[1], second, min(rows))}"
        at += len(first)
    names = [name for name in ("name", "op", "shape", "cls") if logs[0].words(name) != logs[1].words(name)]
    return f"words of {', '.join(names)}" if names else None


def _bits(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Rows as bytes: two that are no numbers are equal if their bits are."""
    return np.ascontiguousarray(column).view(f"V{column.dtype.itemsize}")


def _told(log: Log, batch: Batch, row: int) -> str:
    name = int(batch["name"][row])
    values = {column: int(batch[column][row]) for column in ("rank", "stream", "start", "end", "launch", "id")}
    kind, word = KINDS[int(batch["kind"][row])], log.words("name")[name][:60] if name >= 0 else "-"
    return f"{kind} {word} " + " ".join(f"{column}={value}" for column, value in values.items())


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _name(pid: int) -> str:
    return f"process {pid} ({_command(pid)[:60]})"
