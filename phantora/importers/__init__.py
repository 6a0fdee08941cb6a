"""``phantora import``: logs from the traces that profilers write of real runs.

A reader of a format turns files into :class:`~phantora.importers.rank.RankTrace` objects. :mod:`assemble` matches
collectives between the ranks, removes the skew of their clocks, links kernels to operators and writes the log.

Process: terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from phantora.extensions import extensions
from phantora.importers.assemble import Imported, assemble
from phantora.importers.execution_trace import is_execution_trace, join_execution_trace, read_execution_trace
from phantora.importers.kineto import read_kineto
from phantora.importers.nsight import SUFFIXES, read_nsight
from phantora.importers.operator_table import is_operator_table, read_operator_table
from phantora.importers.rank import RankTrace, Vocabulary


@dataclass(frozen=True)
class Reader:
    """A format of traces that another package reads."""

    reads: Callable[[str], bool]
    """True if the file at this path has the format."""
    read: Callable[[str, Vocabulary, int], list[RankTrace]]
    """The ranks' traces in it; the number is its place among the files given."""


def import_traces(paths: Sequence[str], output: str, version: str = "") -> Imported:
    """Writes the log of the run that the files `paths` are traces of to `output`.

    Raises PhantoraError for files that are no traces, and for two of one rank."""
    words = Vocabulary()
    traces: list[RankTrace] = []
    observed: list[tuple[int, str]] = []
    readers: list[Reader] = extensions("phantora.importers")
    for position, path in enumerate(paths):
        added = next((reader for reader in readers if reader.reads(path)), None)
        if added is not None:
            traces += added.read(path, words, position)
        elif path.endswith(SUFFIXES):
            traces += read_nsight(path, words)
        elif is_operator_table(path):
            traces += read_operator_table(path, words)
        elif is_execution_trace(path):
            observed.append((position, path))
        else:
            traces += read_kineto(path, words, position)
    if not traces:
        traces = [read_execution_trace(path, words, position) for position, path in observed]
    else:
        for _, path in observed:
            join_execution_trace(path, words, traces)
    return assemble(traces, words, output, version)


__all__ = ["Imported", "Reader", "import_traces"]
