"""The fork server: a process that has imported torch on the stubs and forks each rank.

A rank forked from here shares all of torch with its siblings (a few MB of its own instead of
hundreds) and starts in milliseconds. The server speaks JSON over a socket with its parent, one
message per packet; descriptors travel with the message.

parent -> server   {"do": "load", "stubs": DIR or null, "devices": N, "argv": [...],
                    "imports": [...], "shared": [...], "ranks": RankSpec}   and more for launch/shared_forkserver.py
                   {"do": "store", "port": N}            hosts the TCPStore of the job
                   {"do": "rank", ...RankTask}           with descriptors [stdout, stderr, session?]
server -> parent   {"is": "here", "pid": N}           of one that was forked for this run (launch/shared_forkserver.py)
                   {"is": "printed", "text": text}       what the imports for many runs printed
                   {"is": "loaded", "seconds": s, "threads": n}
                   {"is": "spoiled"}                     by what was shared; it begins anew and waits for "load"
                   {"is": "store", "port": N, "pid": N}
                   {"is": "started", "rank": r, "pid": N}
                   {"is": "ended", "rank": r, "code": c}   as os.waitstatus_to_exitcode
                   {"is": "failed", "message": text}
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import phantora
from phantora import process
from phantora.errors import PhantoraError, limit_of_processes
from phantora.launch.imported import ImportedFiles
from phantora.rank import deep_ep, patches, shims
from phantora.rank.main import RankTask, become_rank
from phantora.rank.patch import Rank, When
from phantora.rank.stub_loader import find_stubs, load_stubs, load_tracer
from phantora.spec import VARIABLE

MESSAGE_BYTES = 1 << 17
PRINTED_BYTES = 1 << 14
# The interpreter must not find modules of the current directory before the ones installed, and
# finds phantora itself wherever the parent found it. SIGINT ends it without a traceback, also while it imports; the
# parent reports the cause.
BOOTSTRAP = (
    "import ctypes, signal, sys; ctypes.CDLL(None).prctl(1, signal.SIGKILL); "  # with its parent, while it imports too
    "signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "parent, fd, root = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]; "
    "sys.path[0] = root; from phantora.launch.forkserver import main; del sys.path[0]; main(parent, fd, sys.argv[4:])"
)


Become = Callable[[], NoReturn]
"""Function that a forked process continues with."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """The first message of a run: what its server loads."""

    stubs: str
    devices: int
    argv: list[str]
    """Arguments of the ranks."""
    imports: tuple[str, ...]
    shared: tuple[str, ...]
    ranks: str
    """The :class:`RankSpec`."""


@dataclass(frozen=True)
class Store:
    """Makes the server host the TCPStore of the job; port 0: any."""

    port: int


Message: TypeAlias = "Load | Store | RankTask"
_MESSAGES: dict[str, Callable[..., Message]] = {"load": Load, "store": Store, "rank": RankTask}


def read_message(data: bytes) -> Message:
    """A message from the parent."""
    fields = json.loads(data)
    kind = _MESSAGES[fields.pop("do")]
    return kind(**{name: tuple(v) if isinstance(v, list) and name != "argv" else v for name, v in fields.items()})


def received(link: socket.socket) -> bytes:
    """The next message of the fork server behind `link`; empty: it has ended."""
    try:
        return link.recv(MESSAGE_BYTES)
    except ConnectionResetError:
        return b""


def command(parent: int, fd: int, *, many: bool = False) -> list[str]:
    """Command line of a server whose parent is `parent` and whose link is the descriptor `fd`. `many`: the links of
    runs come over it."""
    root = str(Path(phantora.__file__).resolve().parent.parent)
    return [sys.executable, "-c", BOOTSTRAP, str(parent), str(fd), root, *(["many"] if many else [])]


def start_server(environment: Mapping[str, str]) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Starts a server as a child of this process: the link to it, and its process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, process.fixed_addresses():
        server = subprocess.Popen(
            command(os.getpid(), theirs.fileno()),
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=environment,
        )
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    return ours, server


@dataclass(frozen=True)
class Base:
    """The stubs and modules that a server has loaded."""

    rank: Rank
    printed: str = ""
    """What the imports printed, for the runs that share them."""


def load_base(stubs: str, devices: int, imports: tuple[str, ...]) -> Base:
    """Loads the stubs and imports the modules; leaves the garbage collector off. Raises PhantoraError."""
    process.single_arena()
    gc.disable()
    rank = load_stubs(find_stubs(stubs))
    rank.runtime.ph_assume_devices(devices)
    for name in imports:
        try:
            with _gpus_assumed(devices):
                importlib.import_module(name)
        except ImportError as error:
            raise PhantoraError(
                f"cannot import {name} with {sys.executable}: {error}; install it there, or run `phantora doctor`"
            ) from error
        except _GpuWanted:
            raise _needs_rank(name) from None
        if _cuda_is_lost():
            raise _needs_rank(name)
    with suppress(PhantoraError):  # ranks report it
        shims.shims()  # their modules, and the metadata of all packages
    return Base(rank)


def _import_shared(shared: Sequence[str], devices: int) -> bool:
    """Imports what the script imports at its top. False: torch is left unable to use CUDA in a forked process."""
    deep_ep.install()
    for entry in shared:
        with _gpus_assumed(devices):
            _import_early(entry)
    return not shared or not _cuda_is_lost()


def _settled(base: Base) -> Base:
    """`base` with the operator tracer, when no collection looks at what was imported any more, here or in a fork: that
    takes half a second, and copies of all pages. Raises PhantoraError."""
    load_tracer(base.rank)
    gc.collect()
    gc.freeze()
    process.release_free_memory()
    return replace(base, rank=replace(base.rank, frozen=gc.get_freeze_count()))


class ForkServer:
    """The process that imports torch once and forks the ranks; it does what comes over `link`."""

    def __init__(self, link: socket.socket, environment: dict[str, str], base: Base | None = None) -> None:
        self._link = link
        self._environment = environment
        self._base = base
        self._session = -1
        self._ranks: dict[int, int] = {}  # pid -> rank
        self._store = 0
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def serve(self, first: Load | None = None) -> Become | None:
        """Works until the parent closes its end; then ends the ranks that are left and returns None. In a forked rank
        it returns what that becomes. `first`: a message that is here already."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._link, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        if first is not None and (become := self._heed(first, ())):
            return become
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if self._wake_read in ready:
                os.read(self._wake_read, 4096)
                self._reap()
            if self._link.fileno() in ready:
                data, fds, _, _ = socket.recv_fds(self._link, MESSAGE_BYTES, 3)
                if not data:
                    break
                if become := self._heed(read_message(data), fds):
                    return become
        for pid in self._ranks:
            _kill_group(pid)
        process.kill_descendants()
        return None

    def _heed(self, message: Message, fds: Sequence[int]) -> Become | None:
        """Executes the message, and reports to the parent what cannot be done."""
        try:
            if isinstance(message, RankTask):
                return self._fork_rank(message, fds)
            if isinstance(message, Load):
                self._load(message)
            else:
                self._host_store(message.port)
        except PhantoraError as error:
            self._notify("failed", message=str(error))
        except Exception as error:
            if os.environ.get("PHANTORA_DEBUG"):
                traceback.print_exc()
            self._notify("failed", message=limit_of_processes(error) or f"{type(error).__name__}: {error}")
        return None

    def _load(self, wanted: Load) -> None:
        begin = time.perf_counter()
        os.environ[VARIABLE] = wanted.ranks
        sys.argv = wanted.argv  # of the ranks: some modules keep it when they are imported
        base = self._base
        if base is None:
            base = load_base(wanted.stubs, wanted.devices, wanted.imports)
            if not _import_shared(wanted.shared, wanted.devices):
                self._notify("spoiled")  # torch
                _begin_anew(self._link, self._environment, many=False)
            base = _settled(base)
        self._base = base
        base.rank.runtime.ph_assume_devices(wanted.devices)
        patches.install(When.AFTER_TORCH, base.rank)
        gc.enable()
        gc.freeze()
        self._notify("loaded", seconds=time.perf_counter() - begin, threads=process.thread_count())

    def _host_store(self, port: int) -> None:
        read, write = os.pipe()
        pid = self._fork()
        if pid == 0:
            os.close(read)
            _host_store(port, write)
        os.close(write)
        with open(read, encoding="utf-8") as pipe:
            answer = pipe.read()
        if not answer.isdigit():
            raise PhantoraError(f"cannot host the TCPStore on port {port}: {answer or 'no answer; try another port'}")
        self._store = pid
        self._notify("store", port=int(answer), pid=pid)

    def _fork_rank(self, task: RankTask, fds: Sequence[int]) -> Become | None:
        out, err = fds[:2]
        if len(fds) > 2:
            if self._session >= 0:
                os.close(self._session)
            self._session = fds[2]
        try:
            pid = self._fork()
        except OSError as error:
            pid = -1
            self._notify("not_forked", rank=task.rank, message=limit_of_processes(error) or str(error))
        if pid == 0:
            assert self._base is not None
            return partial(become_rank, task, self._base.rank, self._session, out, err)
        os.close(out)
        os.close(err)
        if pid < 0:
            return None
        self._ranks[pid] = task.rank
        self._notify("started", rank=task.rank, pid=pid)
        return None

    def _fork(self) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            process.die_with_parent(parent)
            os.setsid()  # the terminal's Ctrl-C reaches `phantora`, which ends the ranks in order
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._link.close()
            os.close(self._wake_read)
            os.close(self._wake_write)
        return pid

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            rank = self._ranks.pop(pid, None)
            if rank is not None:
                _kill_group(pid)  # what the rank started and left behind
                self._notify("ended", rank=rank, code=os.waitstatus_to_exitcode(status))
            elif pid == self._store:
                self._notify("failed", message="the process that hosts the TCPStore ended unexpectedly")

    def _notify(self, what: str, **fields: Any) -> None:
        with suppress(BrokenPipeError):  # the parent is gone: serve() sees the end of the link next
            self._link.sendall(json.dumps({"is": what, **fields}).encode())


