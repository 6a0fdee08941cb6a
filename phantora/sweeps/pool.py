"""Runs tasks on this machine, as many at a time as its cores and memory allow; and what an engine is."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Protocol

from phantora.errors import PhantoraError, cause_of
from phantora.fold.syntax import parse_fold
from phantora.launch.daemon import idle_minutes
from phantora.launch.shared_forkserver import VARIABLE, WarmServer
from phantora.launch.zygote import Forked, Zygote
from phantora.process import die_with_parent
from phantora.spec import OFF
from phantora.sweeps.result import Result
from phantora.sweeps.task import Command, Task, evaluate, is_folded_by_user

# Most memory of this machine that a simulated run takes: 64 ranks of an 8B model take 9 GiB.
BASE_BYTES, RANK_BYTES = 1 << 30, 150 << 20
BUSY = 2  # times the cores: ranks wait for each other, and a run's start and end keep one core busy
TERMINATE_SECONDS = 10.0
PRELOADED = ("phantora.runs.preload", "phantora.sweeps.result")
"""Imports of the process that forks the processes of runs."""

Process = subprocess.Popen[bytes] | Forked


class Engine(Protocol):
    """Runs tasks somewhere."""

    def has_room(self, task: Task) -> bool:
        """True if it can begin now."""
        ...

    def begin(self, task: Task) -> None:
        """Starts a task; `has_room` must be true."""

    def finished(self) -> list[tuple[Task, Result]]:
        """Waits until at least one task has ended; those that have. Raises PhantoraError for what no task is to blame
        for."""
        ...

    def close(self) -> None:
        """Ends what runs; nothing of it goes on."""
        ...


def memory_of(task: Task) -> int:
    """Bytes of this machine that a run may take."""
    return BASE_BYTES + processes_of(task) * RANK_BYTES


def processes_of(task: Task) -> int:
    """Number of ranks of a run that are processes."""
    if not is_folded_by_user(task.point):
        return task.folding.processes
    world, axes = task.point.world, task.point.spec.fold.axes
    fold = parse_fold(axes, world) if axes != OFF else None
    return len(fold.real) if fold else world


def cores_of(task: Task, cores: int) -> int:
    """Number of `cores` that a run keeps busy."""
    return min(processes_of(task), cores)


@dataclass
class _Running:
    task: Task
    stages: Generator[Command, int, Result]
    process: Process
    ended: int
    """Descriptor that is readable when the process has ended."""


class Pool:
    """`jobs` tasks at a time; 0: as many as fit. One fork server imports torch for all runs, and one process forks
    what runs and reads them."""

    def __init__(self, jobs: int = 0) -> None:
        self._jobs = jobs
        self._server: WarmServer | None = None
        self._zygote: Zygote | None = None
        self._cores = len(os.sched_getaffinity(0))
        self._running: list[_Running] = []
        self._ended: list[tuple[Task, Result]] = []

    def has_room(self, task: Task) -> bool:
        """True if one more task can begin now, by CPU cores and memory."""
        if not self._running:
            return True
        if task.point.spec.launch.ray:  # its ranks take the memory of the cluster, which a second run waits for
            return False
        if self._jobs:
            return len(self._running) < self._jobs
        cores = sum(cores_of(one.task, self._cores) for one in self._running)
        growing = sum(memory_of(one.task) for one in self._running)
        total, available = _memory()
        return (
            cores + cores_of(task, self._cores) <= BUSY * self._cores
            and growing + memory_of(task) <= total
            and memory_of(task) <= available
        )

    def begin(self, task: Task) -> None:
        """Starts the first process of a task."""
        self._step(task, evaluate(task), None)

    def finished(self) -> list[tuple[Task, Result]]:
        """Tasks that ended, with their results; waits for one. Empty if none is running."""
        while not self._ended and self._running:
            ready, _, _ = select.select([one.ended for one in self._running], [], [])
            for one in [one for one in self._running if one.ended in ready]:
                status = one.process.wait()
                self._running.remove(one)
                self._forget(one)
                self._step(one.task, one.stages, status)
        ended, self._ended = self._ended, []
        return ended

    def _step(self, task: Task, stages: Generator[Command, int, Result], status: int | None) -> None:
        """Goes on with a task; None: begins it."""
        try:
            command = next(stages) if status is None else stages.send(status)
        except StopIteration as stop:
            self._ended.append((task, stop.value))
            return
        process = self._start(command, task)
        ended = process.fileno() if isinstance(process, Forked) else os.pidfd_open(process.pid)
        self._running.append(_Running(task, stages, process, ended))

    def _start(self, command: Command, task: Task) -> Process:
        """A point with variables of its own begins with them: they may change what is imported."""
        if command.environment:
            return start(command, self._with_server(task))
        self._zygote = self._zygote or Zygote(PRELOADED)
        with _output_of(command) as output:
            none = os.open(os.devnull, os.O_WRONLY)
            try:
                err = output.fileno() if command.errors_too else none
                environment = {**os.environ, **self._with_server(task)}
                return self._zygote.start(*command.module, environment, output.fileno(), err)
            finally:
                os.close(none)

    @staticmethod
    def _forget(one: _Running) -> None:
        if not isinstance(one.process, Forked):  # which has closed it
            os.close(one.ended)

    def _with_server(self, task: Task) -> dict[str, str]:
        """Variables by which a run finds the fork server of all runs; none where it finds the daemon."""
        if VARIABLE in os.environ or (task.point.spec.daemon and idle_minutes(os.environ)):
            return {}
        self._server = self._server or WarmServer()
        return {VARIABLE: self._server.path}

    def close(self) -> None:
        """Ends what is running."""
        stop([one.process for one in self._running])
        for closed in (self._zygote, self._server):
            if closed is not None:
                closed.close()
        for one in self._running:
            self._forget(one)
        self._running.clear()


def start(command: Command, more: Mapping[str, str] = MappingProxyType({})) -> subprocess.Popen[bytes]:
    """Starts it in a group of its own, so that the terminal's Ctrl-C reaches the sweep alone; it ends when this process
    does."""
    parent = os.getpid()
    with _output_of(command) as output:
        return subprocess.Popen(
            command.words,
            env={**os.environ, **command.environment, **more},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if command.errors_too else subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(parent),
        )


def _output_of(command: Command) -> BinaryIO:
    try:
        return open(command.output, "wb")
    except OSError as error:
        raise PhantoraError(
            f"{command.output}: cannot be written: {cause_of(error)}; free space or name another -o"
        ) from error


def run_alone(task: Task) -> Result:
    """Runs one task to its end, in this process' thread."""
    stages = evaluate(task)
    try:
        command = next(stages)
    except StopIteration as end:
        refused: Result = end.value
        return refused
    while True:
        process = start(command)
        try:
            status = process.wait()
        except BaseException:
            stop([process])
            raise
        try:
            command = stages.send(status)
        except StopIteration as end:
            result: Result = end.value
            return result


def stop(processes: Sequence[Process]) -> None:
    """Asks runs to end, which end their ranks, and kills those that do not."""
    for process in processes:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + TERMINATE_SECONDS
    for process in processes:
        with suppress(PhantoraError):  # it has ended with its zygote
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _memory() -> tuple[int, int]:
    """Bytes of this machine: all, and available."""
    found = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(found["MemTotal"].split()[0]) << 10, int(found["MemAvailable"].split()[0]) << 10
