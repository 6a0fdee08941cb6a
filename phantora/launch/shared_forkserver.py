"""One fork server for many runs (a sweep's): what imports torch once, and forks the fork server of each run.

It listens on a socket of the file system. A run that finds the socket's path in :data:`VARIABLE` connects and speaks
as with a server of its own (``phantora.launch.forkserver``). Its first message also has its folder and its
environment. Runs that load the same under the same environment share a process that has loaded it, a *base*; the
bases used last are kept. Folder, variables and messages are the run's; its limits, priority and umask are the server's.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import phantora
from phantora import process
from phantora.errors import PhantoraError
from phantora.launch.environment import server_environment
from phantora.launch.forkserver import MESSAGE_BYTES, command, start_server

VARIABLE = "PHANTORA_FORK_SERVER"
"""Path of the socket on which the server listens."""
KEPT = 4
"""Bases, by default; each takes 0.3 to 0.8 GB."""
FIRST_SECONDS = 5.0
"""Seconds within which a connected run must send its request: others wait for it."""
_OF_SHELL = re.compile(
    "PWD|OLDPWD|SHLVL|_|COLUMNS|LINES|TMUX.*|STY|WINDOW(ID)?|SSH_.*|GPG_TTY|TERM_SESSION_ID|DISPLAY|WAYLAND_DISPLAY|"
    "XAUTHORITY|XDG_SESSION_ID|XDG_VTNR|DBUS_SESSION_.*|INVOCATION_ID|JOURNAL_STREAM|SYSTEMD_EXEC_PID|PHANTORA_DAEMON|"
    "PYTEST_CURRENT_TEST"
)
"""Variables of a shell, a terminal, a session and a test, and ours: nothing reads them while it is imported."""
_BOOTSTRAP = (
    "import sys; parent, fd, root = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]; "
    "sys.path[0] = root; from phantora.launch.shared_forkserver import main; del sys.path[0]; "
    "main(parent, fd, int(sys.argv[4]))"
)


class WarmServer:
    """Such a process, which keeps `kept` bases, and the folder of its socket. Close it."""

    def __init__(self, kept: int = KEPT) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="phantora-server-")
        self.path = str(Path(self._folder.name, "socket"))
        root = str(Path(phantora.__file__).resolve().parent.parent)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(self.path)
            listener.listen()
            quiet = None if os.environ.get("PHANTORA_DEBUG") else subprocess.DEVNULL
            with process.fixed_addresses():
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _BOOTSTRAP, str(os.getpid()), str(listener.fileno()), root, str(kept)],
                    pass_fds=(listener.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=quiet,
                    stderr=quiet,
                    start_new_session=True,
                )

    def close(self) -> None:
        """Ends it, and the servers that it has forked."""
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()


class ForkedServer:
    """The fork server of a run, forked by the server that listens at `path`."""

    def __init__(self) -> None:
        self._pidfd = -1

        self.is_known = False

    def known(self, pid: int) -> None:
        """It is the process `pid`."""
        self.is_known = True
        with suppress(ProcessLookupError):
            self._pidfd = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """As of a ``Popen``; its exit status is another's to know."""
        return None if self._pidfd >= 0 and not _ended(self._pidfd) else 1

    def kill(self) -> None:
        """Ends it at once; its ranks end with it."""
        if self._pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def wait(self) -> int:
        """Until it has ended."""
        if self._pidfd >= 0:
            _ended(self._pidfd, None)
            os.close(self._pidfd)
            self._pidfd = -1
        return 1


def _ended(pidfd: int, timeout: float | None = 0.0) -> bool:
    return bool(select.select([pidfd], [], [], timeout)[0])


@dataclass(frozen=True)
class Peer:
    """The process at the other end of a socket."""

    pid: int
    uid: int


def peer(link: socket.socket) -> Peer:
    """Who made the other end: connected it, or listens there (SO_PEERCRED of unix(7))."""
    pid, uid, _ = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return Peer(pid, uid)


