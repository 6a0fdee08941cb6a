"""Stream capture and graphs through the C interface: what is kept, what is sent again, what is refused and how."""

from __future__ import annotations

import ctypes
import threading
from ctypes import byref, c_float, c_int, c_size_t, c_ulonglong, c_void_p
from pathlib import Path
from typing import Any

import pytest

from phantora.stubs import StubSet
from phantora.wire import layout
from tests.cuda.stublib import Stubs, connected

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
NONE, ACTIVE, INVALIDATED = 0, 1, 2
NON_BLOCKING, NO_TIMING = 1, 2
ILLEGAL_STATE, UPDATE_FAILURE = 401, 910
UNSUPPORTED, INVALID, MERGE, UNMATCHED, UNJOINED, ISOLATION, IMPLICIT, CAPTURED_EVENT, WRONG_THREAD = range(900, 909)
GRAPH = layout.Flag["PH_F_GRAPH"]


class Capture:
    """The calls about capture and graphs, by short names, on the streams and kernels of `Stubs`."""

    def __init__(self, c: Stubs) -> None:
        self.c, self.rt = c, c.rt
        version = c_int()
        assert self.rt.cudaRuntimeGetVersion(byref(version)) == 0
        self.major = version.value // 1000

    def stream(self) -> c_void_p:
        return self.c.stream(NON_BLOCKING)

    def event(self) -> c_void_p:
        return self.c.event(NO_TIMING)

    def begin(self, stream: c_void_p, mode: int = GLOBAL) -> int:
        return int(self.rt.cudaStreamBeginCapture(stream, c_int(mode)))

    def end(self, stream: c_void_p) -> tuple[int, c_void_p]:
        graph = c_void_p()
        return int(self.rt.cudaStreamEndCapture(stream, byref(graph))), graph

    def status(self, stream: c_void_p) -> int:
        status = c_int(-1)
        assert self.rt.cudaStreamIsCapturing(stream, byref(status)) == 0
        return status.value

    def kernel(self, stream: c_void_p, blocks: int = 1) -> int:
        return int(self.c.launch((blocks, 1, 1), (32, 1, 1), stream=stream))

    def record(self, event: c_void_p, stream: c_void_p) -> int:
        return int(self.rt.cudaEventRecord(event, stream))

    def wait(self, stream: c_void_p, event: c_void_p) -> int:
        return int(self.rt.cudaStreamWaitEvent(stream, event, 0))

    def executable(self, graph: c_void_p) -> c_void_p:
        made = c_void_p()
        assert self.rt.cudaGraphInstantiate(byref(made), graph, c_ulonglong(0)) == 0
        return made

    def launch(self, executable: c_void_p, stream: c_void_p) -> int:
        return int(self.rt.cudaGraphLaunch(executable, stream))

    def fork(self, origin: c_void_p, other: c_void_p) -> None:
        event = self.event()
        assert self.record(event, origin) == 0 and self.wait(other, event) == 0

    def nodes(self, graph: c_void_p) -> list[int]:
        count = c_size_t()
        assert self.rt.cudaGraphGetNodes(graph, None, byref(count)) == 0
        found = (c_void_p * count.value)()
        assert self.rt.cudaGraphGetNodes(graph, found, byref(count)) == 0
        return [int(node or 0) for node in found]

    def types(self, graph: c_void_p) -> list[int]:
        kinds = []
        for node in self.nodes(graph):
            kind = c_int(-1)
            assert self.rt.cudaGraphNodeGetType(c_void_p(node), byref(kind)) == 0
            kinds.append(kind.value)
        return kinds


def work(dump: Any) -> list[dict[str, Any]]:
    return [r for r in dump.records if r["kind"] in ("KERNEL", "MEMCPY", "MEMSET", "EVENT_RECORD", "STREAM_WAIT")]


def test_nothing_runs_in_a_capture_and_each_launch_sends_it_all(stub_set: StubSet) -> None:
    def program(c: Stubs) -> Any:
        g, s = Capture(c), c.stream(NON_BLOCKING)
        target = g.stream()
        memory = c.malloc(4096)
        assert g.begin(s) == 0 and g.status(s) == ACTIVE
        assert g.kernel(s, 7) == 0
        assert c.rt.cudaMemsetAsync(memory, 1, c_size_t(64), s) == 0
        assert g.kernel(s, 9) == 0
        status, graph = g.end(s)
        assert status == 0 and g.status(s) == NONE
        executable = g.executable(graph)
        assert g.launch(executable, target) == 0 and g.launch(executable, target) == 0
        return g.types(graph), target.value

    dump = connected(stub_set, program)
    assert dump.value[0] == [0, 2, 0]
    sent = work(dump)
    assert [r["kind"] for r in sent] == ["KERNEL", "MEMSET", "KERNEL"] * 2
    assert all(r["flags"] & GRAPH for r in sent)
    target = dump.of("STREAM_CREATE")[1]["stream"]
    assert {r["stream"] for r in sent} == {target}
    assert [r["grid_x"] for r in dump.of("KERNEL")] == [7, 9, 7, 9]


