"""Cost of a batch of torch's DataLoader (``--data-loading``; docs/data-loading.md).

What a dataset does (decode, augment, tokenize) runs for real, in worker processes or in the script itself. None of it
is a CUDA call, so the modelled host clock knows only its Python frames, and only without workers. Here each batch gets
a time, given or measured. In virtual time it is there no earlier than the worker that makes it could have made it.
A worker's waits (sleeps, disks, other processes) belong to the time of its batch.
``auto`` measures all loaders, and counts the time of those that are slower than the script takes their batches. What
is counted differs from run to run, so it is not counted where it decides nothing. ``free`` only prints a note.
Each worker process takes the script the time of its start.

It runs in a rank. The terminal's process calls :func:`parse` alone, to check the option.
"""

from __future__ import annotations

import os
import resource
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from phantora import python_probe
from phantora.errors import PhantoraError
from phantora.rank.clock import NEXT_TO_PYTHON, Runtime
from phantora.rank.importhook import excluded, on_import
from phantora.rank.messages import report_at_end, tell
from phantora.rank.patch import Patch, Rank, When
from phantora.spec import AUTO, FREE, rank_spec
from phantora.units import TIME
from phantora.wire.layout import Api

OPTION = "--data-loading"
MEASURED = "measured"
_LOADERS = "torch.utils.data.dataloader"
_STATEFUL = "torchdata.stateful_dataloader.stateful_dataloader"
_FETCHERS = "torch.utils.data._utils.fetch"
_WORKERS = "_phantora_workers"  # kept with an iterator
_SAMPLES = 512  # batches of a loader that are looked at for the note
_NOTED = 1.1  # a step that would be longer by more than this is worth one
_PROBED = 0.04  # CPU time of the calls that tell how fast this process runs, as a share of that of its batches
_WARM = 2  # calls before these, as where a host's own time of a call is measured: the first takes 3 times as long
_NAMED = 0.1  # of a batch: waits below it are not named
_KEPT = 0.9  # weight of a batch, and of the calls next to it, at the next one


@dataclass(frozen=True)
class Cost:
    """Cost of a batch: `ns`, or `factor` times this machine's CPU time, or nothing."""

    factor: float = 0.0
    ns: int = 0
    decides: bool = False
    """Only of loaders that make the script wait."""
    paced: bool = False
    """CPU time on the simulated host, and not on this machine."""

    def of(self, here: float, there: float, waited: float = 0) -> int:
        """Nanoseconds of a batch that took `here` ns of CPU, takes `there` on the simulated host, and `waited`."""
        return self.ns or int((there if self.paced else here) * self.factor + waited * bool(self.factor))

    @property
    def counts(self) -> bool:
        """True if a batch costs anything."""
        return self.factor > 0 or self.ns > 0


class Pace:
    """How fast this process runs. It times Python's work between the batches that it makes: other work on this machine,
    and the tracing of Python, slow both down by the same factor."""

    def __init__(self, there: float) -> None:
        """`there`: ns of a call of :func:`python_probe.python` on the simulated host; 0: as fast as here."""
        self._there = there
        self._made = 0.0  # CPU time of batches and of calls, and how many, each worth less with every batch
        self._spent = 0.0
        self._calls = 0.0

    def scaled(self, cpu_ns: int) -> int:
        """CPU time on the simulated host of a batch that took `cpu_ns` here just now."""
        if not self._there:
            return cpu_ns
        self._made += cpu_ns
        for _ in range(_WARM):
            python_probe.python()
        while True:  # once at least, so that Python's collector finds the same objects after each batch
            before = time.thread_time_ns()
            python_probe.python()
            self._spent += time.thread_time_ns() - before
            self._calls += 1
            if self._spent >= _PROBED * self._made:
                break
        found = cpu_ns * self._there * self._calls / self._spent
        self._made, self._spent, self._calls = (_KEPT * x for x in (self._made, self._spent, self._calls))
        return int(found)


def parse(text: str) -> Cost:
    """``auto``, ``free``, ``measured``, ``measured:FACTOR``, or a time of a batch (``12ms``, ``800us``). Raises
    PhantoraError."""
    kind, colon, factor = text.partition(":")
    if text == FREE:
        return Cost()
    if text == AUTO:
        return Cost(factor=1.0, decides=True, paced=True)
    if kind == MEASURED:
        try:
            value = float(factor) if colon else 1.0
        except ValueError:
            value = 0.0
        if 0 < value < float("inf"):
            return Cost(factor=value, paced=not colon)
    if ns := int(TIME.read(text) or 0):
        return Cost(ns=ns)
    raise PhantoraError(
        f"{OPTION} {text}: give auto, free, measured, measured:FACTOR, or the time of a batch, for example 12ms"
    )


