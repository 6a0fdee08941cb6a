"""The log of a real run, at its place among the outputs of runs."""

from __future__ import annotations

from collections.abc import Sequence

from phantora.importers import Imported, Progress, import_traces
from phantora.runs.outputs import Outputs
from phantora.version import version


def import_run(
    files: Sequence[str], output: str, force: bool = False, gpu: str | None = None, progress: Progress | None = None
) -> tuple[str, Imported]:
    """Writes the log of the run of which `files` are traces to `output`; its path, and what was found. Raises
    PhantoraError."""
    outputs = Outputs.at(output, force)
    imported = import_traces(files, str(outputs.written), version(), gpu, progress)
    outputs.settle(True, imported.rows)
    return str(outputs.log), imported
