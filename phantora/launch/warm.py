"""One fork server for many runs (a sweep's): what imports torch once, and forks the fork server of each run.

It listens on a socket of the file system. A run that finds the socket's path in :data:`VARIABLE` connects and speaks
as with a server of its own (``phantora.launch.forkserver``). The first run says what is loaded; one that
wants something else gets a server that begins anew.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import phantora
from phantora.errors import PhantoraError
from phantora.launch import process
from phantora.launch.forkserver import MESSAGE_BYTES, Base, ForkServer, load_base
from phantora.launch.plan import server_environment

VARIABLE = "PHANTORA_FORK_SERVER"
"""Path of the socket on which the server listens."""
_BOOTSTRAP = (
    "import sys; parent, path, root = int(sys.argv[1]), sys.argv[2], sys.argv[3]; "
    "sys.path[0] = root; from phantora.launch.warm import main; del sys.path[0]; main(parent, path)"
)


class WarmServer:
    """Such a process, and the folder of its socket. Close it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="phantora-server-")
        self.path = str(Path(self._folder.name, "socket"))
        root = str(Path(phantora.__file__).resolve().parent.parent)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOTSTRAP, str(os.getpid()), self.path, root], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, start_new_session=True,
            stderr=None if os.environ.get("PHANTORA_DEBUG") else subprocess.DEVNULL,
            env=server_environment(os.environ),
        )  # fmt: skip
        assert self._process.stdout is not None
        self._process.stdout.readline()  # it listens, or has ended: runs then have servers of their own

    def close(self) -> None:
        """Ends it, and the servers that it has forked."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._folder.cleanup()


class ForkedServer:
    """Of a run, forked by the server that listens at `path`."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._pidfd = -1

    def known(self, pid: int) -> None:
        """It is the process `pid`."""
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
    import select

    return bool(select.select([pidfd], [], [], timeout)[0])


def connected() -> socket.socket | None:
    """A link to a server that is forked for this run; None if there is none to be had."""
    path = os.environ.get(VARIABLE)
    if not path:
        return None
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        link.connect(path)
    except OSError:  # it has ended
        link.close()
        return None
    return link


def main(parent: int, path: str) -> None:
    """Listens at `path` until the process `parent` ends."""
    process.die_with_parent(parent)
    environment = dict(os.environ)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen()
    print("listening", flush=True)
    base: Base | None = None
    while True:
        link, _ = listener.accept()
        data = link.recv(MESSAGE_BYTES)
        if not data:
            link.close()
            continue
        message = json.loads(data)
        if base is None:
            sys.argv = message["argv"]
            try:
                base = load_base(message["stubs"], message["devices"], tuple(message["imports"]))
            except PhantoraError as error:
                link.sendall(json.dumps({"is": "failed", "message": str(error)}).encode())
                os._exit(1)  # half of it may be there
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how the servers end
        _fork(listener, link, message, environment, base)


def _fork(
    listener: socket.socket, link: socket.socket, message: dict[str, object], environment: dict[str, str], base: Base
) -> None:
    parent = os.getpid()
    if os.fork():
        link.close()
        return
    process.die_with_parent(parent)
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    process.adopt_orphans()
    listener.close()
    link.sendall(json.dumps({"is": "here", "pid": os.getpid()}).encode())
    ForkServer(link, environment, base).serve_first(message)
    os._exit(0)
