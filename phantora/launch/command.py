"""Runs a launcher whose ranks join the simulation by themselves (see `phantora.launch.hook`)."""

from __future__ import annotations

import os
import selectors
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from phantora.errors import PhantoraError
from phantora.launch import process
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
)


def _wait_for(child: subprocess.Popen[bytes], signals: Signals) -> None:
    child.wait()
    signals.wake()


def run_command(
    command: Sequence[str],
    environment: Mapping[str, str],
    session: SharedArea | None,
    simulator: RunningSimulator | None,
    ranks_unseen: Callable[[], list[int]],
) -> Outcome:
    """Runs a launcher (``torchrun ...``) whose ranks join by themselves (`phantora.launch.hook`).

    `ranks_unseen` tells which ranks have not joined, or have left without a word, once the command
    has ended.
    """
    begin = time.monotonic()
    outcome = Outcome()
    ending = Ending()
    parent = os.getpid()
    process.adopt_orphans()
    try:
        child = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=dict(environment),
            preexec_fn=lambda: process.die_with_parent(parent),
        )
    except OSError as error:
        raise PhantoraError(f"cannot run {command[0]!r}: {error.strerror}; check the path") from error
    thread: SimulatorThread | None = None
    try:
        with signals_received() as signals:
            if simulator is not None:
                thread = SimulatorThread(simulator, signals.wake)
                thread.start()
            waiter = threading.Thread(target=_wait_for, args=(child, signals), daemon=True)
            waiter.start()
            selector = selectors.DefaultSelector()
            selector.register(signals.read, selectors.EVENT_READ)
            reported = False
            while child.poll() is None or (thread is not None and not thread.done):
                selector.select(ending.timeout() if child.returncode is None else 0.2)
                drain(signals.read)
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
                        with suppress(ProcessLookupError):
                            os.kill(pid, number)
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