class _GpuWanted(BaseException):
    """A module asked for more than whether there is a GPU. No handler of its own may take another way for it."""


def _import_early(entry: str) -> None:
    """Imports ``module`` or ``module:name``, which the ranks will; what fails here fails there, with its message,
    and what needs its GPU finds it there."""
    module, _, name = entry.partition(":")
    with suppress(Exception, _GpuWanted):
        found = importlib.import_module(module)
        if name and not hasattr(found, name):  # packages that import their parts when these are asked for do so now
            importlib.import_module(f"{module}.{name}")


@contextmanager
def _gpus_assumed(devices: int) -> Iterator[None]:
    """Modules that ask torch for GPUs while they are imported hear of those that a rank sees.

    Torch forbids CUDA to processes that are forked after it was asked in earnest. What modules may keep
    (``torch.cuda.device_count``, ``_lazy_init``) stays; what it calls is replaced.
    """
    torch: Any = sys.modules.get("torch")
    if getattr(getattr(torch, "_C", None), "_cuda_getDeviceCount", None) is None:
        yield
        return
    cuda = torch.cuda
    kept = torch._C._cuda_getDeviceCount, cuda._device_count_nvml, torch._C._cuda_init
    torch._C._cuda_getDeviceCount = cuda._device_count_nvml = lambda: devices
    torch._C._cuda_init = _want_gpu
    try:
        yield
    finally:
        torch._C._cuda_getDeviceCount, cuda._device_count_nvml, torch._C._cuda_init = kept


