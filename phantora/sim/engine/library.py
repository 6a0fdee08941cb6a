"""The C++ engine (``sim/engine``) as a typed Python object."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from phantora.fold.mesh import Fold
from phantora.hardware.topology import Flow
from phantora.wire import engine as interface
from phantora.wire import layout
from phantora.wire.engine import KernelProfile, Noise, PowerLimit, PowerState, PriceKernel, PriceRequest, Status, Timing
from phantora.wire.session import Session

__all__ = [
    "CANNOT_FOLD",
    "COLLECTIVE",
    "COPY",
    "DONE",
    "ERROR",
    "EXITED",
    "IDLE",
    "KERNEL",
    "MEMSET",
    "MOVED",
    "NAMES",
    "NOT_STARTED",
    "OPERATOR",
    "OTHER",
    "PAIR",
    "PEER_COPY",
    "PRICES",
    "PUT_SIGNAL",
    "RECORD",
    "ROW",
    "ROWS",
    "RUNS",
    "SIGNATURES",
    "SLEPT",
    "TRANSFER",
    "WAITS",
    "WAITS_FOR_BYTES",
    "WAIT_SIGNAL",
    "Engine",
    "KernelProfile",
    "Noise",
    "PowerLimit",
    "PowerState",
    "PriceKernel",
    "PriceRequest",
    "Status",
    "Timing",
]

IDLE, PRICES, ROWS, DONE, ERROR, MOVED, SLEPT = (1 << bit >> 1 for bit in range(len(interface.Reason.members)))
OPERATOR, KERNEL, COPY, MEMSET, COLLECTIVE, TRANSFER = range(len(interface.PriceKind.members))
PAIR, PEER_COPY, PUT_SIGNAL, WAIT_SIGNAL = range(len(interface.TransferKind.members))
NAMES, SIGNATURES = range(len(interface.TextTable.members))
NOT_STARTED, RUNS, WAITS, WAITS_FOR_BYTES, EXITED = range(len(interface.RankState.members))
OTHER, CANNOT_FOLD = range(len(interface.FailureKind.members))

ROW = layout.dtype(layout.Row)
RECORD = layout.dtype(layout.Record)


class Engine:
    """Owns one engine over one session. Not thread safe; every call but `run` returns at once."""

    def __init__(self, library: Path, session: Session) -> None:
        self._lib = interface.bind(library)
        self._session = session  # keeps the mapping alive
        self._handle = self._lib.phe_open(session.address)
        self._rows, self._records = np.empty(0, ROW), np.empty(0, RECORD)

    def close(self) -> None:
        """Frees the engine. Nothing else may be called afterwards."""
        if self._handle:
            self._lib.phe_close(self._handle)
            self._handle = None

    def set_timing(self, timing: Timing, kind: int = 0) -> None:
        """Sets the constants of time of the GPUs of a kind."""
        self._lib.phe_set_timing(self._handle, kind, ctypes.byref(timing))

    def set_power(self, limit: PowerLimit, kind: int = 0) -> None:
        """Sets the power limit of each GPU of a kind."""
        self._lib.phe_set_power(self._handle, kind, ctypes.byref(limit))

    def set_power_factor(self, rank: int, factor: float) -> None:
        """Sets the power of work on the GPUs of `rank` to `factor` times the usual one."""
        self._lib.phe_set_power_factor(self._handle, rank, factor)

    def start_power(self, rank: int, state: PowerState | None) -> None:
        """The limiter of the GPU of `rank` goes on from `state` when its first step ends; None: as it is then."""
        self._lib.phe_start_power(self._handle, rank, ctypes.byref(state) if state is not None else None)

    def power(self, rank: int) -> PowerState | None:
        """Power state of the GPU of `rank` once it has settled, if its steps are repeated; None: no step has ended,
        or :meth:`start_power` was not called."""
        state = PowerState()
        return state if self._lib.phe_get_power(self._handle, rank, ctypes.byref(state)) else None

    def record(self) -> None:
        """Keeps what the ranks say, for :meth:`take_records`."""
        self._lib.phe_record(self._handle)

    def play(self, host_scale: float) -> None:
        """The rings hold recordings: the engine keeps the ranks' clocks. Host time is scaled."""
        self._lib.phe_play(self._handle, host_scale)

    def set_noise(self, noise: Noise) -> None:
        """The run is a sample with this noise of GPUs and links."""
        self._lib.phe_set_noise(self._handle, ctypes.byref(noise))

    def run(self, waiting_us: int, resting_us: int | None = None) -> int:
        """Consumes, advances, answers, until the caller is needed or 50 ms have passed. Where nothing moves it sleeps:
        up to `waiting_us` while a rank waits for an answer, else up to `resting_us` (None: the same); 0: it returns.
        Bits of reasons."""
        return int(self._lib.phe_run(self._handle, waiting_us, waiting_us if resting_us is None else resting_us))

    def next_price(self) -> PriceRequest | None:
        """The engine's next request for a price; None if there is none."""
        request = PriceRequest()
        return request if self._lib.phe_next_price(self._handle, ctypes.byref(request)) else None

    def price_kernels(self, request: PriceRequest) -> list[PriceKernel]:
        """The kernels that a request wants priced together."""
        kernels = (PriceKernel * max(1, request.kernels))()
        self._lib.phe_price_kernels(self._handle, request.id, kernels)
        return list(kernels[: request.kernels])

    def set_profile(self, price: int, profile: KernelProfile) -> None:
        """Before :meth:`set_price`."""
        self._lib.phe_set_profile(self._handle, price, ctypes.byref(profile))

    def set_price(self, price: int, durations: tuple[int, ...], name: int = -1) -> None:
        """Durations in ns, one per kernel; `name`: of a communication kernel."""
        array = (ctypes.c_int64 * len(durations))(*durations)
        self._lib.phe_set_price(self._handle, price, array, len(durations), name)

    def set_flows(
        self, price: int, latency_ns: int, flows: Sequence[Flow], names: Sequence[int], slowed: float = 0.0
    ) -> None:
        """Before :meth:`set_price`: the operation is `latency_ns`, then these flows, with routes of `names`. It
        feels the share `slowed` of the communication slowdown by kernels on the GPUs at the flows' ends."""
        classes = (interface.Flow * len(flows))(
            *(
                interface.Flow(flow.src, flow.dst, len(flow.links), flow.count, name, 0, flow.bytes, flow.rate)
                for flow, name in zip(flows, names, strict=True)
            )
        )
        links = [link for flow in flows for link in flow.links]
        array = (ctypes.c_int32 * len(links))(*links)
        self._lib.phe_set_flows(self._handle, price, latency_ns, slowed, classes, len(flows), array, len(links))

    def add_link(self, bandwidth: float, name: int, members: Sequence[int]) -> int:
        """A directed link of `bandwidth` bytes/s. Only operations that one of the ranks `members` takes part in
        can use it; none: any may. Links are numbered from 0."""
        array = (ctypes.c_int32 * len(members))(*members)
        return int(self._lib.phe_add_link(self._handle, bandwidth, name, array, len(members)))

    def change_link(self, link: int, time: int, bandwidth: float) -> None:
        """The link carries `bandwidth` bytes/s from `time` (ns) on."""
        self._lib.phe_change_link(self._handle, link, time, bandwidth)

    def set_mark(self, prefix: str) -> None:
        """Ends of annotations with names that begin with `prefix` are marks, counted from 1."""
        self._lib.phe_set_mark(self._handle, prefix.encode())

    def change_link_at_mark(self, link: int, mark: int, bandwidth: float) -> None:
        """As :meth:`change_link`, from the moment at which rank 0's GPU has done what was launched before the
        `mark`-th mark. Rank 0 must be one of the link's members."""
        self._lib.phe_change_link_at_mark(self._handle, link, mark, bandwidth)

    def background(self, links: Sequence[int], rate: float) -> None:
        """Endless traffic over `links`, of at most `rate` bytes/s."""
        self._lib.phe_background(self._handle, (ctypes.c_int32 * len(links))(*links), len(links), rate)

    def throttle(self, rank: int, start: int, end: int, factor: float) -> None:
        """Kernels of `rank` that begin between `start` and `end` (ns) take `factor` times as long."""
        self._lib.phe_throttle(self._handle, rank, start, end, factor)

    def straggler(self, rank: int, factor: float) -> None:
        """Kernels of `rank` take `factor` times as long."""
        self._lib.phe_straggler(self._handle, rank, factor)

    def fold(self, fold: Fold) -> None:
        """The run is folded; each representative must match one of its neighbours."""
        numbers = ctypes.c_int32 * len(fold.axes)
        expanded, first_only = ([getattr(axis, name) for axis in fold.axes] for name in ("expanded", "first_only"))
        self._lib.phe_fold(self._handle, numbers(*fold.sizes), numbers(*expanded), numbers(*first_only), len(fold.axes))
        for one in fold.comparisons():
            ranks = (one.representative, one.before, one.after)
            self._lib.phe_compare(self._handle, *ranks, one.axis.encode(), one.uneven)

    def add_pipeline(self, ranks: Sequence[int], stages: Sequence[int], factors: Sequence[Sequence[float]]) -> None:
        """Processes of a folded run that represent several pipelines: `factors` has the power factors of the GPUs of
        each pipeline. A process has the largest factor at first. From the second optimizer step on it has that of the
        slowest pipeline, by the loads of the step before. A process of stage -1 follows that choice."""
        numbers, flat = ctypes.c_int32 * len(ranks), [factor for each in factors for factor in each]
        array = (ctypes.c_double * len(flat))(*flat)
        self._lib.phe_add_pipeline(self._handle, numbers(*ranks), numbers(*stages), len(ranks), array, len(factors))

    def log_flows(self) -> None:
        """Rows for every flow, and for what every link carries over time."""
        self._lib.phe_log_flows(self._handle)

    def log_briefly(self) -> None:
        """No rows of memory, of recorded events, and of streams that wait for them."""
        self._lib.phe_log_briefly(self._handle)

    def intern(self, table: int, text: str) -> int:
        """Number of a text in one of the engine's tables; it is added if it is new."""
        data = text.encode()
        return int(self._lib.phe_intern(self._handle, table, data, len(data)))

    def text_count(self, table: int) -> int:
        """Number of texts in one of the engine's tables."""
        return int(self._lib.phe_text_count(self._handle, table))

    def text(self, table: int, index: int) -> str:
        """A text of one of the engine's tables. Broken UTF-8 is replaced."""
        length = ctypes.c_int64()
        data = self._lib.phe_text(self._handle, table, index, ctypes.byref(length))
        return ctypes.string_at(data, length.value).decode("utf-8", "replace")

    def comm_ranks(self, comm: int) -> tuple[int, ...]:
        """Global ranks of a communicator in the order of its own ranks."""
        ranks = (ctypes.c_int32 * self._session.world_size)()
        count = self._lib.phe_comm_ranks(self._handle, comm, ranks, self._session.world_size)
        return tuple(ranks[:count])

    def take_rows(self, everything: bool, capacity: int = 1 << 16) -> np.ndarray[Any, np.dtype[np.void]]:
        """Up to `capacity` rows that are final, in the log's order; `everything`: the rest too. They are there until
        the next call."""
        if len(self._rows) < capacity:
            self._rows = np.empty(capacity, ROW)  # kept: new memory of 10 MB at each call costs more than the call
        count = self._lib.phe_take_rows(self._handle, self._rows.ctypes.data, capacity, int(everything))
        return self._rows[:count]

    def take_records(self, rank: int, everything: bool, capacity: int = 1 << 16) -> np.ndarray[Any, np.dtype[np.void]]:
        """Up to `capacity` of the records of `rank`; without `everything`, only those that are final."""
        if len(self._records) < capacity:
            self._records = np.empty(capacity, RECORD)
        count = self._lib.phe_take_records(self._handle, rank, self._records.ctypes.data, capacity, int(everything))
        taken: np.ndarray[Any, np.dtype[np.void]] = layout.opaque(self._records[:count]).copy().view(RECORD)
        return taken

    def error(self) -> str:
        """The error in one line; empty without one."""
        return str(self._lib.phe_error(self._handle).decode())

    def error_kind(self) -> int:
        """OTHER or CANNOT_FOLD, once :meth:`run` has returned ERROR."""
        return int(self._lib.phe_error_kind(self._handle))

    def unlike(self) -> int | None:
        """The representative of a folded run that matches none of its neighbours."""
        rank = int(self._lib.phe_unlike(self._handle))
        return rank if rank >= 0 else None

    def diagnose(self) -> str:
        """Text about the waits of the ranks."""
        return str(self._lib.phe_diagnose(self._handle).decode())

    def release_sleepers(self, sleepers: Sequence[int]) -> bool:
        """Ranks asleep outside CUDA hold no rank back: the earliest answer that this allows is given, and their clocks
        move to at least its time. False: nothing moved."""
        array = (ctypes.c_int32 * max(1, len(sleepers)))(*sleepers)
        return bool(self._lib.phe_release_sleepers(self._handle, array, len(sleepers)))

    def give_room(self) -> bool:
        """Lets the first of those that wait for room in a stream's queue do without; False: none does."""
        return bool(self._lib.phe_give_room(self._handle))

    def rank_state(self, rank: int) -> int:
        """State of a rank, a member of ``RankState``."""
        return int(self._lib.phe_state_of_rank(self._handle, rank))

    def rank_died(self, rank: int, status: int) -> None:
        """Notes that a rank has ended, with its exit status."""
        self._lib.phe_rank_died(self._handle, rank, status)

    def keep_open(self, open: bool) -> None:
        """Says that more processes may come after all have gone: then the run is not done."""
        self._lib.phe_keep_open(self._handle, int(open))

    def status(self) -> Status:
        """Counters and clocks of the engine; times in ns."""
        status = Status()
        self._lib.phe_get_status(self._handle, ctypes.byref(status))
        return status
