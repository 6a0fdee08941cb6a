"""A process that forks others: their output, statuses, ends."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from phantora.errors import PhantoraError
from phantora.launch.zygote import Forked, Zygote

SCRIPT = """
import os, sys, time
print(sys.argv[1:], os.environ, os.getcwd(), "tabnanny" in sys.modules, flush=True)
print("told", file=sys.stderr)
if sys.argv[1] == "wait":
    time.sleep(60)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    made = Zygote(["tabnanny", "no.such.module"])
    yield made
    made.close()


def started(zygote: Zygote, folder: Path, *arguments: str) -> Forked:
    (folder / "job.py").write_text(SCRIPT)
    with open(folder / "out", "wb") as out, open(folder / "err", "wb") as err:
        return zygote.start("job", arguments, {"COLOUR": "red"}, out.fileno(), err.fileno(), str(folder))


def test_a_fork_is_the_command(zygote: Zygote, tmp_path: Path) -> None:
    process = started(zygote, tmp_path, "3", "b c")
    assert process.wait(30) == process.wait() == 3
    assert (tmp_path / "out").read_text() == f"['3', 'b c'] environ({{'COLOUR': 'red'}}) {tmp_path} True\n"
    assert (tmp_path / "err").read_text() == "told\n"


def test_signals_and_patience(zygote: Zygote, tmp_path: Path) -> None:
    process = started(zygote, tmp_path, "wait")
    assert os.getpgid(process.pid) == process.pid
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == -signal.SIGTERM
    process.send_signal(signal.SIGTERM)  # reaches nobody


def test_forks_end_with_their_zygote(tmp_path: Path) -> None:
    other = Zygote([])
    process = started(other, tmp_path, "wait")
    other.close()
    with pytest.raises(PhantoraError, match="was ended; start the same command again"):
        process.wait(30)
    with pytest.raises(PhantoraError, match="was ended"):
        started(other, tmp_path, "0")
