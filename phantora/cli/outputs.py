"""Where a run's log and timeline go, without losing what is there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from phantora.errors import PhantoraError
from phantora.outputs import why_not_written
from phantora.trace.locking import is_being_written

ARROW = ".arrow"


@dataclass(frozen=True)
class Outputs:
    """`log` is where the event log belongs, `written` where it is written while the run goes on.

    They differ where `log` exists: a run that fails or is killed does not replace the log of one that
    succeeded.
    """

    log: Path
    written: Path
    timeline: Path | None

    @classmethod
    def nowhere(cls) -> Outputs:
        """Outputs that keep nothing."""
        return cls(Path(os.devnull), Path(os.devnull), None)

    @classmethod
    def of(cls, output: str, force: bool) -> Outputs:
        """For ``--output`` as given; with `force` an existing log is replaced at once.

        Raises PhantoraError if a file cannot be written.
        """
        log, timeline = output_paths(output)
        if is_being_written(os.fspath(log)):
            raise PhantoraError(f"{log}: another run is writing it; wait for its end, or choose another -o")
        written = log
        if log.exists() and log.is_file() and not force:
            written = log.with_name(log.name.removesuffix(ARROW) + ".partial" + ARROW)
            _check_writable(written)
        return cls(log, written, timeline)

    def settle(self, succeeded: bool) -> Path:
        """After the end of the run: where its log is now."""
        if self.written == self.log or not succeeded:
            return self.written
        self.written.replace(self.log)
        return self.log


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


def _check_writable(path: Path) -> None:
    existed = path.exists()
    try:
        with open(path, "ab"):
            pass
    except OSError as error:
        raise PhantoraError(f"cannot write {path}: {why_not_written(path, error)}") from error
    if not existed:
        path.unlink()
