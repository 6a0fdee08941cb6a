"""Virtual time for Python.

``time.time``, ``monotonic``, ``perf_counter``, their ``_ns`` forms, ``sleep``, ``clock_gettime``,
the forms of ``localtime`` & co. that mean "now" and ``datetime.now`` follow the rank's host clock
once the process is connected to a simulator; before, and in null mode, they give real time.
``process_time`` and ``thread_time`` stay real: they count what this process burns.

Code that waits for something real (threads, sockets, locks on files) must not see that a
minute passed while nothing could happen, so the modules in `REAL_TIME` keep the real functions.
"""

from __future__ import annotations

import ctypes
import datetime
import gc
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from phantora.errors import PhantoraError
from phantora.rank.importhook import after_import
from phantora.rank.patch import Patch, When

LIBRARY = "libphantora_clock.so"
REAL_TIME = (
    "asyncio",
    "concurrent",
    "filelock",
    "http",
    "multiprocess",  # of datasets
    "multiprocessing",
    "queue",
    "ray",
    "requests",
    "select",
    "selectors",
    "socket",
    "socketserver",
    "ssl",
    "subprocess",
    "threading",
    "torch.distributed.elastic",
    "torch.multiprocessing",
    "urllib",
    "urllib3",
    "zmq",
)
_METH_NOARGS = 4
# A loop that polls with sleep() waits for something outside the simulation. After this many sleeps
# with nothing in between it really sleeps, longer each time, so that virtual time does not run away
# meanwhile: a loop with a deadline of minutes gets its minutes.
POLL_SLEEPS = 10
POLL_REAL_SECONDS = 0.01
POLL_GAP_NS = 1_000_000


