"""Paths of a run's log and timeline; existing files are not lost."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from phantora.errors import PhantoraError
from phantora.outputs import why_not_written
from phantora.result import RunResult
from phantora.spec import COMMAND, MODULE, RunSpec
from phantora.trace.locking import is_being_written

ARROW = ".arrow"


@dataclass(frozen=True)
class Outputs:
    """`log` is where the event log belongs, `written` where it is written while the run goes on.

    They differ where `log` exists: a run that fails replaces the log of one that failed, too, but not of one that
    succeeded.
    """

    log: Path
    written: Path
    timeline: Path | None
    force: bool = False

    @classmethod
    def nowhere(cls) -> Outputs:
        """Outputs that keep nothing."""
        return cls(Path(os.devnull), Path(os.devnull), None)

    @classmethod
    def of(cls, spec: RunSpec) -> Outputs:
        """Outputs of a run. Raises PhantoraError if a file cannot be written."""
        return cls.at(spec.output.path or free_name(spec), spec.output.force)

    @classmethod
    def at(cls, output: str, force: bool = False) -> Outputs:
        """Outputs at ``--output`` as given; with `force` a failed run replaces an existing log too.

        Raises PhantoraError if a file cannot be written.
        """
        log, timeline = output_paths(output)
        if is_being_written(os.fspath(log)):
            raise PhantoraError(f"{log}: another run is writing it; wait for its end, or choose another -o")
        written = log
        if log.exists() and log.is_file():
            written = log.with_name(log.name.removesuffix(ARROW) + ".partial" + ARROW)
            _check_writable(written)
        return cls(log, written, timeline, force)

    @property
    def replaces(self) -> bool:
        """True if there is a log already."""
        return self.written != self.log

    def discard(self) -> None:
        """Deletes the log of a run that begins again."""
        if not self.written.is_char_device():
            self.written.unlink(missing_ok=True)

    def settle(self, succeeded: bool, rows: int) -> Path | None:
        """After the end of the run: where its log is now. One without rows is deleted, and replaces none."""
        if not rows:
            self.discard()
            return None
        if not self.replaces or not (succeeded or self.force or _has_failed(self.log)):
            return self.written
        self.written.replace(self.log)
        return self.log


Logged: TypeAlias = Callable[[RunResult], None]
"""Gets the result of a run whose log is complete, before its timeline is written."""


def with_timeline(result: RunResult, outputs: Outputs, logged: Logged | None) -> RunResult:
    """`result`, with the timeline of its log, if one is wanted. Raises PhantoraError if it cannot be written."""
    if logged is not None:
        logged(result)
    if outputs.timeline is None or result.log is None or result.log != outputs.log:
        return result
    from phantora.trace.export.registry import export

    files = tuple(export(result.log, str(outputs.timeline)))
    return replace(result, report=replace(result.report, timeline=files))


def free_name(spec: RunSpec) -> str:
    """``train.arrow`` of a run of ``train.py``, or ``train-2.arrow`` and so on: the first that is not there."""
    words = [spec.target, *(spec.arguments if spec.kind == COMMAND else ())]
    script = next((word for word in words if word.endswith(".py")), spec.target)
    name = script.rpartition(".")[2] if spec.kind == MODULE else Path(script).stem
    name = name or "run"
    if not os.path.exists(name + ARROW):
        return name + ARROW
    return next(found for n in itertools.count(2) if not os.path.exists(found := f"{name}-{n}{ARROW}"))


def output_paths(output: str) -> tuple[Path, Path | None]:
    """The event log and, if one is wanted, the timeline. Raises if either cannot be written."""
    from phantora.trace.export.registry import format_of

    path = Path(output)
    timeline = None
    if path.suffix != ARROW:
        suffixes = format_of(output).suffixes
        timeline = path
        suffix = max((s for s in suffixes if output.endswith(s)), key=len, default="")
        path = path.with_name(path.name.removesuffix(suffix) + ARROW)
    for file in filter(None, (path, timeline)):
        _check_writable(file)
    return path, timeline


def _has_failed(log: Path) -> bool:
    """True for the log of a run that failed or was killed."""
    from phantora.trace.reader import open_log

    try:
        earlier = open_log(log)
    except PhantoraError:  # another file, or one that this version does not read
        return False
    return not earlier.complete or bool(earlier.trailer.get("status"))


def _check_writable(path: Path) -> None:
    existed = path.exists()
    try:
        with open(path, "ab"):
            pass
    except OSError as error:
        raise PhantoraError(f"cannot write {path}: {why_not_written(path, error)}") from error
    if not existed:
        path.unlink()
