"""A process that has imported what `python -m MODULE` will import, and forks such processes: each begins in
milliseconds in place of a second or two.

parent -> zygote   {"module": NAME, "arguments": [...], "folder": DIR, "environment": {...}}, one message a packet, with
                   descriptors [stdout, stderr, report]
zygote -> report   a line with the process' number when it has begun, one with its status when it has ended
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import phantora
from phantora import process
from phantora.errors import PhantoraError
from phantora.launch.forkserver import MESSAGE_BYTES

_BOOTSTRAP = (
    "import sys; parent, fd, root = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]; "
    "sys.path[0] = root; from phantora.launch.zygote import main; del sys.path[0]; main(parent, fd, sys.argv[4:])"
)


class Zygote:
    """Such a process, which has imported `modules`. Close it: what it has forked ends then. `environment`: all of its
    variables (None: this process')."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        root = str(Path(phantora.__file__).resolve().parent.parent)
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOTSTRAP, str(os.getpid()), str(theirs.fileno()), root, *modules],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=None if os.environ.get("PHANTORA_DEBUG") else subprocess.DEVNULL,
                start_new_session=True,
                env=environment,
            )

    def start(
        self,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        out: int,
        err: int,
        folder: str | None = None,
    ) -> Forked:
        """``python -m module arguments`` in `folder` (None: this process') with all variables of `environment`; `out`
        and `err` are descriptors. Raises PhantoraError if the zygote was ended."""
        message = {
            "module": module,
            "arguments": list(arguments),
            "folder": folder or os.getcwd(),
            "environment": dict(environment),
        }
        read, report = os.pipe()
        try:
            socket.send_fds(self._link, [json.dumps(message).encode()], [out, err, report])
        except OSError as error:
            os.close(read)
            raise _ended() from error
        finally:
            os.close(report)
        return Forked(open(read, "rb", buffering=0))

    def close(self) -> None:
        """Ends it, and what it has forked."""
        self._process.kill()
        self._process.wait()
        self._link.close()


class Forked:
    """A process that a :class:`Zygote` has forked; used as a ``Popen``. Readable (`fileno`) when it has ended."""

    def __init__(self, report: BinaryIO) -> None:
        self._report = report
        self._status: int | None = None
        self.pid = self._number()

    def fileno(self) -> int:
        """Descriptor that becomes readable."""
        return self._report.fileno()

    def wait(self, timeout: float | None = None) -> int:
        """Exit status of the command, negative for a signal. Raises ``subprocess.TimeoutExpired``; PhantoraError if the
        zygote was ended, and this process with it."""
        if self._status is None:
            if not select.select([self._report], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            self._status = self._number()
            self._report.close()
        return self._status

    def send_signal(self, number: int) -> None:
        """To the process, unless it has ended."""
        if self._status is None and not select.select([self._report], [], [], 0)[0]:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _number(self) -> int:
        line = self._report.readline()
        if not line:
            self._report.close()
            raise _ended()
        return int(line)


def _ended() -> PhantoraError:
    return PhantoraError("the process that forks the runs was ended; start the same command again: it goes on")


# ---------------------------------------------------------------------- in that process


def main(parent: int, fd: int, modules: Sequence[str]) -> None:
    """Serves what comes over socket `fd`, until it closes or the process `parent` ends."""
    process.die_with_parent(parent)
    gc.disable()
    for name in modules:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:  # an optional package: what needs it names it
            if not error.name or error.name.partition(".")[0] == phantora.__name__:
                raise
    gc.enable()
    gc.collect()
    gc.freeze()
    if become := _serve(socket.socket(fileno=fd)):
        become()


def _serve(link: socket.socket) -> Callable[[], None] | None:
    """None when the parent has closed its end; in a forked process what that becomes."""
    poll = select.poll()
    poll.register(link, select.POLLIN)
    running: dict[int, tuple[int, int]] = {}  # pidfd -> pid, report
    while True:
        for ready, _ in poll.poll():
            if ready in running:
                poll.unregister(ready)
                pid, report = running.pop(ready)
                os.close(ready)
                _notify(report, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                os.close(report)
                continue
            data, fds, _, _ = socket.recv_fds(link, MESSAGE_BYTES, 3)
            if not data:
                process.kill_descendants()
                return None
            parent, (out, err, report) = os.getpid(), fds
            pid = os.fork()
            if pid == 0:
                link.close()
                for pidfd, (_, other) in running.items():
                    os.close(pidfd)
                    os.close(other)
                os.close(report)
                return lambda: _become(json.loads(data), parent, out, err)
            os.close(out)
            os.close(err)
            with suppress(OSError):  # it has done so itself, or ended
                os.setpgid(pid, pid)
            _notify(report, pid)
            pidfd = os.pidfd_open(pid)
            running[pidfd] = pid, report
            poll.register(pidfd, select.POLLIN)


def _notify(report: int, number: int) -> None:
    with suppress(BrokenPipeError):  # its reader has gone
        os.write(report, b"%d\n" % number)


def _become(message: Mapping[str, Any], parent: int, out: int, err: int) -> None:
    process.die_with_parent(parent)
    os.setpgid(0, 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.close(out)
    os.close(err)
    os.environ.clear()
    os.environ.update(message["environment"])
    os.chdir(message["folder"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.path.insert(0, message["folder"])
    sys.argv = [message["module"], *message["arguments"]]
    runpy.run_module(message["module"], run_name="__main__", alter_sys=True)