def test_bytes_move_at_the_launch(stub_set: StubSet) -> None:
    def program(c: Stubs) -> Any:
        g, s = Capture(c), c.stream(NON_BLOCKING)
        device, host = c.malloc(64), c.pinned(64)
        assert device.value is not None
        ctypes.memset(host, 5, 64)
        assert g.begin(s) == 0
        assert c.rt.cudaMemcpyAsync(device, host, c_size_t(64), 1, s) == 0
        assert c.rt.cudaMemsetAsync(device, 7, c_size_t(8), s) == 0
        status, graph = g.end(s)
        assert status == 0
        before = ctypes.string_at(device.value, 16)
        ctypes.memset(host, 6, 64)  # what is there at the launch counts
        assert g.launch(g.executable(graph), s) == 0
        return before, ctypes.string_at(device.value, 16)

    before, after = connected(stub_set, program).value
    assert before == bytes(16)
    assert after == bytes([7] * 8 + [6] * 8)


def test_forks_and_joins_become_lanes_ordered_by_events(stub_set: StubSet) -> None:
    def program(c: Stubs) -> Any:
        g, s, other = Capture(c), c.stream(NON_BLOCKING), c.stream(NON_BLOCKING)
        assert g.begin(s) == 0
        assert g.kernel(s, 1) == 0
        g.fork(s, other)
        assert g.status(other) == ACTIVE
        assert g.kernel(other, 2) == 0 and g.kernel(s, 3) == 0
        g.fork(other, s)
        assert g.kernel(s, 4) == 0
        status, graph = g.end(s)
        assert status == 0 and g.status(other) == NONE
        assert g.launch(g.executable(graph), s) == 0
        return 0

    dump = connected(stub_set, program)
    kernels = {r["grid_x"]: r["stream"] for r in dump.of("KERNEL")}
    assert kernels[1] == kernels[4] and len(set(kernels.values())) == 2
    lanes = [(r["kind"], r["stream"], r["id"]) for r in work(dump)]
    order = [k for k, _, _ in lanes]
    fork = order.index("STREAM_WAIT")  # the second lane waits for the first kernel, the last kernel for both
    assert lanes[fork][2] in {i for k, _, i in lanes[:fork] if k == "EVENT_RECORD"}
    assert order.count("STREAM_WAIT") >= 2


def test_the_graph_knows_nodes_and_dependencies(stub_set: StubSet, tmp_path: Path) -> None:
    dot = tmp_path / "graph.dot"

    def program(c: Stubs) -> Any:
        g, s = Capture(c), c.stream(NON_BLOCKING)
        assert g.begin(s) == 0
        for _ in range(3):
            assert g.kernel(s) == 0
        _, graph = g.end(s)
        nodes, count, roots = g.nodes(graph), c_size_t(0), c_size_t(0)
        assert c.rt.cudaGraphGetRootNodes(graph, None, byref(roots)) == 0
        one = (c_void_p * 1)()
        count.value = 1
        arguments = (c_void_p(nodes[2]), one, *([None] if g.major >= 13 else []), byref(count))
        assert c.rt.cudaGraphNodeGetDependencies(*arguments) == 0
        before = one[0]
        arguments = (c_void_p(nodes[1]), one, *([None] if g.major >= 13 else []), byref(count))
        assert c.rt.cudaGraphNodeGetDependentNodes(*arguments) == 0 and count.value == 1 and one[0] == nodes[2]
        assert c.rt.cudaGraphNodeGetDependentNodes(c_void_p(nodes[2]), None, *arguments[2:]) == 0 and count.value == 0
        assert c.rt.cudaGraphNodeGetDependentNodes(None, *arguments[1:]) == 1
        assert c.rt.cudaGraphDebugDotPrint(graph, str(dot).encode(), 0) == 0
        assert c.rt.cudaGraphDestroy(graph) == 0 and c.rt.cudaGraphDestroy(graph) != 0
        return len(nodes), roots.value, before == nodes[1]

    assert connected(stub_set, program).value == (3, 1, True)
    assert dot.read_text().count("->") == 2 and "probe" in dot.read_text()


