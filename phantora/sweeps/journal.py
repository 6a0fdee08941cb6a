"""Results of a sweep so far: JSON lines, appended and synced, one for each finished point.

A sweep that is stopped, killed or out of disk leaves whole lines, and at most one torn one at the end, which is cut
off when the sweep goes on. The first line names the format. A lock keeps a second sweep out of the folder.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from phantora.errors import PhantoraError, cause_of
from phantora.sweeps.result import Result, result_of

NAME = "journal.jsonl"
FORMAT = 1


class Journal:
    """Journal of the sweep in `folder`, which is made. Raises PhantoraError if another sweep is at work there, if the
    file is none of ours, or cannot be written."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self.results: dict[str, Result] = {}
        """Results by key of the task; the last if a task is there twice."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise PhantoraError(f"{folder}: cannot be used for a sweep: {cause_of(error)}; name another -o") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise PhantoraError(f"{folder}: another sweep is at work in it; wait for it, or name another -o") from None
        try:
            self._begin()
        except BaseException:
            os.close(self._file)
            raise

    def _begin(self) -> None:
        results, whole = read(self.path)
        os.ftruncate(self._file, whole)
        self.results = {result.key: result for result in results}
        if whole == 0:
            self._append({"phantora sweep": FORMAT})

    def add(self, result: Result) -> None:
        """Returns when it is on the disk. Raises PhantoraError where it cannot be."""
        self._append(asdict(result))
        self.results[result.key] = result

    def _append(self, entry: dict[str, Any]) -> None:
        data = orjson.dumps(entry) + b"\n"
        try:
            while data:
                data = data[os.write(self._file, data) :]
            os.fsync(self._file)
        except OSError as error:
            raise PhantoraError(
                f"{self.path}: cannot be written: {cause_of(error)}; free space and start the same sweep again: it "
                "goes on where it was"
            ) from error

    def close(self) -> None:
        """Closes the file, and with it the lock."""
        os.close(self._file)


def read(path: Path) -> tuple[list[Result], int]:
    """The results in the journal at `path`, and the length of its whole lines in bytes. Raises PhantoraError for a file
    that is no journal, and for a damaged line before the last."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PhantoraError(f"{path}: cannot be read: {cause_of(error)}") from error
    whole = data.rfind(b"\n") + 1
    lines = data[:whole].splitlines()
    if not lines:
        if data and not b'{"phantora sweep":'.startswith(data[:18]):
            raise PhantoraError(f"{path}: is no journal of a sweep; name another -o")
        return [], 0
    try:
        entries = [orjson.loads(line) for line in lines]
        if entries[0].get("phantora sweep") != FORMAT:
            raise ValueError(f"its first line says {lines[0][:60].decode(errors='replace')!r}")
        return [result_of(entry) for entry in entries[1:]], whole
    except (ValueError, AttributeError, TypeError) as error:
        raise PhantoraError(f"{path}: is no journal of this version's sweeps ({error}); name another -o") from error
