"""Starts the ranks of a plan, carries their output, and ends everything in order.

Whatever happens (a failing rank, Ctrl-C, a killed fork server, an error of the simulation), no
process, descriptor or temporary file outlives :func:`run_ranks` and :func:`run_command`.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import phantora
from phantora.errors import PhantoraError
from phantora.launch import process
from phantora.launch.forkserver import BOOTSTRAP, MESSAGE_BYTES
from phantora.launch.output import Console, Outputs, Stream
from phantora.launch.plan import STDERR, Plan, rank_environment, server_environment

GRACE_SECONDS = 2.0
"""How long the others may go on after the first rank failed, to report what they saw."""
TERMINATE_SECONDS = 3.0
"""From SIGTERM to SIGKILL."""
DRAIN_SECONDS = 1.0
"""How long a pipe is read after its rank ended (a grandchild may hold it open)."""
_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SharedArea(Protocol):
    """``phantora.wire.session.Session``, as far as launching needs it."""

    @property
    def fd(self) -> int: ...

    @property
    def path(self) -> str: ...

    def abort(self) -> None: ...


class RunningSimulator(Protocol):
    """``phantora.sim.simulator.Simulator``, as far as launching needs it."""

    def run(self) -> None: ...

    def stop(self) -> None: ...

    def rank_died(self, rank: int, status: int) -> None: ...


@dataclass
class Outcome:
    """How a run ended. `status` is what a shell would see."""

    status: int = 0
    failed_rank: int | None = None
    message: str = ""
    interrupted: int = 0
    """Number of the signal that ended the run, 0 if none did."""
    startup_seconds: float = 0.0
    """From the start of the fork server to the first rank's fork."""
    wall_seconds: float = 0.0


