"""Records of calls in the ring: their kind, their fields, waited for or not."""

from __future__ import annotations

import ctypes
import threading
from ctypes import byref, c_float, c_int, c_size_t, c_uint, c_void_p
from typing import Any

import pytest

from phantora.stubs import StubSet
from phantora.wire import layout
from tests.cuda.calls import D2D, D2H, DEFAULT, H2D, Attribute, Config, Dim3
from tests.cuda.stublib import Stubs, connected
from tests.support import ringdump

SYNC, TIMING, HELPER = layout.Flag["PH_F_SYNC"], layout.Flag["PH_F_TIMING"], layout.Flag["PH_F_HELPER"]
COPIES = layout.Copy.names()
KIB = 1024


def launches(dump: ringdump.Dump) -> list[dict[str, Any]]:
    return [r for r in dump.records if r["kind"] in ("KERNEL", "MEMCPY", "MEMSET", "HOST_FUNC")]


def test_a_launch_carries_shape_and_demangled_name(stub_set: StubSet) -> None:
    def program(c: Stubs) -> int:
        s = c.stream()
        assert c.launch((70000, 3, 2), (32, 4, 8), 4096, stream=s) == 0
        assert c.launch((1, 1, 1), (1, 1, 1)) == 0
        assert c.launch((0, 1, 1), (1, 1, 1)) != 0  # refused: no record
        return 0

    dump = connected(stub_set, program)
    first, second = dump.of("KERNEL")
    assert [first[f"grid_{axis}"] for axis in "xyz"] == [70000, 3, 2]
    assert [first[f"block_{axis}"] for axis in "xyz"] == [32, 4, 8]
    assert first["shared_bytes"] == 4096
    assert first["stream"] == dump.of("STREAM_CREATE")[0]["stream"] and second["stream"] == 0
    (name,) = dump.of("DEFINE_NAME")  # once for both
    assert name["blob"] == b"probe(int*)" and first["id"] == second["id"] == name["id"]


# (destination, source, bytes, kind, asynchronous) -> the copy's kind, and whether the host waits.
COPY_TABLE = [
    ("device", "device", 64, D2D, False, "D2D", False),
    ("device", "device", 64, DEFAULT, True, "D2D", False),
    ("device", "peer", 64, DEFAULT, True, "P2P", False),
    ("device", "pinned", 64, H2D, False, "H2D_PINNED", True),
    ("device", "pinned", 64, H2D, True, "H2D_PINNED", False),
    ("device", "pageable", 64, H2D, False, "H2D_PAGEABLE", True),
    ("device", "pageable", 64 * KIB, H2D, True, "H2D_PAGEABLE", False),
    ("device", "pageable", 64 * KIB + 1, H2D, True, "H2D_PAGEABLE", True),
    ("pinned", "device", 64, D2H, True, "D2H_PINNED", False),
    ("pinned", "device", 64, D2H, False, "D2H_PINNED", True),
    ("pageable", "device", 64, D2H, True, "D2H_PAGEABLE", True),
    ("pageable", "device", 64, DEFAULT, False, "D2H_PAGEABLE", True),
    ("pageable", "pinned", 64, DEFAULT, True, "H2H", True),
    ("managed", "device", 64, DEFAULT, True, "D2D", False),
]


def test_copies_wait_where_cuda_waits(stub_set: StubSet) -> None:
    def program(c: Stubs) -> int:
        c.set_device(1)
        places = {"peer": c.malloc(128 * KIB)}
        c.set_device(0)
        managed = c_void_p()
        assert c.rt.cudaMallocManaged(byref(managed), c_size_t(128 * KIB), c_uint(1)) == 0
        places |= {
            "device": c.malloc(128 * KIB),
            "pinned": c.pinned(128 * KIB),
            "pageable": c.host(128 * KIB),
            "managed": managed,
        }
        other = {"device": c.malloc(128 * KIB)}
        s = c.stream()
        for to, source, size, kind, is_async, _, _ in COPY_TABLE:
            dst, src = places[to], (other if to == source else places)[source]
            if is_async:
                assert c.rt.cudaMemcpyAsync(dst, src, c_size_t(size), c_int(kind), s) == 0
            else:
                assert c.copy(dst, src, size, kind) == 0
        assert c.copy(places["device"], places["pinned"], 0, H2D) == 0  # nothing to do: no record
        return 0

    records = connected(stub_set, program, devices=2).of("MEMCPY")
    got = [(COPIES[r["id"]], bool(r["flags"] & SYNC), r["bytes"]) for r in records]
    assert got == [(copy, waits, size) for _, _, size, _, _, copy, waits in COPY_TABLE]
    assert [r["peer"] for r in records if COPIES[r["id"]] == "P2P"] == [1]
    assert all(r["slot"] != 0xFF for r in records if r["flags"] & SYNC)
    assert [r["stream"] for r in records] == [2 if row[4] else 0 for row in COPY_TABLE]


