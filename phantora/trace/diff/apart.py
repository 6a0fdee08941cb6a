"""Reads a run for a comparison in a process of its own, so that large logs are read at the same time.

parent -> process   pickle of the path, the name that reports have, the filters and `arrivals`
process -> parent   pickle of the fields of ``compare.Side`` but its log, or of the text of an error
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from dataclasses import fields

from phantora.errors import PhantoraError
from phantora.process import die_with_parent
from phantora.trace.analysis.analyze import Filters
from phantora.trace.diff.compare import Side, gather
from phantora.trace.reader import Log, open_log
from phantora.without_pandas import block_pandas

LEAST_ROWS = 1_000_000
"""Rows of a log from which on a process is worth its start: 0.5 s."""


class Apart:
    """A run that is being read. Close it."""

    def __init__(self, log: Log, filters: Filters, arrivals: bool) -> None:
        self._log = log
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(os.getpid())], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdin is not None
        with self._process.stdin as pipe:
            pickle.dump((log.path, log.shown, filters, arrivals), pipe)

    def side(self) -> Side:
        """The run, when it is read. Raises PhantoraError as :func:`gather` does."""
        assert self._process.stdout is not None
        try:
            found = pickle.load(self._process.stdout)  # noqa: S301, of this process' own child
        except (EOFError, pickle.UnpicklingError) as error:
            raise PhantoraError(f"{self._log.shown}: the process that read the log was ended; try again") from error
        if isinstance(found, str):
            raise PhantoraError(found)
        return Side(log=self._log, **found)

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def main(parent: int) -> None:
    """In the process: reads the run that standard input names."""
    die_with_parent(parent)
    block_pandas()
    path, shown, filters, arrivals = pickle.load(sys.stdin.buffer)  # noqa: S301, of the parent
    try:
        log = open_log(path)
        log.shown = shown
        side = gather(log, filters, arrivals=arrivals)
        found: object = {one.name: getattr(side, one.name) for one in fields(side) if one.name != "log"}
    except PhantoraError as error:
        found = str(error)
    pickle.dump(found, sys.stdout.buffer)


if __name__ == "__main__":
    main(int(sys.argv[1]))