class _MethodDef(ctypes.Structure):
    """CPython's PyMethodDef (stable ABI)."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


sleep_watchers: list[Callable[[float], None]] = []
"""Called with the seconds for which a thread that does not move the clock is about to sleep."""

NEXT_TO_PYTHON = 8.6
"""Time of operators next to a thread that runs Python all the time, over that without: 134,400 small operators a second
alone, 15,600 next to it (``host_memory.jsonl`` of 4 H200, torch.save of 4,096 tensors of 4 KiB)."""


@dataclass(frozen=True)
class Poll:
    """The end of a real sleep."""

    busy: bool
    """Threads have worked just before."""
    ended: int
    """``monotonic_ns`` of this machine."""
    delayed: tuple[int, int]
    """For how long this one, and they, have waited for a core so far, ns."""


@dataclass(kw_only=True)
class Runtime:
    """Functions of the rank runtime (``stub/rank/rank.h``) that the clock needs."""

    connected: Callable[[], bool]
    null_mode: Callable[[], bool]
    moves_clock: Callable[[], bool]
    now: Callable[[], int]
    advance: Callable[[int], None]
    sleep: Callable[[int], None]
    bytes_ns: Callable[[int, int], int]
    """ns of a cost per GiB (a place in ``wire.layout.Api``) and bytes; 0 where the host clock is not modelled."""
    times_ns: Callable[[int, int], int]
    """ns of a cost (a place in ``wire.layout.Api``) and how often it occurs; 0 where the host clock is not modelled."""
    contend: Callable[[int, int, float, int, float], None]
    """From the first moment (ns) to the second the host's work takes the first factor longer, then until the third the
    other."""
    apart_begin: Callable[[bool], None]
    """From now on this thread, if it does not move the clock, waits for no GPU, and has a time of its own if that is
    charged."""
    apart_end: Callable[[], int]
    """The end of that, and its ns."""
    apart_from: Callable[[int, int], None]
    """That work begins at the first (ns) and takes the second. The rank's own waits for its locks."""
    rivals: Callable[[int, int], None]
    """From now on another thread has Python's lock when it can, and keeps it for this long (ns). It has work for these
    millionths of the time."""
    poll: Callable[[int, Sequence[int], Sequence[int]], Poll]
    """Sleeps for this time (ns) in real time, without Python's lock, and measures the threads with these clocks of CPU
    time and numbers."""
    delayed: Callable[[Sequence[int]], tuple[int, int]]
    """For how long the caller, and these threads, have waited for a core so far (ns)."""
    asking: Callable[[], bool]
    """Does a thread of this rank wait for an answer of the simulator?"""
    hold: Callable[[int, bool], None]
    """The rank takes this many bytes of the host's memory; are they pinned?"""
    data: Callable[[int, int, int], None]
    """Times of batches of data, ns (``ph_data`` of ``memory.h``)."""
    loader: Callable[[int, int, int, int], None]
    """Facts about the DataLoader that decides (``ph_loader``)."""
    follows: Callable[[], int]
    """For a process without a GPU a ``ph_front`` of ``rank.h``: 0 if its clock is this machine's."""
    latest: Callable[[], int]
    """The latest clock of all ranks (ns)."""
    reach: Callable[[int], None]
    """The clock is at least this from now on (ns)."""

    def is_virtual(self) -> bool:
        """True if this process sees virtual time: not with ``--null``, and not before it is connected or follows
        ranks."""
        return bool(self.connected() and not self.null_mode()) or self.follows() != 0

    @classmethod
    def of(cls, library: ctypes.CDLL) -> Runtime:
        """The runtime of a loaded stub library, its functions' types declared."""
        library.ph_connected.restype = ctypes.c_bool
        library.ph_null_mode.restype = ctypes.c_bool
        library.ph_moves_clock.restype = ctypes.c_bool
        library.ph_now.restype = ctypes.c_int64
        for move in (library.ph_advance, library.ph_sleep, library.ph_reach):
            move.argtypes = [ctypes.c_int64]
            move.restype = None
        for cost in (library.ph_bytes_ns, library.ph_times_ns):
            cost.argtypes, cost.restype = [ctypes.c_int, ctypes.c_size_t], ctypes.c_int64
        library.ph_host_memory.argtypes, library.ph_host_memory.restype = [ctypes.c_int64, ctypes.c_bool], None
        library.ph_data.argtypes, library.ph_data.restype = [ctypes.c_int64] * 3, None
        library.ph_loader.argtypes, library.ph_loader.restype = [ctypes.c_int64] * 4, None
        library.ph_contend.argtypes = [ctypes.c_int64, *(ctypes.c_int64, ctypes.c_double) * 2]
        library.ph_contend.restype = None
        library.ph_apart_begin.argtypes = [ctypes.c_bool]
        library.ph_apart_begin.restype, library.ph_apart_end.restype = None, ctypes.c_int64
        library.ph_apart_from.argtypes, library.ph_apart_from.restype = [ctypes.c_int64] * 2, None
        library.ph_rivals.argtypes, library.ph_rivals.restype = [ctypes.c_int64] * 2, None
        numbers, number = ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int64)
        library.ph_poll.argtypes = [ctypes.c_int64, numbers, numbers, ctypes.c_size_t, number, number]
        library.ph_poll.restype = ctypes.c_bool
        library.ph_delayed.argtypes, library.ph_delayed.restype = [numbers, ctypes.c_size_t, number], None
        library.ph_asking.restype = ctypes.c_bool
        library.ph_latest_clock.restype = ctypes.c_int64
        return cls(
            connected=library.ph_connected,
            null_mode=library.ph_null_mode,
            moves_clock=library.ph_moves_clock,
            now=library.ph_now,
            advance=library.ph_advance,
            sleep=library.ph_sleep,
            bytes_ns=library.ph_bytes_ns,
            times_ns=library.ph_times_ns,
            contend=library.ph_contend,
            apart_begin=library.ph_apart_begin,
            apart_end=library.ph_apart_end,
            apart_from=library.ph_apart_from,
            rivals=library.ph_rivals,
            poll=partial(_poll, library.ph_poll),
            delayed=partial(_delayed, library.ph_delayed),
            asking=library.ph_asking,
            hold=library.ph_host_memory,
            data=library.ph_data,
            loader=library.ph_loader,
            follows=library.ph_follows,
            latest=library.ph_latest_clock,
            reach=library.ph_reach,
        )


def _numbers(values: Sequence[int]) -> Any:
    return (ctypes.c_int * len(values))(*values)


def _poll(poll: Any, ns: int, clocks: Sequence[int], threads: Sequence[int]) -> Poll:
    ended, delayed = ctypes.c_int64(), (ctypes.c_int64 * 2)()
    busy = poll(ns, _numbers(clocks), _numbers(threads), len(clocks), ctypes.byref(ended), delayed)
    return Poll(busy, ended.value, (delayed[0], delayed[1]))


def _delayed(delayed: Any, threads: Sequence[int]) -> tuple[int, int]:
    found = (ctypes.c_int64 * 2)()
    delayed(_numbers(threads), len(threads), found)
    return found[0], found[1]


