"""Runs a command, in the terminal's process. Its processes join the simulation by themselves (`phantora.rank.hook`)."""

from __future__ import annotations

import os
import select
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from phantora import process
from phantora.errors import PhantoraError, Reason, cause_of, limit_of_processes, reason_of
from phantora.launch.ending import (
    Ending,
    Outcome,
    RunningSimulator,
    SharedArea,
    Signals,
    SimulatorThread,
    drain,
    error_message,
    signals_received,
    start_thread,
)
from phantora.launch.machine_memory import SECONDS, MachineMemory
from phantora.launch.output import Console, Stream, of_command
from phantora.launch.plan import STDERR, STDOUT
from phantora.launch.printed_mfu import PrintedMfu


def _wait_for(child: subprocess.Popen[bytes], signals: Signals) -> None:
    child.wait()
    signals.wake()


def run_command(
    command: Sequence[str],
    environment: Mapping[str, str],
    session: SharedArea,
    simulator: RunningSimulator | None,
    console: Console,
) -> Outcome:
    """Runs a command (``torchrun ...``, ``python spawn.py``) until it and the simulator have ended. What it prints goes
    to `console`."""
    begin = time.monotonic()
    parent = os.getpid()
    process.adopt_orphans()
    mfu = PrintedMfu()
    streams, ends = zip(*(of_command(number, mfu) for number in (STDOUT, STDERR)), strict=True)
    try:
        with process.fixed_addresses():
            child = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=ends[0],
                stderr=ends[1],
                start_new_session=True,
                env=dict(environment),
                preexec_fn=lambda: process.die_with_parent(parent),  # no thread is running yet
            )
    except OSError as error:
        reason = limit_of_processes(error) or f"{cause_of(error)}; check the path"
        for stream in streams:
            stream.close()
        raise PhantoraError(f"cannot run {command[0]!r}: {reason}") from error
    finally:
        for end in ends:
            os.close(end)
    run = _Run(command[0], child, session, streams, console)
    try:
        with signals_received() as signals:
            run.watch(signals, simulator)
    finally:
        run.close()
    run.outcome.printed_mfu = mfu.value()
    run.outcome.wall_seconds = time.monotonic() - begin
    return run.outcome


class _Run:
    """A running command and its simulator."""

    def __init__(
        self,
        name: str,
        child: subprocess.Popen[bytes],
        session: SharedArea,
        streams: Sequence[Stream],
        console: Console,
    ) -> None:
        self.outcome = Outcome()
        self._streams = streams
        self._console = console
        self._name = name
        self._child = child
        self._session = session
        self._ending = Ending()
        self._memory = MachineMemory()
        self._next_look = time.monotonic()
        self._simulator: SimulatorThread | None = None
        self._reported = False

    def watch(self, signals: Signals, simulator: RunningSimulator | None) -> None:
        if simulator is not None:
            simulator.follow(self._child.pid)
            self._simulator = SimulatorThread(simulator, signals.wake)
            self._simulator.start()
        start_thread(threading.Thread(target=_wait_for, args=(self._child, signals), daemon=True))
        with selectors.DefaultSelector() as selector:
            selector.register(signals.read, selectors.EVENT_READ)
            for stream in self._streams:
                selector.register(stream.fd, selectors.EVENT_READ, stream)
            while self._child.poll() is None or not (self._simulator is None or self._simulator.done):
                for key, _ in selector.select(self._timeout()):
                    if isinstance(key.data, Stream) and not key.data.pump(self._console):
                        selector.unregister(key.fd)
                drain(signals.read)
                while signals.received:
                    number = signals.received.pop(0)
                    self.outcome.interrupted = self.outcome.interrupted or number
                    self._fail(128 + number, f"interrupted by {process.signal_name(number)}", Reason.INTERRUPTED)
                self._look_at_simulator()
                self._look_at_child()
                self._look_at_memory()
                self._end_if_due()
        self._look_at_simulator()
        self._look_at_child()
        for stream in self._streams:  # what lies in the pipes still
            pipe = select.poll()  # its descriptor may have any number
            pipe.register(stream.fd, select.POLLIN)
            while pipe.poll(0) and stream.pump(self._console):
                pass

    def _fail(self, status: int, message: str, reason: Reason) -> None:
        self.outcome.fail(status, reason, message)
        self._ending.begin(0.0)

    def _timeout(self) -> float:
        ending = self._ending.timeout()
        return SECONDS if ending is None else min(SECONDS, ending)

    def _look_at_memory(self) -> None:
        """Ends the run before the machine is out of memory."""
        now = time.monotonic()
        if self._ending.stage or now < self._next_look:
            return
        self._next_look = now + SECONDS
        text, ends = self._memory.look(lambda: process.with_descendants([self._child.pid]))
        if ends:
            self._fail(1, text, Reason.REFUSED)
            for pid in process.descendants(os.getpid()):  # at once: SIGTERM gives time to take the rest
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        elif text:
            self._console.message(f"phantora: note: {text}")

    def _look_at_simulator(self) -> None:
        thread = self._simulator
        if thread is not None and thread.done and thread.error is not None and not self.outcome.status:
            self._fail(getattr(thread.error, "exit_status", 1), error_message(thread.error), reason_of(thread.error))

    def _look_at_child(self) -> None:
        if self._child.poll() is None or self._reported:
            return
        self._reported = True
        code = self._child.returncode
        if code:
            what = f"{self._name} {process.describe_exit(code)}"
            self.outcome.fail(process.shell_status(code), Reason.SCRIPT_FAILED, what)
        if self._simulator is not None:  # ranks that never joined, or left without a word
            self._simulator.simulator.command_ended(self.outcome.status)

    def _end_if_due(self) -> None:
        number = self._ending.due()
        if not number:
            return
        self._session.abort()
        for pid in process.descendants(os.getpid()):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def close(self) -> None:
        if self.outcome.status or self._child.poll() is None:
            self._session.abort()
        if self._simulator is not None:
            self._simulator.finish(stop=True)
        process.kill_descendants()
        self._child.wait()
        for stream in self._streams:
            stream.close()
