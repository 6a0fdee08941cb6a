"""Detects ranks that sleep outside CUDA. Reads /proc, without touching the process."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from phantora.wire import stacks
from phantora.wire.names import ASIDE

_PIECE_BYTES = 1 << 16
_ROUNDS = 10
_ASKING_SHARE = 0.05  # of its time, for a thread that only asks whether the interpreter is free: 200 times a second


@dataclass(frozen=True)
class Activity:
    """Activity of a process: equal snapshots of sleepers mean that nothing happened between."""

    asleep: bool
    switches: tuple[str, ...]
    ran: int = 0
    """Nanoseconds for which the threads have run, if the kernel reports it."""
    disk: bool = False
    """A thread waits for the disk."""


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, _read(f"/proc/{pid}/task/{task}/children").split())
    except OSError:
        pass
    return found


def descendants(pid: int) -> list[int]:
    """All living descendants of `pid`."""
    found = _children(pid)
    for child in found:
        found += _children(child)
    return found


def stopped(pid: int) -> bool:
    """True if a signal stopped `pid` (SIGSTOP, Ctrl-Z, a debugger)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] in (b"T", b"t")
    except OSError:
        return False


def _works(task: str, pid: int, name: str) -> bool:
    """True if the rank's work goes on in this thread. The main and the autograd threads move its clock."""
    return task == str(pid) or name.startswith("pt_autograd") or name == ASIDE


