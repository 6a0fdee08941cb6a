"""One fork server for many runs (a sweep's): what imports torch once, and forks the fork server of each run.

It listens on a socket of the file system. A run that finds the socket's path in :data:`VARIABLE` connects and speaks
as with a server of its own (``phantora.launch.forkserver``). The first run says what is loaded; one that
wants something else gets a server that begins anew.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from phantora.launch.forkserver import command
from phantora.launch.plan import server_environment

VARIABLE = "PHANTORA_FORK_SERVER"
"""Path of the socket on which the server listens."""


class WarmServer:
    """Such a process, and the folder of its socket. Close it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="phantora-server-")
        self.path = str(Path(self._folder.name, "socket"))
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(self.path)
            listener.listen()
            quiet = None if os.environ.get("PHANTORA_DEBUG") else subprocess.DEVNULL
            self._process = subprocess.Popen(
                command(os.getpid(), listener.fileno()), pass_fds=(listener.fileno(),), stdin=subprocess.DEVNULL,
                stdout=quiet, stderr=quiet, start_new_session=True, env=server_environment(os.environ),
            )  # fmt: skip

    def close(self) -> None:
        """Ends it, and the servers that it has forked."""
        self._process.kill()
        self._process.wait()
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