@dataclass
class Fetched:
    """A batch on its way from its worker, with the CPU time that it took."""

    data: Any
    cpu_ns: int
    """On this machine."""
    there_ns: int
    """On the simulated host."""
    waited_ns: int = 0
    """Time in which its worker waited: as on any host."""

    def pin_memory(self, device: Any = None) -> Fetched:
        """Called by torch's pinning thread for data of a class of its own."""
        from torch.utils.data._utils.pin_memory import pin_memory

        return Fetched(pin_memory(self.data, device), self.cpu_ns, self.there_ns, self.waited_ns)  # type: ignore[no-untyped-call]


@dataclass(kw_only=True)
class Seen:
    """Costs of the batches of equal loaders, and times of their requests."""

    cpu_ns: deque[int] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    there_ns: deque[int] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    waited_ns: deque[int] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    """As :class:`Fetched`."""
    apart_ns: deque[int] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    """Virtual time from one batch to the next."""
    used_ns: deque[int] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    """Virtual time from a batch until the script asks for the next one."""
    charged_ns: deque[int] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    """Host-clock charges while the script itself made a batch."""
    last: int | None = None
    """Time of the last batch that the script itself made."""
    starts: int = 0
    """Times that its workers were started."""
    epochs: int = 0
    """Iterators of workers so far."""
    first: int | None = None
    """Time of the first batch of all."""
    late_ns: int = 0
    """Time that the script would have waited for the first batches of later epochs."""
    decides: bool = False
    """The script would wait for the batches, so their time counts from here on."""

    def begins_late(self, now: int) -> bool:
        """True if the script would have waited for the beginnings of epochs for much of the time."""
        elapsed = now - self.first if self.first is not None else 0
        return self.late_ns > (_NOTED - 1) * (elapsed + self.late_ns)

    def uncounted(self, workers: int) -> Uncounted | None:
        """Medians; None for too few batches."""
        if len(self.apart_ns) < 2:
            return None
        cpu, there, apart = (_median(times) for times in (self.cpu_ns, self.there_ns, self.apart_ns))
        counted = None if workers else _median(self.charged_ns)
        waited = _median(self.waited_ns) if self.waited_ns else 0
        own, made, waits = (time / max(1, workers) for time in (cpu, there + waited, waited))
        return Uncounted(own, made, counted, apart, waits)


@dataclass(frozen=True)
class Uncounted:
    """Time of the batches of equal loaders, ns."""

    cpu: float
    """CPU time of a batch on this machine, over the number of workers."""
    there: float
    """Time of a batch on the simulated host with the waits of its worker, over the number of workers."""
    counted: float | None
    """What the clock counts of it; None for workers, which make it meanwhile."""
    apart: float
    """Virtual time from one batch to the next."""
    waited: float = 0.0
    """The waits of its worker, over the number of workers."""

    @property
    def needed(self) -> float:
        """Time from one batch to the next on the simulated host."""
        return self.there if self.counted is None else self.apart + self.there - self.counted