@dataclass
class Installed:
    """The replaced functions, which `REAL_TIME` modules get."""

    library: ctypes.PyDLL
    replaced: dict[int, Any] = field(default_factory=dict)  # id of our function -> real function
    real: ModuleType = field(default_factory=lambda: ModuleType("time"))
    keep: list[Any] = field(default_factory=list)  # PyMethodDef structures must outlive their functions


_installed: Installed | None = None


def install(clock_library: Path, rank: ctypes.CDLL) -> None:
    """Replaces the functions of ``time`` and ``datetime``; call it before torch is imported.

    `clock_library` is the built ``stub/clock/clock.c``; `rank` the rank runtime, loaded globally.
    """
    global _installed
    if _installed is not None:
        return
    try:
        library = ctypes.PyDLL(str(clock_library))
    except OSError as error:
        raise PhantoraError(f"cannot load {clock_library}: {error}; run `phantora doctor`") from error
    runtime = Runtime.of(rank)
    state = Installed(library)
    state.real.__dict__.update({k: v for k, v in vars(time).items() if k != "__spec__"})
    new: dict[str, Any] = {}
    for name, symbol in (
        ("time", "ph_py_time"),
        ("time_ns", "ph_py_time_ns"),
        ("monotonic", "ph_py_monotonic"),
        ("monotonic_ns", "ph_py_monotonic_ns"),
        ("perf_counter", "ph_py_monotonic"),
        ("perf_counter_ns", "ph_py_monotonic_ns"),
    ):
        new[name] = _builtin(library, name, symbol, state)
    new["sleep"] = _make_sleep(runtime, state.real.sleep)
    new.update(_calendar(runtime, state.real, new["time"]))
    new.update(_clock_gettime(runtime, state.real, new))
    for name, function in new.items():
        state.replaced[id(function)] = getattr(time, name)
        setattr(time, name, function)
    _patch_datetime(runtime, new["time"], state)
    for name, module in list(sys.modules.items()):
        if _keeps_real_time(name):
            _give_real_time(module, state)
    after_import(_keeps_real_time, lambda module: _give_real_time(module, state))
    _installed = state


def real_time() -> ModuleType:
    """The module ``time`` with the clocks of this machine."""
    return time if _installed is None else _installed.real


def watch_lock() -> bool:
    """Lets the clock know from now on when torch's bindings ask for Python's lock (``stub/clock/lock.c``). False: they
    have no such calls."""
    if _installed is None:
        return False
    watch = _installed.library.ph_watch_lock
    watch.restype = ctypes.c_bool
    return bool(watch())


def count_frames() -> None:
    """Charges the Python frames of a connected rank to its host clock (``stub/clock/frames.c``)."""
    if _installed is None:
        return
    count = _installed.library.ph_count_frames
    count.restype = ctypes.c_bool
    if not count():
        raise PhantoraError(
            f"Python {sys.version.split()[0]} has no hook that counts frames: use CPython 3.10 or newer, or "
            "--host-time measured"
        )


def _builtin(library: ctypes.PyDLL, name: str, symbol: str, state: Installed) -> Any:
    """A built-in function object around a C function of `library`."""
    doc = f"{name}() of a simulated rank: the host clock of the simulated machine."
    method = _MethodDef(
        name.encode(), ctypes.cast(getattr(library, symbol), ctypes.c_void_p), _METH_NOARGS, doc.encode()
    )
    state.keep += [method, library]
    create = ctypes.pythonapi.PyCFunction_NewEx
    create.restype = ctypes.py_object
    create.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.py_object]
    return create(ctypes.addressof(method), None, "time")


def _make_sleep(runtime: Runtime, real_sleep: Callable[[float], None]) -> Callable[[float], None]:
    last_end = -POLL_GAP_NS
    in_a_row = 0

    def sleep(seconds: float, /) -> None:
        """sleep(seconds) of a simulated rank: moves its host clock and costs no real time."""
        nonlocal last_end, in_a_row
        if runtime.follows():
            _sleep_in_front(runtime, real_sleep, seconds)
            return
        if not runtime.is_virtual() or not runtime.moves_clock():
            for watch in sleep_watchers:
                watch(seconds)
            real_sleep(seconds)
            return
        duration = int(seconds * 1e9)  # raises for what is not a number, as the real one does
        if duration < 0:
            raise ValueError("sleep length must be non-negative")
        in_a_row = in_a_row + 1 if runtime.now() - last_end < POLL_GAP_NS else 0
        if in_a_row > POLL_SLEEPS:
            real_sleep(min(duration * 1e-9, POLL_REAL_SECONDS * (in_a_row - POLL_SLEEPS)))
        runtime.sleep(duration)
        last_end = runtime.now()

    return sleep


