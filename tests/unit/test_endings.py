"""End of a command that is interrupted, or whose standard streams are broken."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from typing import cast

import pytest

from phantora.errors import PhantoraError, limit_of_processes
from phantora.launch.ending import RunningSimulator, SimulatorThread
from phantora.run_process import PHANTORA

COMMAND = [*PHANTORA, "completion", "bash"]


# A command that says that it has begun, and waits.
WAITING = """
import signal, click
from phantora.cli import main

def wait():
    print("begun", flush=True)
    signal.sigtimedwait([], 20)

main.Commands.get_command = lambda *_: click.Command("wait", callback=wait)
main.main()
"""


def interrupted(number: int, before: int) -> tuple[int, str]:
    """Status and standard error of a command that gets a signal, which it ignored or not at its start."""
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING, "wait"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(number, before),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(number)
    if before == signal.SIG_IGN:
        process.terminate()
    _, err = process.communicate(timeout=60)
    return process.returncode, err.strip()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_verb_with_one_line(number: int) -> None:
    status, err = interrupted(number, signal.SIG_DFL)
    assert status == 128 + number and err == f"phantora: interrupted by {signal.Signals(number).name}"


# Commands during which, and after which, a signal comes where Python drops exceptions or prints them with a traceback.
DROPPED = """
import os, signal, time, click
from phantora.cli import main

class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)

def finalize():
    Finalized()
    time.sleep(20)
"""
LATE = """
import atexit, os, signal, click
from phantora.cli import main

def finalize():
    print("done")
    atexit.register(os.kill, os.getpid(), signal.SIGINT)
"""
RUN = "main.Commands.get_command = lambda *_: click.Command('x', callback=finalize)\nmain.main()\n"


@pytest.mark.parametrize(
    ("command", "status", "out", "err"),
    [(DROPPED, 130, "", "phantora: interrupted by SIGINT\n"), (LATE, -signal.SIGINT, "done\n", "")],
)
def test_no_signal_is_dropped_and_none_ends_in_a_traceback(command: str, status: int, out: str, err: str) -> None:
    done = subprocess.run([sys.executable, "-c", command + RUN, "x"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.lstrip()) == (status, out, err)


def test_nohup_is_respected() -> None:
    status, err = interrupted(signal.SIGHUP, signal.SIG_IGN)
    assert status == 128 + signal.SIGTERM and err == "phantora: interrupted by SIGTERM"


def test_closed_streams_are_no_files_of_the_run() -> None:
    def close() -> None:
        for fd in range(3):
            os.close(fd)

    assert subprocess.run(COMMAND, preexec_fn=close, check=False).returncode == 0


def test_output_that_cannot_be_written_is_told() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(COMMAND, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("phantora: cannot write") and "No space left on device" in done.stderr
    assert len(done.stderr.splitlines()) == 1


class _Simulator:
    stopped = False

    def run(self) -> None:
        raise AssertionError("it has no thread")

    def stop(self) -> None:
        self.stopped = True


def test_a_machine_without_room_for_threads_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    thread = SimulatorThread(cast("RunningSimulator", _Simulator()), lambda: None)
    with pytest.raises(PhantoraError, match=r"^cannot start a thread: the limit of processes"):
        thread.start()
    thread.finish(stop=True)


def test_only_a_fork_that_is_refused_is_a_limit_of_processes() -> None:
    refused = OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))  # as os.fork raises it
    assert limit_of_processes(refused).startswith("cannot start a process: the limit of processes is reached")
    assert limit_of_processes(BlockingIOError(errno.EAGAIN, "write could not complete without blocking", 0)) == ""
    assert limit_of_processes(RuntimeError(os.strerror(errno.EAGAIN))).startswith("cannot start a thread: the limit")
    assert limit_of_processes(OSError(errno.ENOENT, "no such file")) == ""