def _want_gpu() -> NoReturn:
    raise _GpuWanted


def _needs_rank(name: str) -> PhantoraError:
    return PhantoraError(
        f"{name} asks for its GPU while it is imported, which only a rank has: leave out --preload {name}"
    )


def _cuda_is_lost() -> bool:
    """Would torch refuse CUDA to a rank forked now? Some roads to CUDA lie below what can be replaced in Python,
    and torch says so only to a child. Raises PhantoraError if a signal ends that child."""
    torch: Any = sys.modules.get("torch")
    in_bad_fork = getattr(getattr(torch, "_C", None), "_cuda_isInBadFork", None)
    if in_bad_fork is None:
        return False
    pid = os.fork()
    if pid == 0:
        os._exit(bool(in_bad_fork()))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code < 0:
        name = signal.Signals(-code).name
        raise PhantoraError(f"the process that asks torch whether ranks may use CUDA was killed by {name}")
    return code != 0


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _host_store(port: int, answer: int) -> NoReturn:
    """Hosts the store that torchrun's agent would host, until this process is killed."""
    status = 1
    try:
        from torch.distributed import TCPStore

        store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
        os.write(answer, str(store.port).encode())
        os.close(answer)
        while True:
            signal.pause()
    except BaseException as error:
        reason = limit_of_processes(error) or f"{str(error).splitlines()[0]}; try another port"
        with suppress(OSError):
            os.write(answer, reason.encode())
    os._exit(status)


