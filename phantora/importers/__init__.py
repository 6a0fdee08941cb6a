"""``phantora import``: logs from the traces that profilers write of real runs.

A reader of a format turns files into :class:`~phantora.importers.rank.RankTrace` objects. :mod:`assemble` matches
collectives between the ranks, removes the skew of their clocks, links kernels to operators and writes the log.

Process: terminal.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from phantora.extensions import extensions
from phantora.hardware import load_gpu
from phantora.importers.assemble import Imported, assemble
from phantora.importers.chakra import SUFFIX as CHAKRA
from phantora.importers.chakra import read_chakra
from phantora.importers.execution_trace import is_execution_trace, join_execution_trace, read_execution_trace
from phantora.importers.kineto import read_kineto
from phantora.importers.nsight import SUFFIXES, read_nsight
from phantora.importers.operator_table import is_operator_table, read_operator_table
from phantora.importers.rank import Device, RankTrace, Vocabulary


@dataclass(frozen=True)
class Reader:
    """A format of traces that another package reads."""

    reads: Callable[[str], bool]
    """True if the file at this path has the format."""
    read: Callable[[str, Vocabulary, int], list[RankTrace]]
    """The ranks' traces in it; the number is its place among the files given."""


Progress = Callable[[int, int], None]
"""Gets the bytes that are done and all of them."""
TRACES = (*SUFFIXES, ".json", ".json.gz", ".parquet", CHAKRA)
"""Suffixes of files that are traces."""


def import_traces(
    paths: Sequence[str], output: str, version: str = "", gpu: str | None = None, progress: Progress | None = None
) -> Imported:
    """Writes the log of the run that the files `paths` are traces of to `output`. `gpu` is the model of its GPUs, where
    the files do not tell it or for one that is a variant of it.

    Raises PhantoraError for files that are no traces, for two of one rank, and for an unknown GPU."""
    model = load_gpu(gpu) if gpu else None
    words = Vocabulary()
    traces: list[RankTrace] = []
    observed: list[tuple[int, str]] = []
    readers: list[Reader] = extensions("phantora.importers")
    sizes = [os.path.getsize(path) if os.path.exists(path) else 0 for path in paths]
    for position, path in enumerate(paths):
        report = _within(progress, sum(sizes[:position]), sum(sizes))
        if report is not None:
            report(0)
        added = next((reader for reader in readers if reader.reads(path)), None)
        if added is not None:
            traces += added.read(path, words, position)
        elif path.endswith(SUFFIXES):
            traces += read_nsight(path, words)
        elif path.endswith(CHAKRA):
            traces += read_chakra(path, words, position)
        elif is_operator_table(path):
            traces += read_operator_table(path, words)
        elif is_execution_trace(path):
            observed.append((position, path))
        else:
            traces += read_kineto(path, words, position, report)
    if not traces:
        traces = [read_execution_trace(path, words, position) for position, path in observed]
    else:
        for _, path in observed:
            join_execution_trace(path, words, traces)
    if model is not None:
        for trace in traces:
            trace.device = Device(model.name, trace.device.memory_bytes or model.memory_bytes, trace.device.per_host)
    return assemble(traces, words, output, version)


def _within(progress: Progress | None, before: int, whole: int) -> Callable[[int], None] | None:
    """What to call with the bytes done of a file that `before` bytes of others precede."""
    return None if progress is None else lambda done: progress(before + done, whole)


__all__ = ["TRACES", "Imported", "Progress", "Reader", "import_traces"]
