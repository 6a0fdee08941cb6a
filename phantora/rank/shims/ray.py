"""Ray: a task or a result that reaches a process has happened before, also by its virtual clock.

Whoever submits a task notes its clock, and whoever runs one notes when it ended, both in a file of the run. A task
begins after its submission and after the tasks whose results it is given. ``ray.get`` and ``ray.wait`` return after the
tasks whose results they give.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import os
import select
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from phantora.rank import front_end
from phantora.rank.routing import Routing
from phantora.rank.shims import Shim
from phantora.spec import rank_spec

_POLLS, _POLL_SECONDS = 1000, 0.001  # for the note of whoever has just submitted a task
_MOST_MISSES = 3  # tasks without a note: who submits them notes none


class Journal:
    """The notes of all processes of a run: a line each, in a file to which each appends."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        self._read = 0
        self._rest = b""
        self._misses = 0
        self._submitted: dict[str, tuple[int, tuple[str, ...]]] = {}
        self._ended: dict[str, int] = {}

    def submitted(self, task: str, at: int, needs: Iterable[str]) -> None:
        """`task` was submitted at the clock `at` (ns) and takes the results of `needs`."""
        self._write("S", task, at, *needs)

    def ended(self, task: str, at: int) -> None:
        """`task` ended at the clock `at` (ns)."""
        self._write("E", task, at)

    def begin(self, task: str) -> int:
        """The earliest clock (ns) at which `task` can begin; 0 if nobody has noted its submission."""
        self._update()
        polls = _POLLS if self._misses < _MOST_MISSES else 0
        while task not in self._submitted and polls:
            select.select([], [], [], _POLL_SECONDS)  # real time, unlike time.sleep
            self._update()
            polls -= 1
        if task not in self._submitted:
            self._misses += 1
            return 0
        self._misses = 0
        at, needs = self._submitted[task]
        return max([at, *map(self.end, needs)])

    def end(self, task: str) -> int:
        """The clock (ns) at which `task` ended; 0 if it has not."""
        if task not in self._ended:
            self._update()
        return self._ended.get(task, 0)

    def _write(self, kind: str, task: str, at: int, *needs: str) -> None:
        os.write(self._file, (" ".join((kind, task, str(at), *needs)) + "\n").encode())

    def _update(self) -> None:
        while piece := os.pread(self._file, 1 << 20, self._read):
            self._read += len(piece)
            *lines, self._rest = (self._rest + piece).split(b"\n")
            for line in lines:
                kind, task, at, *needs = line.decode().split(" ")
                if kind == "S":
                    self._submitted[task] = int(at), tuple(needs)
                else:
                    self._ended[task] = int(at)


class _Clock:
    """The clock of this process, whether or not it is a rank."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        self._library.ph_now.restype = ctypes.c_int64
        self._library.ph_reach.argtypes, self._library.ph_reach.restype = [ctypes.c_int64], None

    def now(self) -> int:
        return int(self._library.ph_now())

    def reach(self, at: int) -> None:
        if at:
            self._library.ph_reach(at)


def _order_clocks(ray: Any, _: Routing) -> None:
    if not rank_spec().tasks:
        return
    front_end.follow(front_end.REACHED)
    manager: Any = import_module("ray._private.function_manager").FunctionActorManager
    submitters: tuple[Any, ...] = import_module("ray.actor").ActorMethod, ray.remote_function.RemoteFunction
    journal, clock = Journal(rank_spec().tasks), _Clock()
    for submitter in submitters:
        submitter._remote = _noting_submission(submitter._remote, journal, clock)
    ray.get = _reaching_ends(ray.get, journal, clock, lambda given, _: given)
    ray.wait = _reaching_ends(ray.wait, journal, clock, lambda _, ready: ready[0])
    described = manager.get_execution_info
    made: dict[int, Any] = {}

    @functools.wraps(described)
    def described_noting(self: Any, *given: Any) -> Any:
        info = described(self, *given)
        key = id(info.function)
        if key not in made:
            made[key] = info.function, _noting_end(info.function, journal, clock)
        return info._replace(function=made[key][1])

    manager.get_execution_info = described_noting


def _task(reference: Any) -> str:
    """The task that makes an object; "" for what is no reference."""
    made = getattr(reference, "task_id", None)
    return str(made().hex()) if callable(made) else ""


def _noting_submission(submit: Callable[..., Any], journal: Journal, clock: _Clock) -> Callable[..., Any]:
    @functools.wraps(submit)
    def submitting(self: Any, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        at = clock.now()
        found = submit(self, args, kwargs, **options)
        references = found if isinstance(found, list) else [found]
        needs = [_task(each) for each in (*(args or ()), *(kwargs or {}).values())]
        for task in {_task(getattr(each, "_generator_ref", each)) for each in references} - {""}:
            journal.submitted(task, at, filter(None, needs))
        return found

    return submitting


def _noting_end(run: Callable[..., Any], journal: Journal, clock: _Clock) -> Callable[..., Any]:
    """Not of coroutines, of which a worker runs several at a time."""
    if inspect.iscoroutinefunction(getattr(run, "method", run)):
        return run

    @functools.wraps(run)
    def running(*args: Any, **kwargs: Any) -> Any:
        import ray

        task = ray.get_runtime_context().get_task_id() or ""
        clock.reach(journal.begin(task))
        try:
            return run(*args, **kwargs)
        finally:
            journal.ended(task, clock.now())

    return running


def _reaching_ends(
    take: Callable[..., Any], journal: Journal, clock: _Clock, ready: Callable[[Any, Any], Any]
) -> Callable[..., Any]:
    """`ready`: the references whose tasks have ended, of what is given and returned."""

    @functools.wraps(take)
    def taking(given: Any, *args: Any, **options: Any) -> Any:
        found = take(given, *args, **options)
        ended = ready(given, found)
        for task in map(_task, ended if isinstance(ended, (list, tuple)) else [ended]):
            clock.reach(journal.end(task) if task else 0)
        return found

    return taking


CLOCKS = Shim(
    "ray", (), "ray", guarded="get", apply=_order_clocks, does="orders the clocks of its processes", routes=False
)
