"""Runs a spec in a process of its own: ``python -m phantora.runs SPEC RESULT``.

Such a run handles signals, ends what its script leaves behind, and gives its memory back.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from phantora.errors import PhantoraError, Reason, cause_of
from phantora.result import RunReport, RunResult
from phantora.spec import RunSpec

MODULE = "phantora.runs"
PHANTORA = (sys.executable, "-m", "phantora")
"""The command line, for programs that use it as a user does; the only place that names it."""
_SECONDS = 10.0  # from SIGTERM to SIGKILL


@dataclass(frozen=True)
class Files:
    """The files of such a process: its spec and its result."""

    spec: Path
    result: Path

    @classmethod
    def of(cls, folder: Path, name: str, spec: RunSpec) -> Files:
        """Files in `folder`; writes the spec, removes an older result. Raises PhantoraError."""
        files = cls(folder / f"{name}.spec.json", folder / f"{name}.result.json")
        try:
            files.result.unlink(missing_ok=True)
            files.spec.write_text(spec.to_json(), encoding="utf-8")
        except OSError as error:
            raise PhantoraError(f"{files.spec}: cannot be written: {cause_of(error)}; free space") from error
        return files

    @property
    def arguments(self) -> tuple[str, ...]:
        """Arguments of :data:`MODULE`."""
        return str(self.spec), str(self.result)

    @property
    def command(self) -> Sequence[str]:
        """The command line."""
        return (sys.executable, "-m", MODULE, *self.arguments)

    def read(self, status: int) -> RunResult:
        """The result of the process, which ended with `status`; negative for a signal."""
        try:
            return RunResult.from_json(self.result.read_text(encoding="utf-8"))
        except (OSError, PhantoraError):  # it was killed, or could write nothing
            status = status if status >= 0 else 128 - status
            message = f"the run ended with status {status}"
            return RunResult(status or 1, Reason.REFUSED, message, None, RunReport(status or 1, 0, error=message))


def environment(more: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Environment of such a process: this one's, and the place of phantora."""
    root = str(Path(__file__).resolve().parents[1])
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": paths, **more}


def run_in_process(spec: RunSpec, *, quiet: bool = True, python: str = "") -> RunResult:
    """Runs `spec` and waits for its end. `quiet` discards its output. An interrupt ends the run. The interpreter
    `python` has a Phantora of its own."""
    with tempfile.TemporaryDirectory(prefix="phantora-run-") as folder:
        files = Files.of(Path(folder), "run", spec)
        sink = subprocess.DEVNULL if quiet else None
        with subprocess.Popen(
            [python, *files.command[1:]] if python else files.command,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env=None if python else environment(),
            start_new_session=True,
        ) as process:
            try:
                status = process.wait()
            except BaseException:
                process.terminate()
                try:
                    process.wait(_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                raise
        return files.read(status)
