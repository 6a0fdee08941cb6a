"""The terminal's part common to ranks and commands: signals, the simulator's thread, the end."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

from phantora import process
from phantora.errors import PhantoraError, Reason, cause_of, limit_of_processes
from phantora.rank.failures import Failure

_OURS = "phantora: "
TERMINATE_SECONDS = 3.0
"""Seconds from SIGTERM to SIGKILL."""
_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SharedArea(Protocol):
    """``phantora.wire.session.Session``, as far as launching needs it."""

    @property
    def fd(self) -> int:
        """File descriptor of the shared memory."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""

    @property
    def path(self) -> str:
        """Path at which other processes of the user open the shared memory."""

    def abort(self) -> None:
        """Ends all ranks: the run is over."""


class RunningSimulator(Protocol):
    """``phantora.sim.simulator.Simulator``, as far as launching needs it."""

    def run(self) -> None:
        """Simulates until all ranks have ended."""

    def command_ended(self, status: int) -> None:
        """The launcher's command has ended with this exit status."""

    def stop(self) -> None:
        """Ends the simulation at its next turn; from any thread."""

    def rank_died(self, rank: int, status: int) -> None:
        """A rank has ended with this exit status."""

    def watch(self, pid: int) -> None:
        """The process `pid` is a rank: its threads show whether it is idle."""

    def follow(self, pid: int) -> None:
        """The process `pid` starts ranks: its children may become some."""


class Elsewhere(Protocol):
    """Agents on other nodes, which stand for one fork server (``phantora.nodes.driver``)."""

    @property
    def link(self) -> socket.socket:
        """The supervisor's end of a link on which they speak as a fork server does."""

    def node_of(self, rank: int) -> str:
        """Name of the node on which `rank` runs; "" if it is no rank."""

    def poll(self) -> int | None:
        """None while an agent runs."""

    def kill(self) -> None:
        """Ends the agents; their ranks end with them."""

    def wait(self) -> int:
        """Until they have ended; an exit status."""

    def signal(self, pid: int, number: int) -> None:
        """Sends a signal to a rank's process, by the number that its start reported."""


def _no_node(rank: int) -> str:
    return ""


@dataclass(kw_only=True)
class Outcome:
    """End of a run. `status` is the exit status for a shell."""

    status: int = 0
    reason: Reason = Reason.OK
    failed_rank: int | None = None
    message: str = ""
    log_path: str = ""
    """File with the failed rank's output, if it is kept."""
    last_words: str = ""
    """Cause of the failed rank's end: the last line of its standard error, or the message of its C++ exception."""
    interrupted: int = 0
    """Number of the signal that ended the run, 0 if none did."""
    startup_seconds: float = 0.0
    """Seconds from the start of the fork server to the first rank's fork."""
    wall_seconds: float = 0.0
    printed_mfu: tuple[float, float] | None = None
    """The MFU that the script prints, a share, and half of its last digit."""

    node_of: Callable[[int], str] = field(default=_no_node)
    """Name of the node on which a rank runs; "" where all run here."""

    def fail(self, status: int, reason: Reason, message: str, rank: int | None = None) -> None:
        """Keeps the first failure."""
        if not self.status:
            self.status, self.reason, self.message, self.failed_rank = status, reason, message, rank

    def interrupt(self, error: KeyboardInterrupt) -> None:
        """Keeps an interrupt that comes when the ranks have ended as the first failure, if there is none."""
        number = int(getattr(error, "number", signal.SIGINT))
        self.interrupted = self.interrupted or number
        self.fail(128 + number, Reason.INTERRUPTED, f"interrupted by {process.signal_name(number)}", None)

    def why(self, failures: Sequence[Failure]) -> Outcome:
        """Adds the script's own error, if ranks noted theirs: of the rank that failed first, or of any. Else the last
        line of a rank that a library ended."""
        if self.reason is Reason.NO_GPU_WORK and failures:
            return replace(self, message=f"{failures[0]}; {self.message}")
        if not self.status or self.reason not in (Reason.SCRIPT_FAILED, Reason.UNSUPPORTED):
            return self
        if not failures:
            ours, killed = self.last_words.startswith(_OURS), self.status > 128
            output = f": {self.last_words.removeprefix(_OURS)}" if ours or (killed and self.last_words) else ""
            return replace(self, message=self.message + output)
        own = next((one for one in failures if one.rank == self.failed_rank), failures[0])
        log = f"; its log is {self.log_path}" if self.log_path else ""
        node = f" (node {name})" if (name := self.node_of(own.rank)) else ""
        return replace(self, reason=own.reason, message=str(own) + node + log)


