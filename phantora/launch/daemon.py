"""The daemon: a shared fork server that outlives the command that starts it, so that the next run imports nothing.

A run connects to the daemon of its user, interpreter, Phantora, and of what processes inherit from their parents
without an environment (limits, priority, cgroup, namespaces). It starts one where none listens. The daemon ends when
it has had no run for some minutes, and begins anew when its own source has changed; so does a base with the files that
it has imported (``phantora.launch.shared_forkserver``).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import select
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import phantora
from phantora import process
from phantora.cache import cache_directory, make_folder
from phantora.errors import PhantoraError, cause_of
from phantora.json_data import Bytes
from phantora.launch.imported import ImportedFiles
from phantora.launch.shared_forkserver import KEPT, Bases, connected_to, peer
from phantora.units import GIB
from phantora.version import version

VARIABLE = "PHANTORA_DAEMON"
"""Minutes without a run after which the daemon ends; 0: no daemon."""
IDLE_MINUTES = 10.0
_SUFFIX = ".socket"
_ROOT = str(Path(phantora.__file__).resolve().parent.parent)
_BOOTSTRAP = (
    "import sys; fd, root, path, minutes = sys.argv[1:]; sys.path[0] = root; "
    "from phantora.launch.daemon import main; del sys.path[0]; main(int(fd), path, float(minutes))"
)
# Its parent ends when it listens: who connects then sees its number, not that of another process.
_DETACHED = (
    "import os, socket, sys; read, write = os.pipe(); "
    "os.fork() and (os.close(write), os.read(read, 1), os._exit(0)); "
    "listener = socket.socket(fileno=int(sys.argv[1])); listener.listen(); listener.detach(); "
    "os.close(read); os.close(write); " + _BOOTSTRAP
)


def idle_minutes(environment: Mapping[str, str]) -> float:
    """Minutes without a run after which a daemon ends; 0: runs use none. Raises PhantoraError for other texts than
    numbers."""
    if environment.get("CI") or any(name in environment for name in ("PYTEST_CURRENT_TEST", "PYTEST_VERSION")):
        return 0.0
    text = environment.get(VARIABLE, str(IDLE_MINUTES))
    try:
        return max(0.0, float(text))
    except ValueError:
        raise PhantoraError(f"{VARIABLE}={text}: give the minutes after which an idle daemon ends, or 0") from None


def connected(minutes: float) -> socket.socket:
    """A link to the daemon, which is started if there is none. Raises PhantoraError if it cannot be."""
    try:
        place = folder()
        path = place / (_identity(minutes) + _SUFFIX)
        with _locked(place), _short(path) as name:
            link = connected_to(name)
            if link is None:
                path.unlink(missing_ok=True)  # of one that was killed
                _start(path, name, minutes)
                link = connected_to(name)
    except OSError as error:
        raise PhantoraError(cause_of(error)) from error
    if link is None or peer(link).uid != os.geteuid():
        raise PhantoraError(f"{path} does not answer")
    return link


@dataclass(frozen=True)
class Daemon:
    """A daemon that listens."""

    pid: int
    bases: int
    """Processes that have imported torch."""
    memory: Bytes
    """Memory of the daemon and its bases, without runs."""

    def __str__(self) -> str:
        return f"process {self.pid}: {self.bases} with torch, {self.memory / GIB:.1f} GiB"


def running() -> list[Daemon]:
    """This user's daemons."""
    found = []
    for pid in _listening():
        bases = process.children_by_parent().get(pid, [])
        memory = sum(process.proportional_bytes(one) for one in (pid, *bases))
        found.append(Daemon(pid, len(bases), memory))
    return found


def end() -> int:
    """Ends this user's daemons; runs that they serve go on to their end. The number of daemons."""
    pids = _listening()
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    return len(pids)


def folder() -> Path:
    """The folder of the sockets, which only this user can enter. Raises PhantoraError if others could."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    place = Path(base, "phantora") if os.path.isdir(base) else cache_directory() / "daemon"
    make_folder(place)
    found = place.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PhantoraError(f"{place} is no folder that only you can enter: chmod 700 {place}, or remove it")
    return place


def _listening() -> list[int]:
    place, found = folder(), []
    with _locked(place):
        for path in sorted(place.glob("*" + _SUFFIX)):
            with _short(path) as name:
                link = connected_to(name)
            if link is None:
                path.unlink(missing_ok=True)  # of one that was killed
                continue
            with link:
                found.append(peer(link).pid)
    return found


def _identity(minutes: float) -> str:
    """Processes with the same identity may share a daemon."""
    proc = Path("/proc/self")
    inherited = ("Umask", "Uid", "Gid", "Groups", "Cap", "NoNewPrivs", "Seccomp", "Cpus_allowed", "Mems_allowed")
    parts = [
        sys.executable,
        _ROOT,
        version(),
        str(minutes),
        str(os.getpriority(os.PRIO_PROCESS, 0)),
        str(os.sched_getscheduler(0)),
        Path("/proc/sys/kernel/random/boot_id").read_text(),
        *((proc / name).read_text() for name in ("limits", "cgroup", "oom_score_adj")),
        *(line for line in (proc / "status").read_text().splitlines() if line.startswith(inherited)),
        *sorted(os.readlink(path) for path in (proc / "ns").iterdir()),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    """One process at a time starts or ends a daemon."""
    fd = os.open(place / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """A name of the socket `path` that fits a socket's address, which has 107 bytes."""
    fd = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{path.name}"
    finally:
        os.close(fd)


def _command(bootstrap: str, fd: int, path: str, minutes: float) -> list[str]:
    return [sys.executable, "-c", bootstrap, str(fd), _ROOT, path, str(minutes)]


def _start(path: Path, name: str, minutes: float) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(name)
        quiet = None if os.environ.get("PHANTORA_DEBUG") else subprocess.DEVNULL
        process.adopt_orphans(False)  # the system adopts it
        with process.fixed_addresses():
            subprocess.run(
                _command(_DETACHED, listener.fileno(), str(path), minutes),
                check=False,
                pass_fds=(listener.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=quiet,
                stderr=quiet,
                start_new_session=True,
                cwd="/",
            )


# ---------------------------------------------------------------------- in the daemon


def main(fd: int, path: str, minutes: float) -> NoReturn:
    """Serves runs that connect to the socket `fd`, whose file is `path`, until none has come for `minutes`, or SIGTERM
    does."""
    listener = socket.socket(fileno=fd)
    asked, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGTERM, lambda *_: None)
    files, bases = ImportedFiles(), Bases(KEPT)
    while seconds := bases.end_unused(minutes * 60):
        ready = select.select([listener.fileno(), asked], [], [], seconds)[0]
        if asked in ready:
            break
        if listener.fileno() in ready:
            if files.changed():
                os.set_inheritable(fd, True)
                os.execv(sys.executable, _command(_BOOTSTRAP, fd, path, minutes))
            bases.accept(listener)
        _reap(os.WNOHANG)
    with suppress(OSError), _locked(Path(path).parent):
        os.unlink(path)
    while select.select([listener], [], [], 0)[0]:  # connections from before that
        bases.accept(listener)
    bases.close()
    _reap(0)
    os._exit(0)


def _reap(how: int) -> None:
    """Bases that have ended; all of them, if `how` is 0."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, how)[0]:
            pass