def test_memsets_and_rows(stub_set: StubSet) -> None:
    def program(c: Stubs) -> list[int]:
        d, h = c.malloc(4096), c.host(64)
        assert c.rt.cudaMemset2D(d, c_size_t(32), c_int(7), c_size_t(3), c_size_t(2)) == 0
        assert c.cu.cuMemsetD32Async(d, c_uint(0x01020304), c_size_t(1), c_void_p(None)) == 0
        assert c.copy(h, d, 64, D2H) == 0
        return list(ctypes.string_at(h, 40))

    dump = connected(stub_set, program)
    assert dump.value == [4, 3, 2, 1] + [0] * 28 + [7, 7, 7] + [0] * 5
    assert [r["bytes"] for r in dump.of("MEMSET")] == [6, 4]


def test_large_copies_read_as_zero_and_small_ones_are_true(stub_set: StubSet) -> None:
    size = 4 << 20

    def program(c: Stubs) -> list[int]:
        d, h, back = c.malloc(size), c.host(size), c.host(size)
        ctypes.memset(h, 5, size)
        ctypes.memset(back, 9, size)
        out = []
        for count in (1000, size):
            assert c.copy(d, h, count, H2D) == 0 and c.copy(back, d, count, D2H) == 0
            out.append(ctypes.string_at(back, 1)[0])
        assert c.rt.cudaMemcpy2D(d, c_size_t(64), h, c_size_t(64), c_size_t(64), c_size_t(size // 64), c_int(H2D)) == 0
        assert c.copy(back, d, 64, D2H) == 0
        return [*out, ctypes.string_at(back, 1)[0]]

    assert connected(stub_set, program).value == [5, 0, 0]


def test_events_and_waits(stub_set: StubSet) -> None:
    def program(c: Stubs) -> Any:
        timed, plain, never, s, ms = c.event(), c.event(2), c.event(), c.stream(1), c_float()
        assert c.rt.cudaEventRecord(timed, s) == 0 and c.rt.cudaEventRecord(plain, None) == 0
        assert c.rt.cudaStreamWaitEvent(s, plain, c_uint(0)) == 0
        assert c.rt.cudaStreamWaitEvent(s, never, c_uint(0)) == 0  # never recorded: no wait
        assert c.rt.cudaEventQuery(timed) == 0 and c.rt.cudaEventQuery(timed) == 0
        assert c.rt.cudaEventElapsedTime(byref(ms), timed, timed) == 0
        assert c.rt.cudaEventSynchronize(timed) == 0
        assert [c.rt.cudaEventDestroy(e) for e in (timed, plain, never)] == [0, 0, 0]
        return c.rt.cudaEventQuery(timed), ms.value

    dump = connected(stub_set, program)
    assert dump.value == (400, 0.0)
    timed, plain = dump.of("EVENT_RECORD")
    assert timed["flags"] & TIMING and not plain["flags"] & TIMING
    assert [(w["stream"], w["id"]) for w in dump.of("STREAM_WAIT")] == [(timed["stream"], plain["id"])]
    assert len(dump.of("EVENT_QUERY")) == 1  # the completion is known from then on
    assert not dump.of("EVENT_TIME") and not dump.of("EVENT_SYNC")
    assert dump.of("STREAM_CREATE")[0]["flags"] & layout.Flag["PH_F_NONBLOCKING"]


def test_host_functions_run_in_order_on_a_helper_thread(stub_set: StubSet) -> None:
    def program(c: Stubs) -> Any:
        seen: list[tuple[int, bool]] = []
        main = threading.get_ident()
        function = ctypes.CFUNCTYPE(None, c_void_p)(
            lambda data: seen.append((data or 0, threading.get_ident() == main))
        )
        s = c.stream()
        for i in range(1, 21):
            assert c.launch((1, 1, 1), (1, 1, 1), stream=s) == 0
            assert c.rt.cudaLaunchHostFunc(s, function, c_void_p(i)) == 0
        assert c.rt.cudaStreamSynchronize(s) == 0
        return list(seen)

    dump = connected(stub_set, program)
    assert dump.value == [(i, False) for i in range(1, 21)]
    assert [r["kind"] for r in launches(dump)] == ["KERNEL", "HOST_FUNC"] * 20
    gates = dump.of("EVENT_SYNC")
    assert len(gates) == 20 and all(gate["flags"] & HELPER for gate in gates)
    assert len(dump.of("EVENT_DESTROY")) == 20


def test_a_query_is_not_answered_before_its_time(stub_set: StubSet, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [(1, -1), (0, 0)]
    original = ringdump.Reader.answer

    def answer(self: ringdump.Reader, record: dict[str, Any]) -> None:
        original(self, record) if record["kind"] != "EVENT_QUERY" else reply(self, record)

    def reply(self: ringdump.Reader, record: dict[str, Any]) -> None:
        slot = self.replies[record["slot"] : record["slot"] + 1]
        slot["status"], slot["time"] = answers.pop(0)
        slot["value"], slot["length"], slot["futex"] = 0, 0, 1
        self.wake(slot["futex"])

    monkeypatch.setattr(ringdump.Reader, "answer", answer)

    def program(c: Stubs) -> list[int]:
        e = c.event()
        c.rt.cudaEventRecord(e, None)
        return [c.rt.cudaEventQuery(e), c.clear(), c.rt.cudaEventQuery(e), c.rt.cudaEventQuery(e), c.clear()]

    dump = connected(stub_set, program)
    assert dump.value == [600, 600, 0, 0, 0]
    assert len(dump.of("EVENT_QUERY")) == 2


def test_calls_cost_host_time_after_their_record(stub_set: StubSet) -> None:
    def program(c: Stubs) -> int:
        for _ in range(3):
            assert c.launch((1, 1, 1), (1, 1, 1)) == 0
        return int(c.rank.ph_now())

    dump = connected(stub_set, program, api_ns={"LAUNCH": 2700})
    times = [r["time"] for r in dump.of("KERNEL")]
    assert [t - times[0] for t in times] == [0, 2700, 5400] and dump.value - times[0] == 8100


def test_launch_attributes(stub_set: StubSet) -> None:
    def program(c: Stubs) -> list[int]:
        out = []
        for attribute, value in ((4, (2, 1, 1)), (2, (1, 0, 0))):
            item = Attribute(id=attribute)
            item.value[0], item.value[1], item.value[2] = value
            config = Config(Dim3(4, 1, 1), Dim3(64, 1, 1), 128, None, ctypes.pointer(item), 1)
            out.append(c.rt.cudaLaunchKernelExC(byref(config), c.kernel, None))
            out.append(c.cu.cuLaunchKernelEx(None, c.kernel, None, None))
        return out

    dump = connected(stub_set, program)
    assert dump.value == [0, 1, 0, 1]
    assert [r["shared_bytes"] for r in dump.of("KERNEL")] == [128, 128]


def test_handles_are_shared_by_runtime_and_driver(stub_set: StubSet) -> None:
    def program(c: Stubs) -> list[int]:
        s, e, kernel = c_void_p(), c_void_p(), c_void_p()
        out = [c.cu.cuStreamCreate(byref(s), c_uint(1)), c.cu.cuEventCreate(byref(e), c_uint(0))]
        out += [c.rt.cudaEventRecord(e, s), c.cu.cuEventQuery(e), c.rt.cudaStreamSynchronize(s)]
        out += [c.rt.cudaGetFuncBySymbol(byref(kernel), c.kernel)]
        shape = [c_uint(1)] * 6
        out += [c.cu.cuLaunchKernel(kernel, *shape, c_uint(0), s, None, None)]
        out += [c.rt.cudaStreamDestroy(s), c.cu.cuStreamDestroy_v2(s), c.cu.cuStreamSynchronize(s)]
        return out

    dump = connected(stub_set, program)
    assert dump.value == [0] * 8 + [400, 400]
    assert len(dump.of("KERNEL")) == 1