def _of_a_run(runs: socket.socket, environment: dict[str, str]) -> tuple[ForkServer, Load]:
    """Serves many runs that want the same: loads it for the first and forks a server for each; returns in these, with
    the run's first message."""
    loaded: Base | dict[str, str] | None = None
    files: ImportedFiles | None = None
    here = os.getpid()
    while True:
        select.select([runs], [], [])
        if files is not None and files.changed():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _begin_anew(runs, environment, many=True)  # the message waits for it
        data, fds, _, _ = socket.recv_fds(runs, MESSAGE_BYTES, 1)
        if not data:  # no more; it ends with the last of its servers
            with suppress(ChildProcessError):
                while True:
                    os.wait()
            os._exit(0)
        message = json.loads(data)
        if loaded is None:
            loaded = _load_for_all(message)
            files = ImportedFiles()
            os.chdir("/")  # a folder in use could not be unmounted
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how the servers end
        link = socket.socket(fileno=fds[0])
        if isinstance(loaded, Base) and not os.fork():
            break
        if not isinstance(loaded, Base):
            with suppress(OSError):
                link.sendall(json.dumps(loaded).encode())
        link.close()
    process.die_with_parent(here)
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    process.adopt_orphans()
    runs.close()
    os.chdir(message["folder"])
    os.environ.update(message["of_shell"])
    with suppress(OSError):  # the run has ended already
        link.sendall(json.dumps({"is": "here", "pid": os.getpid()}).encode())
        if loaded.printed:
            link.sendall(json.dumps({"is": "printed", "text": loaded.printed}).encode())
    wanted = read_message(json.dumps({k: v for k, v in message.items() if k not in ("folder", "of_shell")}).encode())
    assert isinstance(wanted, Load)
    return ForkServer(link, environment, loaded), wanted


def _begin_anew(link: socket.socket, environment: Mapping[str, str], *, many: bool) -> NoReturn:
    """A fresh interpreter in this process, with the same link: what was imported cannot be undone."""
    os.set_inheritable(link.fileno(), True)
    os.execve(sys.executable, command(os.getppid(), link.fileno(), many=many), environment)


def _load_for_all(message: Mapping[str, Any]) -> Base | dict[str, str]:
    """The base for a run; or the answer to each request, if the base cannot be had."""
    sys.argv = message["argv"]
    with _kept_output() as file:
        try:
            base = load_base(message["stubs"], message["devices"], tuple(message["imports"]))
            if not _import_shared(message["shared"], message["devices"]):
                return {"is": "spoiled"}
            base = _settled(base)
        except PhantoraError as error:
            return {"is": "failed", "message": str(error)}
    return replace(base, printed=os.pread(file, PRINTED_BYTES, 0).decode(errors="replace"))


@contextmanager
def _kept_output() -> Iterator[int]:
    """A file with what is written within it to standard output and error, also by C."""
    file = os.memfd_create("phantora-printed")
    own = os.dup(1), os.dup(2)
    for stream in (1, 2):
        os.dup2(file, stream)
    try:
        yield file
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        process.flush_c_streams()
        for stream, fd in enumerate(own, 1):
            os.dup2(fd, stream)
            os.close(fd)


def main(parent: int, fd: int, many: Sequence[str]) -> None:
    """Serves what comes over socket `fd`, until it closes or the process `parent` ends; `many`: the links of many runs
    (launch/shared_forkserver.py).

    Ranks begin here, whichever way the server came about: stacks of Python that torch writes down and lists of modules
    that it goes through are as long in each, and so is the host's time for that.
    """
    process.die_with_parent(parent)
    environment = dict(os.environ)
    link = socket.socket(fileno=fd)
    first = None
    if many:
        server, first = _of_a_run(link, environment)
    else:
        server = ForkServer(link, environment)
    become = server.serve(first)
    if become is not None:
        become()
    os._exit(0)  # a forked server's interpreter is not its own to tear down