def _read(path: str) -> bytes:
    """Empty when the thread has ended. A Python file would take four system calls more."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return b"".join(iter(lambda: os.read(file, _PIECE_BYTES), b""))
    except OSError:
        return b""
    finally:
        os.close(file)


def _times_run(pid: int, task: str) -> str:
    """A text that changes whenever the thread has run."""
    if reported := _read(f"/proc/{pid}/task/{task}/schedstat"):
        return reported.decode("ascii", "replace")
    # A kernel without statistics of its scheduler.
    status = _read(f"/proc/{pid}/task/{task}/status").decode("ascii", "replace")
    return "".join(line for line in status.splitlines() if "ctxt_switches" in line)


def snapshot(pid: int, only_clock_threads: bool = True, children: bool = True) -> Activity | None:
    """The activity of `pid`'s threads that make it go on and of all its children; None if it is gone.

    Watchdog and heartbeat threads of torch wake several times a second and decide nothing, so
    they don't count. A child (a DataLoader worker) that computes keeps its parent awake.
    """
    asleep, disk = True, False
    switches: list[str] = []
    ran = 0
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return None
    for task in tasks:
        text = _read(f"/proc/{pid}/task/{task}/stat")
        name = text[text.find(b"(") + 1 : text.rfind(b")")].decode("ascii", "replace")
        if not text or (only_clock_threads and not _works(task, pid, name)):
            continue
        state = text[text.rindex(b")") + 2 :].split()[0]
        asleep, disk = asleep and state == b"S", disk or state == b"D"
        switches.append(times := _times_run(pid, task))
        ran += int(times.split()[0]) if times[:1].isdigit() else 0
    if not switches:
        return None
    for child in _children(pid) if children else ():
        activity = snapshot(child, only_clock_threads=False)
        if activity is not None:
            asleep, disk = asleep and activity.asleep, disk or activity.disk
            switches += activity.switches
            ran += activity.ran
    return Activity(asleep, tuple(switches), ran, disk)


@dataclass(frozen=True)
class Asked:
    """A process to take the :func:`snapshot` of."""

    pid: int
    only_clock_threads: bool = True
    children: bool = True


class Processes(Protocol):
    """Access to the processes of a run, which a number names: a pid where all are on this machine."""

    @property
    def delay(self) -> float:
        """Most seconds that a message between two of them takes."""

    def activities(self, asked: Sequence[Asked]) -> list[Activity | None]:
        """What :func:`snapshot` finds of each."""

    def stopped(self, pid: int) -> bool:
        """What :func:`stopped` finds."""

    def places(self, pids: Mapping[int, int]) -> dict[int, stacks.Place]:
        """What :func:`phantora.wire.stacks.collect` finds."""


class LocalProcesses:
    """Processes of this machine."""

    delay = 0.0

    def activities(self, asked: Sequence[Asked]) -> list[Activity | None]:
        """One after the other."""
        return [snapshot(one.pid, one.only_clock_threads, one.children) for one in asked]

    def stopped(self, pid: int) -> bool:
        """From /proc."""
        return stopped(pid)

    def places(self, pids: Mapping[int, int]) -> dict[int, stacks.Place]:
        """By a signal."""
        return stacks.collect(pids)


@dataclass(kw_only=True)
class _Look:
    when: float
    activity: Activity | None
    unchanged_since: float
    ran: int = 0
    """Number of runs until then."""
    sleeps: bool = False
    """True if it sleeps at the moment."""
    awake: float = 0.0
    """Seconds in which it ran, waited for a processor or the disk, or was stopped."""


class IdleDetector:
    """Watches processes from a moment on at which the simulation stood still."""

    def __init__(self, processes: Processes | None = None) -> None:
        self._processes = processes or LocalProcesses()
        self.restart()

    def restart(self) -> None:
        """Begins to watch from now on."""
        self._began = time.monotonic()
        self._looks: dict[int, _Look] = {}

    def asleep(
        self, pid: int, at_least: float, only_clock_threads: bool = True, children: bool = True, kept: bool = False
    ) -> bool:
        """True if `pid` has done nothing since a poll that many seconds ago. `kept`: another of its threads keeps the
        interpreter, so the threads that count may wait for it."""
        return self._sleep([Asked(pid, only_clock_threads, children)], at_least, {pid} if kept else ())[0]

    def _sleep(self, asked: Sequence[Asked], at_least: float, kept: Collection[int]) -> list[bool]:
        found = self._processes.activities(asked)
        return [
            self._note(one.pid, activity, at_least, one.pid in kept) for one, activity in zip(asked, found, strict=True)
        ]

    def _note(self, pid: int, activity: Activity | None, at_least: float, kept: bool) -> bool:
        if activity is None:
            return True  # it is gone; whoever started it will say so
        now = time.monotonic()
        look = self._looks.setdefault(pid, _Look(when=now, activity=None, unchanged_since=now))
        if not activity.asleep:
            look.awake += now - look.when
        ran, since = (activity.ran - look.ran) / 1e9, now - look.unchanged_since
        asked = kept and look.activity is not None and 0 < ran <= _ASKING_SHARE * since
        if not activity.asleep or (activity != look.activity and not asked):
            look.unchanged_since, look.ran = now, activity.ran
        look.when, look.activity, look.sleeps = now, activity, activity.asleep
        return activity.asleep and now - look.unchanged_since >= at_least

    def all_asleep(
        self, ranks: Iterable[int], bystanders: Iterable[int], at_least: float, kept: Collection[int] = ()
    ) -> bool:
        """Have all processes done nothing for `at_least` seconds, of bystanders all threads? `kept`: ranks of which a
        thread that waits for an answer keeps the interpreter.

        Each of them is looked at. The store of a large job is asked by watchdogs of all ranks many times a second, so
        that it has always done something since a look that lies long back. It is looked at once more then, and so are
        the ranks, which it may have woken.
        """
        others = [Asked(pid, only_clock_threads=False) for pid in bystanders]
        ours = [Asked(pid) for pid in ranks]
        at_least += self._processes.delay

        def look() -> tuple[bool, bool]:
            asleep = self._sleep([*others, *ours], at_least, kept)
            return all(asleep[: len(others)]), all(asleep[len(others) :])

        quiet, idle = look()
        if idle and not quiet:
            time.sleep(at_least)
            quiet, idle = look()
        return idle and quiet

    def other_threads_work(self, pids: Collection[int]) -> bool:
        """True if a thread of `pids` that moves no clock works, as one that writes a checkpoint: for a second, in which
        it runs for a twentieth or mostly waits for the disk. Watchdogs wake more often, for less."""
        asked = [Asked(pid, only_clock_threads=False) for pid in pids]
        began, first = time.monotonic(), self._processes.activities(asked)
        waited = [0] * len(asked)
        for _ in range(_ROUNDS):
            time.sleep(1 / _ROUNDS)
            last = self._processes.activities(asked)
            waited = [n + (one is not None and one.disk) for n, one in zip(waited, last, strict=True)]
        least = _ASKING_SHARE * (time.monotonic() - began) * 1e9
        ran = [a is not None and b is not None and b.ran - a.ran > least for a, b in zip(first, last, strict=True)]
        return any(ran) or any(2 * n > _ROUNDS for n in waited)

    def any_runs(self, pids: Iterable[int]) -> bool:
        """True if one of `pids` ran at the last poll."""
        return any(pid in self._looks and not self._looks[pid].sleeps for pid in pids)

    def blocked(self, pids: Iterable[int], tolerance: float) -> float:
        """Seconds for which none of `pids` was awake for longer than `tolerance`.

        One look that finds all asleep proves little: on a crowded machine a rank that works is mostly a rank
        that waits for a processor, and sleeps for moments between. Some tolerance there must be for threads that
        look every few seconds whether their work has come.
        """
        looks = [self._looks[pid] for pid in pids if pid in self._looks]
        if any(look.awake > tolerance for look in looks):
            self._began = time.monotonic()
            for look in looks:
                look.awake = 0.0
        return time.monotonic() - self._began