def start_thread(thread: threading.Thread) -> None:
    """Raises PhantoraError where the system allows no more threads."""
    try:
        thread.start()
    except RuntimeError as error:
        raise PhantoraError(limit_of_processes(error) or str(error)) from error


class SimulatorThread:
    """Runs the simulator next to the supervisor and keeps its error."""

    def __init__(self, simulator: RunningSimulator, wake: Callable[[], None]) -> None:
        self.simulator = simulator
        self.error: BaseException | None = None
        self.done = False
        self._wake = wake
        self._thread = threading.Thread(target=self._run, name="phantora-simulator", daemon=True)

    def start(self) -> None:
        """Starts the simulation in its thread."""
        start_thread(self._thread)

    def _run(self) -> None:
        try:
            self.simulator.run()
        except BaseException as error:
            self.error = error
        finally:
            self.done = True
            self._wake()

    def finish(self, stop: bool) -> None:
        """Waits for the end; `stop` asks for an early one."""
        if stop and self._thread.is_alive():
            self.simulator.stop()
        if self._thread.ident is not None:  # else it could not be started
            self._thread.join()


def error_message(error: BaseException) -> str:
    """One line for an error of the simulation, whatever raised it."""
    if isinstance(error, PhantoraError):
        return str(error)
    if isinstance(error, OSError) and error.filename is None and error.strerror:
        return (
            f"the log cannot be written: {cause_of(error)}; free space or choose another -o. "
            "What was written so far can be read"
        )
    return (
        f"internal error in the simulator: {type(error).__name__}: {error}; "
        "set PHANTORA_DEBUG=1 for the traceback and report it"
    )


@dataclass
class Signals:
    """Turns signals into bytes on a pipe, for a loop that selects."""

    read: int
    write: int
    received: list[int] = field(default_factory=list)

    def wake(self) -> None:
        """Wakes the thread that waits; from any thread."""
        with suppress(OSError):
            os.write(self.write, b"\0")

    def handler(self, number: int, _: object) -> None:
        """Python's handler: keeps the number for the thread that waits."""
        self.received.append(number)
        self.wake()


@contextmanager
def signals_received() -> Iterator[Signals]:
    """Within it signals that end a run are noted instead; they wake who selects on `Signals`."""
    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signals = Signals(read, write)
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN  # by nohup
    wanted = [number for number in _HANDLED if not (number == signal.SIGHUP and ignored)]
    old = {number: signal.signal(number, signals.handler) for number in wanted}
    try:
        yield signals
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
        os.close(read)
        os.close(write)


class Ending:
    """The way to the end: a grace period, SIGTERM, SIGKILL."""

    def __init__(self) -> None:
        self.stage = 0  # 0 running, 1 grace, 2 terminated, 3 killed
        self._deadline = float("inf")

    def begin(self, grace: float) -> None:
        """Ranks have `grace` seconds from now to end; 0 if they are killed at once."""
        if self.stage == 0:
            self.stage, self._deadline = 1, time.monotonic() + grace
        elif grace == 0.0:
            self._deadline = 0.0  # a second Ctrl-C does not wait

    def timeout(self) -> float | None:
        """Seconds until the next thing to do; None if nothing is due."""
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


def drain(fd: int) -> None:
    """Takes what lies in a pipe that does not block."""
    with suppress(BlockingIOError):
        while os.read(fd, 4096):
            pass