def test_update_takes_equal_graphs_only(stub_set: StubSet) -> None:
    def program(c: Stubs) -> Any:
        g, s = Capture(c), c.stream(NON_BLOCKING)

        def graph(*blocks: int) -> c_void_p:
            assert g.begin(s) == 0
            for count in blocks:
                assert g.kernel(s, count) == 0
            status, made = g.end(s)
            assert status == 0
            return made

        executable = g.executable(graph(1, 2))
        info = (c_void_p * 3)()
        good = c.rt.cudaGraphExecUpdate(executable, graph(3, 4), info)
        bad = c.rt.cudaGraphExecUpdate(executable, graph(5), info)
        assert g.launch(executable, s) == 0
        return good, bad

    dump = connected(stub_set, program)
    assert dump.value == (0, UPDATE_FAILURE)
    assert [r["grid_x"] for r in dump.of("KERNEL")] == [3, 4]


def waits_for_captured_stream(g: Capture, s: c_void_p) -> int:
    return int(g.rt.cudaStreamSynchronize(s))


def asks_captured_stream(g: Capture, s: c_void_p) -> int:
    return int(g.rt.cudaStreamQuery(s))


def waits_for_the_device(g: Capture, s: c_void_p) -> int:
    return int(g.rt.cudaDeviceSynchronize())


def allocates(g: Capture, s: c_void_p) -> int:
    return int(g.rt.cudaMalloc(byref(c_void_p()), c_size_t(1 << 20)))


def waits_for_an_event_from_outside(g: Capture, s: c_void_p) -> int:
    event, outside = g.event(), g.stream()
    assert g.record(event, outside) == 0
    return g.wait(s, event)


def asks_a_captured_event(g: Capture, s: c_void_p) -> int:
    event = g.event()
    assert g.record(event, s) == 0
    return int(g.rt.cudaEventQuery(event))


def merges_another_capture(g: Capture, s: c_void_p) -> int:
    event, other = g.event(), g.stream()
    assert g.begin(other) == 0 and g.record(event, other) == 0
    error = g.wait(s, event)
    assert g.end(other)[0] == INVALID
    return error


@pytest.mark.parametrize(
    ("breach", "error"),
    [
        (waits_for_captured_stream, UNSUPPORTED),
        (asks_captured_stream, UNSUPPORTED),
        (waits_for_the_device, UNSUPPORTED),
        (allocates, UNSUPPORTED),
        (waits_for_an_event_from_outside, ISOLATION),
        (asks_a_captured_event, CAPTURED_EVENT),
        (merges_another_capture, MERGE),
    ],
)
def test_what_a_capture_forbids_ends_it(stub_set: StubSet, breach: Any, error: int) -> None:
    def program(c: Stubs) -> Any:
        g, s = Capture(c), c.stream(NON_BLOCKING)
        assert g.begin(s) == 0 and g.kernel(s) == 0
        said = breach(g, s)
        state, launch = g.status(s), g.kernel(s)
        ended, graph = g.end(s)
        c.clear()
        after = g.kernel(s), g.status(s)  # the stream works again
        return said, state, launch, ended, graph.value, after

    value = connected(stub_set, program).value
    assert value == (error, INVALIDATED, INVALID, INVALID, None, (0, NONE))


def test_begin_and_end_in_the_wrong_place(stub_set: StubSet) -> None:
    def program(c: Stubs) -> Any:
        g, s, other = Capture(c), c.stream(NON_BLOCKING), c.stream(NON_BLOCKING)
        out = [g.end(s)[0], g.begin(c_void_p(None)), g.begin(s, 3)]
        assert g.begin(s) == 0
        out.append(g.begin(s))
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.append(g.end(s)[0]))
        thread.start()
        thread.join()
        out += found
        assert g.kernel(s) == 0
        g.fork(s, other)
        assert g.kernel(other) == 0
        out.append(g.end(s)[0])
        assert g.begin(s) == 0
        g.fork(s, other)
        out.append(g.end(other)[0])
        out.append(g.end(s)[0])
        return out

    expected = [ILLEGAL_STATE, UNSUPPORTED, 1, ILLEGAL_STATE, WRONG_THREAD, UNJOINED, UNMATCHED, INVALID]
    assert connected(stub_set, program).value == expected


