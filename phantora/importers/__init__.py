"""``phantora import``: logs from the traces that profilers write of real runs.

A reader of a format turns files into :class:`~phantora.importers.rank.RankTrace` objects. :mod:`assemble` matches
collectives between the ranks, removes the skew of their clocks, links kernels to operators and writes the log.

Process: terminal.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from pkgutil import iter_modules

from phantora.extensions import extensions
from phantora.hardware import load_gpu
from phantora.importers.assemble import Imported, assemble
from phantora.importers.rank import Device, RankTrace, Vocabulary
from phantora.importers.reader import Reader, Report


def _shipped() -> tuple[Reader, ...]:
    modules = (import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__))
    found: list[Reader] = [module.READER for module in modules if hasattr(module, "READER")]
    return tuple(sorted(found, key=lambda reader: reader.takes_all))


READERS = _shipped()
"""Readers of the modules of this package. The first that reads a file gets it. The last takes every file."""
Progress = Callable[[int, int], None]
"""Gets the bytes that are done and all of them."""


def readers() -> tuple[Reader, ...]:
    """Readers of installed packages, then ours."""
    return (*extensions("phantora.importers"), *READERS)


def suffixes() -> tuple[str, ...]:
    """Ends of the names of files that are traces."""
    return tuple(suffix for reader in readers() for suffix in reader.suffixes)


def import_traces(
    paths: Sequence[str], output: str, version: str = "", gpu: str | None = None, progress: Progress | None = None
) -> Imported:
    """Writes the log of the run that the files `paths` are traces of to `output`. `gpu` is the model of its GPUs, where
    the files do not tell it or for one that is a variant of it.

    Raises PhantoraError for files that are no traces, for two of one rank, and for an unknown GPU."""
    model = load_gpu(gpu) if gpu else None
    words = Vocabulary()
    traces: list[RankTrace] = []
    joining: list[tuple[int, str, Reader]] = []
    known = readers()
    sizes = [os.path.getsize(path) if os.path.exists(path) else 0 for path in paths]
    for position, path in enumerate(paths):
        report = _within(progress, sum(sizes[:position]), sum(sizes))
        if report is not None:
            report(0)
        reader = next(reader for reader in known if reader.reads(path))
        if reader.join is not None:
            joining.append((position, path, reader))
        else:
            traces += reader.read(path, words, position, report)
    alone = not traces
    for position, path, reader in joining:
        if alone:
            traces += reader.read(path, words, position, None)
        elif reader.join is not None:
            reader.join(path, words, traces)
    if model is not None:
        for trace in traces:
            trace.device = Device(model.name, trace.device.memory_bytes or model.memory_bytes, trace.device.per_host)
    return assemble(traces, words, output, version)


def _within(progress: Progress | None, before: int, whole: int) -> Report | None:
    """What to call with the bytes done of a file that `before` bytes of others precede."""
    return None if progress is None else lambda done: progress(before + done, whole)


__all__ = ["READERS", "Imported", "Progress", "Reader", "Report", "import_traces", "readers", "suffixes"]