@dataclass(kw_only=True)
class Workers:
    """The worker processes of one iterator, in virtual time."""

    asked: defaultdict[int, deque[int]] = field(default_factory=lambda: defaultdict(deque))
    """Times at which each worker was asked for the batches that it has not delivered."""
    free: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Times at which each worker is done with the delivered batches."""
    last: int | None = None
    epoch: int = 0
    """1 for the first iterator of equal loaders."""
    took: int = 0
    """Batches so far."""
    late_ns: int = 0
    """Time that the script would have waited for the first ones."""
    held: int = 0
    """Bytes of the batches that they have ready at most, in shared memory."""

    def delivers(self, worker: int, cost: int) -> int:
        """Time at which `worker` has the batch that it was asked for first."""
        queue = self.asked[worker]
        self.free[worker] = max(self.free[worker], queue.popleft() if queue else 0) + cost
        return self.free[worker]


class Loading:
    """Gives the batches of this rank their time."""

    def __init__(self, cost: Cost, runtime: Runtime, pace: Pace, exclude: Callable[[bool], object] = bool) -> None:
        """`exclude` is called when the script itself begins to make a batch, and when it has. A worker has a copy of
        `pace`."""
        self._cost = cost
        self._pace = pace
        self._runtime = runtime
        self._exclude = exclude
        self._seen: defaultdict[tuple[str, int], Seen] = defaultdict(Seen)

    def _counts(self, seen: Seen, workers: int) -> bool:
        """True if the time of the batches of equal loaders counts."""
        if not self._cost.decides:
            return self._cost.counts
        if not seen.decides and (times := seen.uncounted(workers)) is not None:
            seen.decides = times.needed > _NOTED * times.apart
        return seen.decides

    def meet(self, module: ModuleType) -> None:
        """Changes `module`, one of torch's or torchdata's, that was imported just now."""
        if module.__name__ == _FETCHERS:
            for name in ("_MapDatasetFetcher", "_IterableDatasetFetcher"):
                self._time_fetches(getattr(module, name))
            return
        prefix = "_" if module.__name__ == _LOADERS else "_Stateful"
        if loader := getattr(module, f"{prefix[1:]}DataLoader", None):
            # The warning compares workers with the CPUs of this machine, not with those of the simulated host.
            loader.check_worker_number_rationality = lambda _: None
        self._time_workers(getattr(module, f"{prefix}MultiProcessingDataLoaderIter"))

    def _time_fetches(self, fetcher: Any) -> None:
        fetch = fetcher.fetch

        def timed_fetch(this: Any, index: Any) -> Any:
            from torch.utils.data import get_worker_info

            if get_worker_info() is not None:
                timed = Timed()
                data = fetch(this, index)
                taken, waited = timed.end()
                return Fetched(data, taken, self._pace.scaled(taken), waited)
            if not self._runtime.is_virtual() or not self._runtime.moves_clock():
                return fetch(this, index)
            self._exclude(True)
            try:
                with _one_thread():
                    began, before = self._runtime.now(), time.thread_time_ns()
                    data = fetch(this, index)
                    spent = time.thread_time_ns() - before
            finally:
                self._exclude(False)
            excluded(lambda: self._made_here(this, began, spent, self._pace.scaled(spent)))
            return data

        fetcher.fetch = timed_fetch

    def _made_here(self, fetcher: Any, began: int, cpu_ns: int, there_ns: int) -> None:
        """The script itself made a batch: what the clock did not count of it is added."""
        charged = self._runtime.now() - began
        seen = self._seen[type(fetcher.dataset).__name__, 0]
        self._runtime.advance(max(0, self._cost.of(cpu_ns, there_ns) - charged) if self._counts(seen, 0) else 0)
        now = self._runtime.now()
        if seen.last is not None:
            seen.cpu_ns.append(cpu_ns)
            seen.there_ns.append(there_ns)
            seen.charged_ns.append(charged)
            seen.used_ns.append(began - seen.last)
            seen.apart_ns.append(now - seen.last)
        seen.last = now

    def _time_workers(self, iterator: Any) -> None:
        from torch._utils import ExceptionWrapper

        put, process, reset = iterator._try_put_index, iterator._process_data, iterator._reset
        shutdown = iterator._shutdown_workers

        def timed_put(this: Any) -> None:
            index = this._send_idx
            put(this)
            if this._send_idx > index and self._runtime.is_virtual():
                worker = this._task_info[index][0]
                vars(this).setdefault(_WORKERS, Workers()).asked[worker].append(self._runtime.now())

        def timed_process(this: Any, data: Any, worker: int, *rest: Any) -> Any:
            workers = vars(this).setdefault(_WORKERS, Workers())
            if isinstance(data, Fetched):
                data = self._delivered(this, workers, worker, data)
            elif not isinstance(data, ExceptionWrapper) and self._cost.counts and self._runtime.is_virtual():
                self._delivered(this, workers, worker, Fetched(None, 0, 0))
            return process(this, data, worker, *rest)

        def fresh_reset(this: Any, *arguments: Any, **options: Any) -> None:
            if _WORKERS not in vars(this) and self._runtime.is_virtual():  # its workers have just been started
                self._runtime.advance(self._runtime.times_ns(Api.WORKER_START, this._num_workers))
                self._seen[_loader(this)].starts += 1
            before = vars(this).get(_WORKERS, Workers())
            vars(this)[_WORKERS] = Workers(held=before.held)  # what was asked for in an earlier epoch is dropped
            reset(this, *arguments, **options)

        def releasing_shutdown(this: Any) -> None:
            workers = vars(this).get(_WORKERS)
            if workers is not None and workers.held:
                self._runtime.hold(-workers.held, False)
                workers.held = 0
            shutdown(this)

        iterator._try_put_index, iterator._process_data, iterator._reset = timed_put, timed_process, fresh_reset
        iterator._shutdown_workers = releasing_shutdown

    def _delivered(self, iterator: Any, workers: Workers, worker: int, batch: Fetched) -> Any:
        """The batch itself; the clock waits until its worker has it."""
        if not self._runtime.is_virtual():
            return batch.data
        if self._cost.factor and not self._cost.decides and not batch.cpu_ns:
            raise PhantoraError(
                f"{OPTION} measured: what this DataLoader's workers do cannot be measured, since they are not forked; "
                f"give the time of a batch, for example {OPTION} 12ms"
            )
        dataset, number = _loader(iterator)
        seen = self._seen[dataset, number]
        counts = self._counts(seen, number)
        if counts:
            self._pinned(iterator, batch.data)
        ready = workers.delivers(worker, self._cost.of(batch.cpu_ns, batch.there_ns, batch.waited_ns))
        now = asked = self._runtime.now()
        counts = self._begins(seen, workers, number, max(0, ready - now), now) or counts
        if counts and ready > now:
            self._runtime.advance(ready - now)
            now = ready
        if workers.last is not None:
            seen.cpu_ns.append(batch.cpu_ns)
            seen.there_ns.append(batch.there_ns)
            seen.waited_ns.append(batch.waited_ns)
            seen.apart_ns.append(now - workers.last)
            seen.used_ns.append(asked - workers.last)
        workers.last = now
        if not workers.held:
            workers.held = _bytes(batch.data) * len(workers.asked) * int(getattr(iterator, "_prefetch_factor", 0) or 0)
            self._runtime.hold(workers.held, False)
        return batch.data

    def _begins(self, seen: Seen, workers: Workers, number: int, wait: int, now: int) -> bool:
        """True if epochs begin so late that they count; `workers`, of whom there are `number`, have delivered."""
        if not workers.took:
            seen.epochs += 1
            workers.epoch = seen.epochs
        workers.took += 1
        if not self._cost.decides or seen.decides or workers.took > number:
            return False
        if workers.epoch == 1:
            seen.first = now if seen.first is None else seen.first
            return False
        if wait > workers.late_ns:  # a script that has waited for one has waited for those that came meanwhile
            seen.late_ns += wait - workers.late_ns
            workers.late_ns = wait
        seen.decides = seen.begins_late(now)
        return seen.decides

    def _pinned(self, iterator: Any, data: Any) -> None:
        """The loader's thread copies the next batch to pinned memory meanwhile, and has Python's lock."""
        if getattr(iterator, "_pin_memory", False):
            until = self._runtime.now() + self._runtime.bytes_ns(Api.PIN_BATCH_GIB, _bytes(data))
            self._runtime.contend(0, until, NEXT_TO_PYTHON, until, 1.0)

    def _uncounted(self) -> dict[tuple[str, int], Uncounted]:
        """By dataset and number of workers, the most used first; without those whose time counts."""
        seen = {} if self._cost.counts and not self._cost.decides else self._seen
        seen = {of: one for of, one in seen.items() if not one.decides}
        used = sorted(seen, key=lambda of: -sum(seen[of].apart_ns))
        return {of: found for of in used if (found := seen[of].uncounted(of[1])) is not None}

    def notes(self) -> list[str]:
        """Notes for a user whose run would have waited for data."""
        notes = (_note(dataset, workers, times) for (dataset, workers), times in self._uncounted().items())
        decided = [_decided(self._cost, *of, seen) for of, seen in self._seen.items() if seen.decides]
        return [*decided, *(note for note in notes if note is not None)]

    def report(self) -> None:
        """Prints the notes. In the first rank."""
        for note in self.notes():
            tell(note)

    def facts(self) -> None:
        """Gives the most used loader's times for the range of the step, and facts about the loader that decides, or is
        most used. In every rank."""
        for times in list(self._uncounted().values())[:1]:
            counted = -1 if times.counted is None else int(times.counted)
            self._runtime.data(int(times.there), counted, int(times.apart))
        known = [(of, seen) for of, seen in self._seen.items() if seen.used_ns]
        if known:
            (_, workers), seen = max(known, key=lambda one: (one[1].decides, sum(one[1].apart_ns)))
            there, waited = _median(seen.there_ns), _median(seen.waited_ns) if workers else 0
            batch = self._cost.of(_median(seen.cpu_ns), there, waited) or there + waited
            if not workers:  # that sleeps or waits takes more than CPU time
                batch = max(batch, _median(seen.charged_ns))
            self._runtime.loader(batch, _median(seen.used_ns), workers, seen.starts)


class Timed:
    """CPU time and waits of this process, from the making of the object to :meth:`end`. A wait is what is neither CPU
    time nor time in which a thread of it could run and no CPU was free; 0 where this thread never gave its CPU up."""

    def __init__(self) -> None:
        self._began = self._now()

    def _now(self) -> tuple[int, int, int, int]:
        switches = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        return time.process_time_ns(), time.monotonic_ns(), _held_up(), switches

    def end(self) -> tuple[int, int]:
        """CPU time and waits, ns."""
        cpu, wall, held_up, gave_up = (now - then for now, then in zip(self._now(), self._began, strict=True))
        return cpu, max(0, wall - cpu - held_up) if gave_up else 0


def _held_up() -> int:
    """Time (ns) in which threads of this process could run and no CPU was free."""
    found = 0
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError), open(f"/proc/self/task/{thread}/schedstat", "rb") as file:  # a thread may have ended
            found += int(file.read().split()[1])
    return found


def _loader(iterator: Any) -> tuple[str, int]:
    """Name of the dataset and number of workers of torch's iterator with workers."""
    return type(getattr(iterator, "_dataset", None)).__name__, int(getattr(iterator, "_num_workers", 1))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Meanwhile torch's operators on CPU tensors take this thread alone, as in a worker: a thread that waits for others
    at the end of a loop spins, and that is no work. The modelled number of threads stays."""
    import torch

    threads = torch.get_num_threads()
    torch._C.set_num_threads(1)
    try:
        yield
    finally:
        torch._C.set_num_threads(threads)


def _median(times: Iterable[int]) -> int:
    """The higher one of two. A call of statistics would take time of the script."""
    found = sorted(times)
    return found[len(found) // 2]


def _bytes(data: Any) -> int:
    """Bytes of the tensors in a batch."""
    if isinstance(data, Mapping):
        return sum(map(_bytes, data.values()))
    if isinstance(data, (list, tuple)):
        return sum(map(_bytes, data))
    size = getattr(data, "nbytes", 0)
    return size if isinstance(size, int) else 0


def _note(dataset: str, workers: int, times: Uncounted) -> str | None:
    if times.needed <= times.apart * _NOTED:
        return None
    who = "the script" if not workers else f"one of {workers} workers" if workers > 1 else "the worker"
    cpu, waited = (time * max(1, workers) / 1e6 for time in (times.cpu, times.waited))
    waits = f" and waits {waited:.3g} ms" if times.waited > _NAMED * times.there else ""
    return (
        f"{who} takes {cpu:.3g} ms of this machine's CPU for a batch of {dataset}{waits}, which is not counted: "
        f"the simulated script takes one every {times.apart / 1e6:.3g} ms, its host makes one every "
        f"{times.needed / 1e6:.3g} ms; {OPTION} measured counts it"
    )


def _decided(cost: Cost, dataset: str, workers: int, seen: Seen) -> str:
    cpu, there = _median(seen.cpu_ns), _median(seen.there_ns)
    waited = _median(seen.waited_ns) if seen.waited_ns else 0
    waits = f" and {waited / 1e6:.3g} ms of waits" if waited > _NAMED * (there + waited) else ""
    who = "the script" if not workers else f"one of {workers} workers" if workers > 1 else "the worker"
    return (
        f"the step waits for its data: {who} takes {cost.of(cpu, there, waited) / 1e6:.3g} ms for a batch of {dataset} "
        f"({cpu / 1e6:.3g} ms of this machine's CPU{waits}, which differ from run to run); {OPTION} free leaves it out"
    )


def install(rank: Rank) -> None:
    """Times the DataLoaders of this rank."""
    library = rank.runtime
    spec = rank_spec()
    pace = Pace(spec.python_ns)
    loading = Loading(parse(spec.data_loading), Runtime.of(library), pace, library.ph_unmodelled_exclude)
    on_import((_FETCHERS, _LOADERS, _STATEFUL), loading.meet)
    report_at_end(library, loading.report)
    report_at_end(library, loading.facts, every=True)


PATCH = Patch("data loading", When.IN_RANK, install)
