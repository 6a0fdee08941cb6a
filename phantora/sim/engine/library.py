"""The C++ engine (``sim/engine``) as a typed Python object."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from phantora.hardware.topology import Flow
from phantora.wire import layout
from phantora.wire.session import Session

IDLE, PRICES, ROWS, DONE, ERROR, MOVED = 0, 1, 2, 4, 8, 16  # enum phc_reason
OPERATOR, KERNEL, COPY, MEMSET, COLLECTIVE, TRANSFER = range(6)  # enum phc_price_kind
NAMES, SIGNATURES = 0, 1
NOT_STARTED, RUNS, WAITS, WAITS_FOR_BYTES, EXITED = range(5)  # phc_rank_state

ROW = layout.dtype(layout.Row)
RECORD = layout.dtype(layout.Record)


class PriceRequest(ctypes.Structure):
    """``phc_price_request`` of engine.h."""

    _fields_ = [
        (name, ctypes.c_int32)
        for name in (
            "id", "kind", "sig", "kernels", "sub", "part", "comm", "dtype", "redop", "root", "src", "dst",
            "concurrent", "duplex",
        )
    ] + [("bytes", ctypes.c_int64)]  # fmt: skip
    id: int
    kind: int
    sig: int
    kernels: int
    sub: int
    part: int
    comm: int
    dtype: int
    redop: int
    root: int
    src: int
    dst: int
    concurrent: int
    duplex: int
    bytes: int


class PriceKernel(ctypes.Structure):
    """``phc_price_kernel``: one launch; grid and block packed as in the KERNEL record."""

    _fields_ = [
        ("name", ctypes.c_int32), ("library", ctypes.c_int32), ("grid", ctypes.c_uint64),
        ("block", ctypes.c_uint64), ("smem", ctypes.c_uint64),
    ]  # fmt: skip
    name: int
    library: int
    grid: int
    block: int
    smem: int


class Status(ctypes.Structure):
    """``phc_status``: how far the simulation has come."""

    _fields_ = [
        ("final_time", ctypes.c_int64), ("records", ctypes.c_int64), ("rows", ctypes.c_int64), ("late", ctypes.c_int64),
        ("alive", ctypes.c_int32), ("blocked", ctypes.c_int32), ("exited", ctypes.c_int32), ("steps", ctypes.c_int32),
        ("overtakes", ctypes.c_int64), ("device_peak", ctypes.c_int64),
    ]  # fmt: skip
    final_time: int
    records: int
    rows: int
    late: int
    alive: int
    blocked: int
    exited: int
    steps: int
    overtakes: int
    device_peak: int


class FlowClass(ctypes.Structure):
    """``phc_flow``: equal flows of a collective or transfer."""

    _fields_ = [(name, ctypes.c_int32) for name in ("src", "dst", "hops", "count", "name", "pad")] + [
        ("bytes", ctypes.c_double),
        ("rate", ctypes.c_double),
    ]


class KernelNature(ctypes.Structure):
    """``phc_nature``: `company`, how many times as long it takes beside communication, and `after` if that was there
    first; `dynamic` and `steady` W at full clock; `clock`, the share of the full clock that its duration holds for;
    `bound`, the share of the duration that goes with the clock; `takes`, of a kernel the share of its pace that
    communication beside it loses, of communication how much of that it feels."""

    _fields_ = [
        (name, ctypes.c_double) for name in ("company", "after", "dynamic", "steady", "clock", "bound", "takes")
    ]


class Engine:
    """Owns one engine over one session. Not thread safe; every call but `run` returns at once."""

    def __init__(self, library: Path, session: Session) -> None:
        self._lib = lib = ctypes.CDLL(str(library))
        handle, i32, i64, f64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_double
        signatures: dict[str, tuple[Any, list[Any]]] = {
            "phc_open": (handle, [handle]),
            "phc_close": (None, [handle]),
            "phc_timing": (None, [handle, i64, i64, i64]),
            "phc_power": (None, [handle, f64, f64, f64, f64, f64]),
            "phc_appetite": (None, [handle, ctypes.c_int, f64]),
            "phc_record": (None, [handle]),
            "phc_play": (None, [handle, ctypes.c_double]),
            "phc_take_records": (i64, [handle, ctypes.c_int, ctypes.c_void_p, i64, ctypes.c_int]),
            "phc_run": (ctypes.c_int, [handle, ctypes.c_int]),
            "phc_next_price": (ctypes.c_int, [handle, ctypes.POINTER(PriceRequest)]),
            "phc_price_kernels": (None, [handle, i32, ctypes.POINTER(PriceKernel)]),
            "phc_set_flows": (
                None,
                [handle, i32, i64, ctypes.POINTER(FlowClass), ctypes.c_int, ctypes.POINTER(i32), ctypes.c_int],
            ),
            "phc_set_nature": (None, [handle, i32, ctypes.POINTER(KernelNature)]),
            "phc_set_price": (None, [handle, i32, ctypes.POINTER(i64), ctypes.c_int, ctypes.c_int, i32]),
            "phc_add_link": (ctypes.c_int, [handle, f64, i32, ctypes.POINTER(i32), ctypes.c_int]),
            "phc_change_link": (None, [handle, ctypes.c_int, i64, f64]),
            "phc_change_link_at_step": (None, [handle, ctypes.c_int, ctypes.c_int, f64]),
            "phc_background": (None, [handle, ctypes.POINTER(i32), ctypes.c_int, f64]),
            "phc_straggler": (None, [handle, ctypes.c_int, f64]),
            "phc_log_flows": (None, [handle]),
            "phc_intern": (i32, [handle, ctypes.c_int, ctypes.c_char_p, i64]),
            "phc_text_count": (i64, [handle, ctypes.c_int]),
            "phc_text": (ctypes.c_void_p, [handle, ctypes.c_int, i32, ctypes.POINTER(i64)]),
            "phc_comm_ranks": (ctypes.c_int, [handle, i32, ctypes.POINTER(i32), ctypes.c_int]),
            "phc_take_rows": (i64, [handle, ctypes.c_void_p, i64, ctypes.c_int]),
            "phc_error": (ctypes.c_char_p, [handle]),
            "phc_diagnose": (ctypes.c_char_p, [handle]),
            "phc_overtake": (ctypes.c_int, [handle, ctypes.POINTER(i32), ctypes.c_int]),
            "phc_give_room": (ctypes.c_int, [handle]),
            "phc_rank_state": (ctypes.c_int, [handle, ctypes.c_int]),
            "phc_rank_died": (None, [handle, ctypes.c_int, ctypes.c_int]),
            "phc_get_status": (None, [handle, ctypes.POINTER(Status)]),
        }
        for name, (result, arguments) in signatures.items():
            function = getattr(lib, name)
            function.restype, function.argtypes = result, arguments
        self._session = session  # keeps the mapping alive
        self._handle = lib.phc_open(session.address)

    def close(self) -> None:
        if self._handle:
            self._lib.phc_close(self._handle)
            self._handle = None

    def set_timing(self, launch_latency_ns: int, kernel_gap_ns: int, crowded_gap_ns: int) -> None:
        """From the call to the earliest start on the GPU; between kernels back to back on a stream, and while two
        or more other streams have work."""
        self._lib.phc_timing(self._handle, launch_latency_ns, kernel_gap_ns, crowded_gap_ns)

    def set_power(
        self, budget: float, exponent: float, communication: float, response_ns: float, reaction_ns: float
    ) -> None:
        """The limiter averages what a GPU draws (W) over `response_ns` and moves the clock, in `reaction_ns`, by the
        share of the `budget` that the mean is below or above it. Dynamic power goes with the clock to the `exponent`;
        a communication kernel draws `communication` W."""
        self._lib.phc_power(self._handle, budget, exponent, communication, response_ns, reaction_ns)

    def set_appetite(self, rank: int, factor: float) -> None:
        """The GPUs of `rank` draw `factor` times the dynamic power of the usual one."""
        self._lib.phc_appetite(self._handle, rank, factor)

    def record(self) -> None:
        """Keeps what the ranks say, for :meth:`take_records`."""
        self._lib.phc_record(self._handle)

    def play(self, host_scale: float) -> None:
        """The rings hold recordings: the engine keeps the ranks' clocks. Host time is scaled."""
        self._lib.phc_play(self._handle, host_scale)

    def run(self, timeout_us: int) -> int:
        """Consumes, advances, answers; sleeps up to `timeout_us` if nothing moved. Bits of reasons."""
        return int(self._lib.phc_run(self._handle, timeout_us))

    def next_price(self) -> PriceRequest | None:
        request = PriceRequest()
        return request if self._lib.phc_next_price(self._handle, ctypes.byref(request)) else None

    def price_kernels(self, request: PriceRequest) -> list[PriceKernel]:
        kernels = (PriceKernel * max(1, request.kernels))()
        self._lib.phc_price_kernels(self._handle, request.id, kernels)
        return list(kernels[: request.kernels])

    def set_nature(self, price: int, nature: KernelNature) -> None:
        """Before :meth:`set_price`."""
        self._lib.phc_set_nature(self._handle, price, ctypes.byref(nature))

    def set_price(self, price: int, durations: tuple[int, ...], cls: int, name: int = -1) -> None:
        """Durations in ns, one per kernel."""
        array = (ctypes.c_int64 * len(durations))(*durations)
        self._lib.phc_set_price(self._handle, price, array, len(durations), cls, name)

    def set_flows(self, price: int, latency_ns: int, flows: Sequence[Flow], names: Sequence[int]) -> None:
        """Before :meth:`set_price`: the operation is `latency_ns`, then these flows, whose routes have `names`."""
        classes = (FlowClass * len(flows))(
            *(
                FlowClass(flow.src, flow.dst, len(flow.links), flow.count, name, 0, flow.bytes, flow.rate)
                for flow, name in zip(flows, names, strict=True)
            )
        )
        links = [link for flow in flows for link in flow.links]
        self._lib.phc_set_flows(
            self._handle, price, latency_ns, classes, len(flows), (ctypes.c_int32 * len(links))(*links), len(links)
        )

    def add_link(self, bandwidth: float, name: int, members: Sequence[int]) -> int:
        """A directed link of `bandwidth` bytes/s. Only operations that one of the ranks `members` takes part in
        can use it; none: any may. Links are numbered from 0."""
        array = (ctypes.c_int32 * len(members))(*members)
        return int(self._lib.phc_add_link(self._handle, bandwidth, name, array, len(members)))

    def change_link(self, link: int, time: int, bandwidth: float) -> None:
        """The link carries `bandwidth` bytes/s from `time` (ns) on."""
        self._lib.phc_change_link(self._handle, link, time, bandwidth)

    def change_link_at_step(self, link: int, step: int, bandwidth: float) -> None:
        """The same, from the moment at which rank 0's GPU has done the step before the `step`-th (counted
        from 1). Rank 0 must be one of the link's members."""
        self._lib.phc_change_link_at_step(self._handle, link, step, bandwidth)

    def background(self, links: Sequence[int], rate: float) -> None:
        """Endless traffic over `links`, of at most `rate` bytes/s."""
        self._lib.phc_background(self._handle, (ctypes.c_int32 * len(links))(*links), len(links), rate)

    def straggler(self, rank: int, factor: float) -> None:
        """Kernels of `rank` take `factor` times as long."""
        self._lib.phc_straggler(self._handle, rank, factor)

    def log_flows(self) -> None:
        """Rows for every flow, and for what every link carries over time."""
        self._lib.phc_log_flows(self._handle)

    def intern(self, table: int, text: str) -> int:
        data = text.encode()
        return int(self._lib.phc_intern(self._handle, table, data, len(data)))

    def text_count(self, table: int) -> int:
        return int(self._lib.phc_text_count(self._handle, table))

    def text(self, table: int, index: int) -> str:
        length = ctypes.c_int64()
        data = self._lib.phc_text(self._handle, table, index, ctypes.byref(length))
        return ctypes.string_at(data, length.value).decode("utf-8", "replace")

    def comm_ranks(self, comm: int) -> tuple[int, ...]:
        """Global ranks of a communicator in the order of its own ranks."""
        ranks = (ctypes.c_int32 * self._session.world_size)()
        count = self._lib.phc_comm_ranks(self._handle, comm, ranks, self._session.world_size)
        return tuple(ranks[:count])

    def take_rows(self, everything: bool, capacity: int = 1 << 16) -> np.ndarray[Any, np.dtype[np.void]]:
        """Up to `capacity` rows that are final, in the log's order; `everything`: the rest too."""
        rows = np.empty(capacity, ROW)
        count = self._lib.phc_take_rows(self._handle, rows.ctypes.data, capacity, int(everything))
        return rows[:count]

    def take_records(self, rank: int, everything: bool, capacity: int = 1 << 16) -> np.ndarray[Any, np.dtype[np.void]]:
        """Up to `capacity` of the records that `rank` has said; without `everything`, only those that are final."""
        records = np.empty(capacity, RECORD)
        count = self._lib.phc_take_records(self._handle, rank, records.ctypes.data, capacity, int(everything))
        taken: np.ndarray[Any, np.dtype[np.void]] = records[:count].copy()
        return taken

    def error(self) -> str:
        return str(self._lib.phc_error(self._handle).decode())

    def diagnose(self) -> str:
        return str(self._lib.phc_diagnose(self._handle).decode())

    def overtake(self, sleepers: list[int]) -> bool:
        array = (ctypes.c_int32 * max(1, len(sleepers)))(*sleepers)
        return bool(self._lib.phc_overtake(self._handle, array, len(sleepers)))

    def give_room(self) -> bool:
        """Lets the first of those that wait for room in a stream's queue do without; False: nobody does."""
        return bool(self._lib.phc_give_room(self._handle))

    def rank_state(self, rank: int) -> int:
        return int(self._lib.phc_rank_state(self._handle, rank))

    def rank_died(self, rank: int, status: int) -> None:
        self._lib.phc_rank_died(self._handle, rank, status)

    def status(self) -> Status:
        status = Status()
        self._lib.phc_get_status(self._handle, ctypes.byref(status))
        return status