def _sleep_in_front(runtime: Runtime, real_sleep: Callable[[float], None], seconds: float) -> None:
    """A sleep of a process that uses no GPU counts if no rank goes on meanwhile; else it waits for one."""
    before = runtime.latest()
    real_sleep(seconds)
    if runtime.latest() == before:
        runtime.reach(runtime.now() + int(seconds * 1e9))


def _calendar(runtime: Runtime, real: ModuleType, now: Callable[[], float]) -> dict[str, Any]:
    """``localtime()`` and friends without an argument mean now."""

    def of_seconds(name: str) -> Any:
        function = getattr(real, name)

        def call(seconds: float | None = None, /) -> Any:
            return function(now() if seconds is None and runtime.is_virtual() else seconds)

        call.__name__ = call.__qualname__ = name
        call.__doc__ = function.__doc__
        return call

    def asctime(*args: Any) -> Any:
        return real.asctime(*(args or (real.localtime(now()),)))

    def strftime(format: str, *args: Any) -> Any:
        return real.strftime(format, *(args or (real.localtime(now()),)))

    return {
        "localtime": of_seconds("localtime"),
        "gmtime": of_seconds("gmtime"),
        "ctime": of_seconds("ctime"),
        "asctime": asctime,
        "strftime": strftime,
    }


def _clock_gettime(runtime: Runtime, real: ModuleType, new: Mapping[str, Any]) -> dict[str, Any]:
    wall = {real.CLOCK_REALTIME}
    steady = {real.CLOCK_MONOTONIC, real.CLOCK_MONOTONIC_RAW, getattr(real, "CLOCK_BOOTTIME", real.CLOCK_MONOTONIC)}

    def clock_gettime(clock: int, /) -> Any:
        if runtime.is_virtual() and clock in wall | steady:
            return new["time" if clock in wall else "monotonic"]()
        return real.clock_gettime(clock)

    def clock_gettime_ns(clock: int, /) -> Any:
        if runtime.is_virtual() and clock in wall | steady:
            return new["time_ns" if clock in wall else "monotonic_ns"]()
        return real.clock_gettime_ns(clock)

    return {"clock_gettime": clock_gettime, "clock_gettime_ns": clock_gettime_ns}


def _type_dict(cls: type) -> dict[str, Any]:
    """The dictionary behind the read-only view ``cls.__dict__``."""
    (namespace,) = (d for d in gc.get_referents(cls.__dict__) if isinstance(d, dict))
    return namespace


def _patch_datetime(runtime: Runtime, now_seconds: Callable[[], float], state: Installed) -> None:
    """Makes ``datetime.now`` and ``utcnow`` virtual (``today`` and ``date.today`` call ``time.time``).

    The methods are replaced inside the type: a subclass under the same name would break every
    ``type(x) is datetime`` and every registry keyed by the type (pickle, yaml, orjson).
    """
    namespace = _type_dict(datetime.datetime)
    real_now, real_utcnow = namespace["now"], namespace["utcnow"]

    def now(cls: type[datetime.datetime], tz: datetime.tzinfo | None = None) -> datetime.datetime:
        if runtime.is_virtual():
            return cls.fromtimestamp(now_seconds(), tz)
        return real_now.__get__(None, cls)(tz)  # type: ignore[no-any-return]

    def utcnow(cls: type[datetime.datetime]) -> datetime.datetime:
        if runtime.is_virtual():
            return cls.fromtimestamp(now_seconds(), datetime.timezone.utc).replace(tzinfo=None)
        return real_utcnow.__get__(None, cls)()  # type: ignore[no-any-return]

    namespace["now"] = classmethod(now)
    namespace["utcnow"] = classmethod(utcnow)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(datetime.datetime))


def _keeps_real_time(name: str) -> bool:
    return any(name == root or name.startswith(root + ".") for root in REAL_TIME)


def _give_real_time(module: ModuleType, state: Installed) -> None:
    """Replaces ``import time`` and ``from time import ...`` in `module` by the real things."""
    namespace = getattr(module, "__dict__", None)
    if namespace is None:
        return
    for name, value in list(namespace.items()):
        if value is time:
            namespace[name] = state.real
        elif id(value) in state.replaced:
            namespace[name] = state.replaced[id(value)]


PATCH = Patch("clock", When.BEFORE_TORCH, lambda rank: install(rank.stubs.directory / LIBRARY, rank.runtime))