def test_the_legacy_stream_would_wait_for_a_blocking_one(stub_set: StubSet) -> None:
    def program(c: Stubs) -> Any:
        g, blocking = Capture(c), c.stream()
        assert g.begin(blocking) == 0
        error = g.kernel(c_void_p(None))
        ended = g.end(blocking)[0]
        free = c.stream(NON_BLOCKING)
        assert g.begin(free) == 0
        allowed = g.kernel(c_void_p(None))
        return error, ended, allowed, g.end(free)[0]

    assert connected(stub_set, program).value == (IMPLICIT, INVALID, 0, 0)


@pytest.mark.parametrize(
    ("capture", "thread", "elsewhere", "here"),
    [
        (GLOBAL, GLOBAL, UNSUPPORTED, UNSUPPORTED),
        (GLOBAL, THREAD_LOCAL, 0, UNSUPPORTED),
        (GLOBAL, RELAXED, 0, 0),
        (THREAD_LOCAL, GLOBAL, 0, UNSUPPORTED),
        (RELAXED, GLOBAL, 0, 0),
    ],
)
def test_modes_say_who_may_call_what_is_unsafe(
    stub_set: StubSet, capture: int, thread: int, elsewhere: int, here: int
) -> None:
    def program(c: Stubs) -> Any:
        g, s = Capture(c), c.stream(NON_BLOCKING)

        def call() -> int:
            mode = c_int(thread)
            assert c.rt.cudaThreadExchangeStreamCaptureMode(byref(mode)) == 0
            error = allocates(g, s)
            assert c.rt.cudaThreadExchangeStreamCaptureMode(byref(mode)) == 0 and mode.value == thread
            return error

        out: list[int] = []
        assert g.begin(s, capture) == 0
        other = threading.Thread(target=lambda: out.append(call()))
        other.start()
        other.join()
        g.end(s)
        assert g.begin(s, capture) == 0
        out.append(call())
        g.end(s)
        return out

    assert connected(stub_set, program).value == [elsewhere, here]


def test_capture_information(stub_set: StubSet) -> None:
    def program(c: Stubs) -> Any:
        g, s = Capture(c), c.stream(NON_BLOCKING)
        name = "cudaStreamGetCaptureInfo" if g.major >= 13 else "cudaStreamGetCaptureInfo_v3"
        out = []
        for _ in range(2):
            assert g.begin(s) == 0 and g.kernel(s) == 0
            status, number, graph, nodes, count = c_int(), c_ulonglong(), c_void_p(), c_void_p(), c_size_t()
            call = getattr(c.rt, name)
            assert call(s, byref(status), byref(number), byref(graph), byref(nodes), None, byref(count)) == 0
            ended, made = g.end(s)
            out.append((status.value, number.value, graph.value == made.value, count.value, ended))
        return out

    first, second = connected(stub_set, program).value
    assert first[0] == second[0] == ACTIVE and first[2:] == second[2:] == (True, 1, 0)
    assert first[1] != second[1]


def test_a_graph_that_is_captured_cannot_be_destroyed(stub_set: StubSet) -> None:
    """The next question about the capture read freed memory. NVIDIA's documentation forbids it, without a code."""

    def program(c: Stubs) -> Any:
        g, s = Capture(c), c.stream(NON_BLOCKING)
        status, number, graph, nodes, count = c_int(), c_ulonglong(), c_void_p(), c_void_p(), c_size_t()
        reported = byref(status), byref(number), byref(graph), byref(nodes), byref(count)
        assert g.begin(s) == 0 and g.kernel(s) == 0
        out = [c.cu.cuStreamGetCaptureInfo_v2(s, *reported), c.rt.cudaGraphDestroy(graph), g.kernel(s)]
        out += [c.cu.cuStreamGetCaptureInfo_v2(s, *reported), g.end(s)[0], c.rt.cudaGraphDestroy(graph)]
        return [*out, count.value]

    assert connected(stub_set, program).value == [0, 1, 0, 0, 0, 0, 1]


def test_external_events_are_recorded_by_launches(stub_set: StubSet) -> None:
    def program(c: Stubs) -> Any:
        g, s, event = Capture(c), c.stream(NON_BLOCKING), c.event()
        assert g.begin(s) == 0 and g.kernel(s) == 0
        assert c.rt.cudaEventRecordWithFlags(event, s, 1) == 0
        status, graph = g.end(s)
        assert status == 0 and g.types(graph) == [0, 7]
        assert g.launch(g.executable(graph), s) == 0
        assert c.rt.cudaEventSynchronize(event) == 0
        return c.rt.cudaEventElapsedTime(byref(c_float()), event, event)

    assert connected(stub_set, program).value == 0
