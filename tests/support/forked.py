"""Commands of tests in processes that a zygote forks, which has imported their modules already."""

from __future__ import annotations

import atexit
import io
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import BinaryIO

from phantora.launch.zygote import Zygote

_REPOSITORY = Path(__file__).resolve().parents[2]


def completed(
    modules: tuple[str, ...], command: tuple[str, ...], environment: Mapping[str, str], folder: str, timeout: float
) -> subprocess.CompletedProcess[str]:
    """``python -m COMMAND``, forked from a process of this worker that has imported `modules`; modules of tests, too.
    Raises ``subprocess.TimeoutExpired``."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = _zygote(modules).start(command[0], command[1:], environment, out.fileno(), err.fileno(), folder)
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired as late:
            process.send_signal(signal.SIGKILL)
            raise subprocess.TimeoutExpired(command, timeout, _text(out), _text(err)) from late
        return subprocess.CompletedProcess(command, status, _text(out), _text(err))


@cache
def _zygote(modules: tuple[str, ...]) -> Zygote:
    made = Zygote(modules, {**os.environ, "PYTHONPATH": python_path()})
    atexit.register(made.close)
    return made


def python_path() -> str:
    """PYTHONPATH with the modules of tests."""
    return os.pathsep.join(filter(None, (str(_REPOSITORY), os.environ.get("PYTHONPATH"))))


def _text(file: BinaryIO) -> str:
    file.seek(0)
    return io.TextIOWrapper(io.BytesIO(file.read())).read()  # whose ends of lines are \n