def connected_to(path: str) -> socket.socket | None:
    """A link to the server that listens at `path`; None if it has ended."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        link.connect(path)
    except OSError:
        link.close()
        return None
    return link


def open_server(
    load: Mapping[str, Any], link: socket.socket | None
) -> tuple[socket.socket, subprocess.Popen[bytes] | ForkedServer]:
    """A fork server that has begun to `load` for a run: forked by the shared one to which `link` leads, else a child of
    this process. The link to it, and its handle."""
    server: subprocess.Popen[bytes] | ForkedServer
    if link is not None:
        server, load = ForkedServer(), {**load, **surroundings()}
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    else:
        link, server = start_server(server_environment(os.environ))
    send(link, load)
    return link, server


def send(link: socket.socket, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
    """Sends a message of :mod:`phantora.launch.forkserver`. Raises PhantoraError if it is too long."""
    data = json.dumps(message).encode()
    if len(data) > MESSAGE_BYTES:
        raise PhantoraError(f"the script's arguments are too long ({len(data)} bytes); put them in a file")
    with suppress(OSError):  # who reads the link notices its end
        socket.send_fds(link, [data], fds)


def surroundings() -> dict[str, Any]:
    """Data for such a server in addition to the modules to load: the folder and environment of this process."""
    environment = server_environment(os.environ)
    environment.pop(VARIABLE, None)
    of_shell = {name: environment.pop(name) for name in list(environment) if _OF_SHELL.fullmatch(name)}
    return {"folder": os.getcwd(), "environment": environment, "of_shell": of_shell}


@dataclass(frozen=True)
class Wanted:
    """A run's first message, without its environment."""

    message: dict[str, Any]
    environment: dict[str, str]

    @property
    def key(self) -> str:
        """Runs with the same key share a base. Of what is imported, torch alone is the same for any number of GPUs."""
        loads = [self.message[name] for name in ("stubs", "imports", "shared")]
        if {name.partition(".")[0] for name in (*self.message["imports"], *self.message["shared"])} != {"torch"}:
            loads.append(self.message["devices"])
        paths = self.environment.get("PYTHONPATH")
        relative = paths is not None and not all(map(os.path.isabs, paths.split(os.pathsep)))
        return json.dumps([loads, self.environment, self.message["folder"] if relative else ""], sort_keys=True)


def wanted(data: bytes) -> Wanted:
    """The request of a run. Raises PhantoraError for bytes that no run sends."""
    try:
        message = json.loads(data)
        environment = message.pop("environment")
        good = {
            message["do"] == "load",
            isinstance(message["stubs"], str),
            type(message["devices"]) is int,
            type(message["folder"]) is str,
            type(message["ranks"]) is str,
            *(_are_texts(message[name]) for name in ("imports", "shared", "argv")),
            all(_is_variable(*entry) for entry in (environment | message["of_shell"]).items()),
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PhantoraError(f"this is no message of a run: {type(error).__name__}: {error}") from error
    if good != {True}:
        raise PhantoraError("the message to the fork server is not that of a run")
    return Wanted(message, environment)


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _is_variable(name: Any, value: Any) -> bool:
    """Would a process take it into its environment?"""
    return bool(name) and "=" not in name and b"\0" not in os.fsencode(name) + os.fsencode(value)


def main(parent: int, fd: int, kept: int) -> None:
    """Listens on socket `fd` until the process `parent` ends, and gives each run to its base; keeps `kept` of these.
    Removes the socket and its folder then: a parent that was killed could not."""
    listener = socket.socket(fileno=fd)
    with suppress(ProcessLookupError):  # it has ended already
        owner, bases = os.pidfd_open(parent), Bases(kept)
        while fd in select.select([fd, owner], [], [])[0]:
            bases.accept(listener)
    shutil.rmtree(Path(listener.getsockname()).parent, ignore_errors=True)


@dataclass
class _Base:
    process: subprocess.Popen[bytes]
    link: socket.socket
    used: float
    """Monotonic time of the last known use."""

    def give(self, message: Mapping[str, Any], run: socket.socket) -> bool:
        """Gives it a run with its first message; False if it was killed."""
        self.used = time.monotonic()
        try:
            socket.send_fds(self.link, [json.dumps(message).encode()], [run.fileno()])
        except OSError:
            self.link.close()
            return False
        return True


class Bases:
    """Processes that have loaded what runs want; the `kept` that were used last."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._found: dict[str, _Base] = {}
        self._used = time.monotonic()

    def accept(self, listener: socket.socket) -> None:
        """Gives the run that connects to its base. A silent or foreign client is dropped."""
        link, _ = listener.accept()
        with link, suppress(PhantoraError, OSError):
            if peer(link).uid != os.geteuid():
                return
            link.settimeout(FIRST_SECONDS)
            run = wanted(link.recv(MESSAGE_BYTES))
            link.settimeout(None)
            self._used = time.monotonic()
            base = self._found.pop(run.key, None)
            if base is None or not base.give(run.message, link):
                base = _start_base(run)
                base.give(run.message, link)
            self._found[run.key] = base  # the one used last
            if len(self._found) > self._kept:
                self._end(next(iter(self._found)))

    def end_unused(self, seconds: float) -> float:
        """Ends the bases that had no run for so long. Seconds until more may be due; 0 if none is left, and no run came
        for so long."""
        for key, base in list(self._found.items()):
            if process.descendants(base.process.pid):
                base.used = time.monotonic()
            elif time.monotonic() - base.used >= seconds:
                self._end(key)
        oldest = min((base.used for base in self._found.values()), default=self._used)
        left = max(0.0, oldest + seconds - time.monotonic())
        return max(left, 0.01) if self._found else left

    def close(self) -> None:
        """Ends each base with the last of its runs."""
        for key in list(self._found):
            self._end(key)

    def _end(self, key: str) -> None:
        self._found.pop(key).link.close()


def _start_base(run: Wanted) -> _Base:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    with theirs:
        started = subprocess.Popen(
            command(os.getpid(), theirs.fileno(), many=True),
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            env=run.environment,
            cwd=run.message["folder"],
        )
    return _Base(started, ours, time.monotonic())