class SimulatorThread:
    """Runs the simulator beside the supervisor and keeps its error."""

    def __init__(self, simulator: RunningSimulator, wake: Callable[[], None]) -> None:
        self.simulator = simulator
        self.error: BaseException | None = None
        self._wake = wake
        self._thread = threading.Thread(target=self._run, name="phantora-simulator", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            self.simulator.run()
        except BaseException as error:
            self.error = error
        finally:
            self._wake()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def finish(self, stop: bool) -> None:
        """Waits for the end; `stop` asks for an early one."""
        if stop and self._thread.is_alive():
            self.simulator.stop()
        self._thread.join()


def error_message(error: BaseException) -> str:
    """One line for an error of the simulation, whatever raised it."""
    if isinstance(error, PhantoraError):
        return str(error)
    if isinstance(error, OSError) and error.filename is None and error.strerror:
        return (
            f"the log cannot be written: {error.strerror}; free space or choose another -o. "
            "What was written so far can be read"
        )
    return (
        f"internal error in the simulator: {type(error).__name__}: {error}; "
        "set PHANTORA_DEBUG=1 for the traceback and report it"
    )


@dataclass
class _Signals:
    """Turns signals into bytes on a pipe, for a loop that selects."""

    read: int
    write: int
    received: list[int] = field(default_factory=list)

    def wake(self) -> None:
        try:
            os.write(self.write, b"\0")
        except (BlockingIOError, OSError):
            pass

    def handler(self, number: int, _: object) -> None:
        self.received.append(number)
        self.wake()


@contextmanager
def _signals() -> Iterator[_Signals]:
    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signals = _Signals(read, write)
    old = {number: signal.signal(number, signals.handler) for number in _HANDLED}
    try:
        yield signals
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
        os.close(read)
        os.close(write)


class _Ending:
    """The way to the end: a grace period, SIGTERM, SIGKILL."""

    def __init__(self) -> None:
        self.stage = 0  # 0 running, 1 grace, 2 terminated, 3 killed
        self._deadline = float("inf")

    def begin(self, grace: float) -> None:
        if self.stage == 0:
            self.stage, self._deadline = 1, time.monotonic() + grace
        elif grace == 0.0:
            self._deadline = 0.0  # a second Ctrl-C does not wait

    def timeout(self) -> float | None:
        if self._deadline == float("inf"):
            return None
        return max(0.0, self._deadline - time.monotonic())

    def due(self) -> int:
        """The signal to send now, or 0."""
        if self.stage == 0 or time.monotonic() < self._deadline:
            return 0
        self.stage += 1
        if self.stage == 2:
            self._deadline = time.monotonic() + TERMINATE_SECONDS
            return signal.SIGTERM
        self._deadline = float("inf")
        return signal.SIGKILL


class RankSupervisor:
    """One run of a plan. Create it, call :meth:`run` once."""

    def __init__(
        self,
        plan: Plan,
        console: Console,
        *,
        stubs: bool,
        imports: Sequence[str],
        status_line: Callable[[int], str] | None = None,
    ) -> None:
        self._plan = plan
        self._console = console
        self._stubs = stubs
        self._imports = list(imports)
        self._status_line = status_line
        self._outputs = Outputs(plan)
        self._outputs.check()
        self._outcome = Outcome()
        self._ending = _Ending()
        self._selector = selectors.DefaultSelector()
        self._streams: dict[int, list[Stream]] = {}
        self._alive: dict[int, int] = {}  # rank -> pid
        self._ended: dict[int, float] = {}  # rank -> when
        self._started = False
        self._store_port = 0
        self._begin = time.monotonic()
        self._session: SharedArea | None = None
        self._simulator: SimulatorThread | None = None
        self._make_simulator: Callable[[], tuple[SharedArea, RunningSimulator | None]] | None = None
        self.store_pid = 0
        process.raise_descriptor_limit()
        process.adopt_orphans()
        self._link, self._server = self._start_server()

    def _start_server(self) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        """The server imports torch while the caller prepares the simulator."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        root = str(Path(phantora.__file__).resolve().parent.parent)
        server = subprocess.Popen(
            [sys.executable, "-c", BOOTSTRAP, str(os.getpid()), str(theirs.fileno()), root],
            pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, start_new_session=True,
            env=server_environment(os.environ),
        )
        theirs.close()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self._selector.register(ours, selectors.EVENT_READ, self._on_server)
        self._send(ours, {"do": "load", "stubs": self._stubs, "imports": self._imports})
        return ours, server

    def _send(self, link: socket.socket, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        data = json.dumps(message).encode()
        if len(data) > MESSAGE_BYTES:
            raise PhantoraError(f"the script's arguments are too long ({len(data)} bytes); put them in a file")
        try:
            socket.send_fds(link, [data], fds)
        except BrokenPipeError:
            pass  # the end of the link is seen by the loop, which knows what to say

    # ------------------------------------------------------------------ the loop

    def run(self, session: SharedArea | None, simulator: RunningSimulator | None) -> Outcome:
        """Blocks until all ranks and the simulator have ended. Never raises for a failing run."""
        self._session = session
        try:
            with _signals() as signals:
                if simulator is not None:
                    self._simulator = SimulatorThread(simulator, signals.wake)
                    self._simulator.start()
                self._selector.register(signals.read, selectors.EVENT_READ, lambda: _drain(signals.read))
                while not self._finished():
                    self._step(signals)
        except BrokenPipeError:  # the reader of our output has gone, as with `| head`
            self._outcome.status = self._outcome.status or 128 + signal.SIGPIPE
        finally:
            self.close()
        self._outcome.wall_seconds = time.monotonic() - self._begin
        return self._outcome

    def _finished(self) -> bool:
        if self._server_gone and not self._streams:
            return True
        if not self._started or self._alive or self._streams:
            return False
        return self._simulator is None or self._simulator.done

    def _step(self, signals: _Signals) -> None:
        for key, _ in self._selector.select(self._timeout()):
            key.data()
        while signals.received:
            number = signals.received.pop(0)
            self._outcome.interrupted = self._outcome.interrupted or number
            self._fail(128 + number, f"interrupted by {process.signal_name(number)}", grace=0.0)
        simulator = self._simulator
        if simulator is not None and simulator.done and simulator.error is not None and not self._outcome.status:
            if os.environ.get("PHANTORA_DEBUG"):
                import traceback

                self._console.message("".join(traceback.format_exception(simulator.error)).rstrip())
            self._fail(getattr(simulator.error, "exit_status", 1), error_message(simulator.error), grace=0.0)
        number = self._ending.due()
        if number:
            self._signal_ranks(number)
        self._close_orphaned_pipes()
        if self._status_line is not None:
            self._console.draw(self._status_line(len(self._alive)))

    def _timeout(self) -> float | None:
        timeouts = [t for t in (self._ending.timeout(),) if t is not None]
        if self._status_line is not None:
            timeouts.append(0.25)
        if any(rank in self._ended for rank in self._streams):
            timeouts.append(0.1)
        return min(timeouts, default=None)

    def _fail(self, status: int, message: str, *, grace: float, rank: int | None = None) -> None:
        """Notes the first failure and starts ending the rest."""
        if not self._outcome.status:
            self._outcome.status = status
            self._outcome.message = message
            self._outcome.failed_rank = rank
        self._ending.begin(grace)

    def _signal_ranks(self, number: int) -> None:
        if self._session is not None:
            self._session.abort()
        if not self._started or self._server_gone:
            self._server.kill()
        for pid in self._alive.values():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    # ------------------------------------------------------------------ events

    @property
    def _server_gone(self) -> bool:
        return self._link.fileno() < 0

    def _on_server(self) -> None:
        try:
            data = self._link.recv(MESSAGE_BYTES)
        except ConnectionResetError:
            data = b""
        if not data:
            self._selector.unregister(self._link)
            self._link.close()
            code = self._server.wait()
            self._alive.clear()  # they died with it
            now = time.monotonic()
            self._ended.update(dict.fromkeys(self._streams, now))
            self._fail(process.shell_status(code) or 1, f"the fork server {process.describe_exit(code)}", grace=0.0)
            return
        message: dict[str, Any] = json.loads(data)
        getattr(self, "_when_" + message.pop("is"))(**message)

    def _when_failed(self, message: str) -> None:
        self._fail(1, message, grace=0.0)

    def _when_loaded(self, seconds: float, threads: int) -> None:
        if threads > 1:
            self._console.message(
                f"phantora: warning: an imported module started {threads - 1} threads, which do not exist in the "
                "ranks; if a rank hangs at its start, look at --preload and at sitecustomize"
            )
        self._send(self._link, {"do": "store", "port": self._plan.master_port})

    def _when_store(self, port: int, pid: int) -> None:
        self._store_port = port
        self.store_pid = pid
        self._outcome.startup_seconds = time.monotonic() - self._begin
        if self._ending.stage:
            return
        for rank in range(self._plan.world_size):
            self._start_rank(rank)
        self._started = True

    def _start_rank(self, rank: int) -> None:
        plan = self._plan
        streams, ends = self._outputs.open(rank)
        self._streams[rank] = streams
        for stream in streams:
            self._selector.register(stream.fd, selectors.EVENT_READ, lambda s=stream, r=rank: self._on_output(r, s))
        task = {
            "do": "rank", "rank": rank, "local_rank": rank % plan.ranks_per_host, "devices": plan.devices,
            "seed": plan.seed, "environment": rank_environment(plan, rank, self._store_port),
            "target": plan.target, "arguments": plan.arguments, "module": plan.module,
        }
        fds = [*ends] if self._session is None or rank else [*ends, self._session.fd]
        self._send(self._link, task, fds)
        for end in ends:
            os.close(end)
        self._alive[rank] = 0

    def _when_started(self, rank: int, pid: int) -> None:
        self._alive[rank] = pid
        if self._ending.stage >= 2:
            os.kill(pid, signal.SIGTERM if self._ending.stage == 2 else signal.SIGKILL)

    def _when_ended(self, rank: int, code: int) -> None:
        self._alive.pop(rank, None)
        self._ended[rank] = time.monotonic()
        if code != 0 and not self._ending.stage:
            self._fail(process.shell_status(code), self._describe_failure(rank, code), grace=GRACE_SECONDS, rank=rank)
        if self._simulator is not None:
            self._simulator.simulator.rank_died(rank, process.shell_status(code))

    def _describe_failure(self, rank: int, code: int) -> str:
        plan = self._plan
        host, local = divmod(rank, plan.ranks_per_host)
        where = f" (host {host}, GPU {local})" if plan.world_size > 1 else ""
        log = self._outputs.log_path(rank, STDERR)
        return f"rank {rank}{where} {process.describe_exit(code)}" + (f"; its log is {log}" if log else "")

    def _on_output(self, rank: int, stream: Stream) -> None:
        if not stream.pump(self._console):
            self._close_stream(rank, stream)

    def _close_stream(self, rank: int, stream: Stream) -> None:
        self._selector.unregister(stream.fd)
        stream.close()
        self._streams[rank].remove(stream)
        if not self._streams[rank]:
            del self._streams[rank]

    def _close_orphaned_pipes(self) -> None:
        now = time.monotonic()
        for rank in [r for r in self._streams if now - self._ended.get(r, now) > DRAIN_SECONDS]:
            for stream in list(self._streams[rank]):
                self._close_stream(rank, stream)

    def close(self) -> None:
        """Ends what is left. Safe to call at any time and more than once."""
        self._console.clear()
        if self._session is not None and (self._outcome.status or self._alive):
            self._session.abort()
        if not self._server_gone:
            self._link.close()
        if self._server.poll() is None:
            self._server.kill()
        self._server.wait()
        if self._simulator is not None:
            self._simulator.finish(stop=True)
        process.kill_descendants()
        for rank in list(self._streams):
            for stream in list(self._streams[rank]):
                self._close_stream(rank, stream)
        self._selector.close()


def _drain(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        pass


def run_command(
    command: Sequence[str],
    environment: Mapping[str, str],
    session: SharedArea | None,
    simulator: RunningSimulator | None,
    console: Console,
    ranks_unseen: Callable[[], list[int]],
) -> Outcome:
    """Runs a launcher (``torchrun ...``) whose ranks join by themselves (`phantora.launch.hook`).

    `ranks_unseen` tells which ranks have not joined, or have left without a word, once the command
    has ended.
    """
    begin = time.monotonic()
    outcome = Outcome()
    ending = _Ending()
    parent = os.getpid()
    process.adopt_orphans()
    try:
        child = subprocess.Popen(
            list(command), stdin=subprocess.DEVNULL, start_new_session=True, env=dict(environment),
            pass_fds=() if session is None else (),
            preexec_fn=lambda: process.die_with_parent(parent),
        )
    except OSError as error:
        raise PhantoraError(f"cannot run {command[0]!r}: {error.strerror}; check the path") from error
    thread: SimulatorThread | None = None
    try:
        with _signals() as signals:
            if simulator is not None:
                thread = SimulatorThread(simulator, signals.wake)
                thread.start()
            waiter = threading.Thread(target=lambda: (child.wait(), signals.wake()), daemon=True)
            waiter.start()
            selector = selectors.DefaultSelector()
            selector.register(signals.read, selectors.EVENT_READ)
            reported = False
            while child.poll() is None or (thread is not None and not thread.done):
                selector.select(ending.timeout() if child.returncode is None else 0.2)
                _drain(signals.read)
                while signals.received:
                    number = signals.received.pop(0)
                    outcome.interrupted = outcome.interrupted or number
                    if not outcome.status:
                        outcome.status = 128 + number
                        outcome.message = f"interrupted by {process.signal_name(number)}"
                    ending.begin(0.0)
                if thread is not None and thread.done and thread.error is not None and not outcome.status:
                    outcome.status = getattr(thread.error, "exit_status", 1)
                    outcome.message = error_message(thread.error)
                    ending.begin(0.0)
                number = ending.due()
                if number:
                    if session is not None:
                        session.abort()
                    for pid in process.descendants(parent):
                        try:
                            os.kill(pid, number)
                        except ProcessLookupError:
                            pass
                if child.returncode is not None and thread is not None and not reported:
                    reported = True
                    if not outcome.status and child.returncode:
                        outcome.status = process.shell_status(child.returncode)
                    for rank in ranks_unseen():
                        thread.simulator.rank_died(rank, outcome.status)
            waiter.join()
            selector.close()
    finally:
        if outcome.status and session is not None:
            session.abort()
        if thread is not None:
            thread.finish(stop=True)
        process.kill_descendants()
    outcome.status = outcome.status or process.shell_status(child.returncode)
    outcome.wall_seconds = time.monotonic() - begin
    return outcome
