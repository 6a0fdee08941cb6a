"""The rank runtime (stub/rank), driven through ctypes in a forked child."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import threading
from ctypes import CDLL
from typing import Any

import pytest

from phantora import stubs
from phantora.stubs import sources
from phantora.wire import layout
from phantora.wire.session import Session
from tests.support.ringdump import emit, make_session, rank_library, run

PAGE = 4096
MIB = 1 << 20
TRUE_COPY = MIB  # PH_TRUE_COPY_BYTES
DEVICE_SPACE, PINNED_SPACE = 1, 2


@pytest.fixture(scope="module")
def rank(stub_set: stubs.StubSet) -> Any:
    return stub_set.rank


def read(pointer: int, size: int) -> bytes:
    return ctypes.string_at(pointer, size)


def write(library: CDLL, pointer: int, data: bytes) -> None:
    """Stores true bytes as the tracer does."""
    ctypes.memmove(pointer, data, len(data))
    library.ph_memory_wrote(pointer, len(data))


def host(data: bytes) -> Any:
    return ctypes.create_string_buffer(data, len(data))


def resident_kib() -> int:
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith("RssAnon")).split()[1])


# ---------------------------------------------------------------- ring


def test_start_and_exit_frame_the_records(rank: Any) -> None:
    dump = run(lambda library: emit(library, "MEMSET", bytes=7, stream=3, op=5), rank, devices=2)
    assert dump.kinds() == ["RANK_START", "MEMSET", "RANK_EXIT"]
    assert dump.records[0]["devices"] == 2
    assert {k: dump.records[1][k] for k in ("bytes", "stream", "op", "slot", "thread", "flags")} == {
        "bytes": 7,
        "stream": 3,
        "op": 5,
        "slot": 0xFF,
        "thread": 0,
        "flags": 0,
    }


def test_ring_wraps_around_in_order(rank: Any) -> None:
    count = 3 * layout.RING_RECORDS + 17

    def body(library: CDLL) -> None:
        for i in range(count):
            emit(library, "MEMSET", bytes=i)

    assert [r["bytes"] for r in run(body, rank).of("MEMSET")] == list(range(count))


@pytest.mark.parametrize("size", [1, 55, 56, 57, 5000, 600_000])
def test_blob_arrives_whole(rank: Any, size: int) -> None:
    blob = bytes(i * 7 % 251 for i in range(size))  # the largest needs more records than the ring has
    dump = run(lambda library: emit(library, "DEFINE_NAME", blob, id=1), rank)
    assert dump.of("DEFINE_NAME")[0]["blob"] == blob


def test_blobs_of_two_threads_do_not_mix(rank: Any) -> None:
    def body(library: CDLL) -> None:
        def send(letter: bytes) -> None:
            for _ in range(300):
                emit(library, "DEFINE_NAME", letter * 500)

        threads = [threading.Thread(target=send, args=(letter,)) for letter in (b"a", b"b", b"c")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    blobs = [record["blob"] for record in run(body, rank).of("DEFINE_NAME")]
    assert sorted(blobs) == [letter * 500 for letter in (b"a", b"b", b"c") for _ in range(300)]


def what_a_rank_says(rank: Any, session: Session, records: int) -> str:
    """Its standard error, if it emits that many records; it must end with status 70."""
    messages = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(messages[1], 2)
        library = rank_library(rank)
        library.ph_connect(session.fd, 0, 0, 1)
        for i in range(records):
            emit(library, "MEMSET", bytes=i)
        os._exit(0)
    os.close(messages[1])
    with os.fdopen(messages[0]) as file:
        text = file.read()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 70
    return text


def test_full_ring_without_simulator_ends_the_rank(rank: Any) -> None:
    session = make_session()
    gone = os.fork()
    if gone == 0:
        os._exit(0)
    os.waitpid(gone, 0)
    session.header["sim_pid"] = gone
    assert what_a_rank_says(rank, session, 2 * layout.RING_RECORDS) == "phantora: the simulator is gone; rank 0 ends\n"
    session.close()


def test_abort_ends_the_rank_silently(rank: Any) -> None:
    session = make_session()
    session.header["sim_state"] = layout.SimState.ABORTED
    assert what_a_rank_says(rank, session, 1) == ""
    session.close()


@pytest.mark.parametrize(("field", "value"), [("magic", 1), ("version", 99), ("layout", 1)])
def test_foreign_memory_is_refused(rank: Any, field: str, value: int) -> None:
    session = make_session()
    session.header[field] = value
    assert rank_library(rank).ph_connect(session.fd, 0, 0, 1) == -1
    session.close()


def test_forked_child_is_detached(rank: Any) -> None:
    def body(library: CDLL) -> tuple[int, bool]:
        pid = os.fork()
        if pid == 0:
            emit(library, "MEMSET", bytes=666)
            os._exit(library.ph_devices() * 10 + library.ph_connected())
        child = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        emit(library, "MEMSET", bytes=1)
        return child, bool(library.ph_connected())

    dump = run(body, rank)
    assert dump.value == (0, True)
    assert [r["bytes"] for r in dump.of("MEMSET")] == [1]


# ---------------------------------------------------------------- clock, threads


def test_only_main_and_autograd_threads_move_the_clock(rank: Any) -> None:
    def body(library: CDLL) -> list[int]:
        times = []

        def work(name: bytes | None) -> None:
            if name:
                ctypes.CDLL(None).prctl(15, name, 0, 0, 0)  # PR_SET_NAME
            library.ph_advance(1000)
            times.append(library.ph_now())
            emit(library, "MEMSET")

        work(None)
        for name in (b"pt_autograd_0", b"pt_nccl_watchdg"):
            thread = threading.Thread(target=work, args=(name,))
            thread.start()
            thread.join()
        return times

    dump = run(body, rank)
    assert dump.value == [1000, 2000, 2000]
    helper = layout.Flag["PH_F_HELPER"]
    assert [(r["thread"], r["flags"] & helper, r["time"]) for r in dump.of("MEMSET")] == [
        (0, 0, 1000),
        (1, 0, 2000),
        (64, helper, 2000),
    ]


@pytest.mark.parametrize(("mode", "expected"), [("MODELLED", 5000), ("NONE", 0)])
def test_charging(rank: Any, mode: str, expected: int) -> None:
    def body(library: CDLL) -> int:
        library.ph_charge(layout.Api.LAUNCH)
        library.ph_charge(layout.Api.LAUNCH)
        return int(library.ph_now())

    mode_number = getattr(layout.HostMode, mode)
    assert run(body, rank, api_ns={"LAUNCH": 2500}, host_mode=mode_number).value == expected


def test_launches_wait_for_a_thread_that_pins_memory(rank: Any) -> None:
    """A thread runs Python for 2,500 ns, pins memory for 6,000 and runs Python for 2,500."""
    names = layout.Api.names()
    launch, alloc, per_gib = (names.index(name) for name in ("LAUNCH", "HOST_ALLOC", "HOST_ALLOC_GIB"))

    def body(library: CDLL) -> list[int]:
        took, times = [], []
        library.ph_apart_begin.argtypes, library.ph_apart_end.restype = [ctypes.c_bool], ctypes.c_int64
        library.ph_apart_from.argtypes = [ctypes.c_int64] * 2

        def stage() -> None:
            library.ph_apart_begin(True)
            library.ph_charge(launch)
            library.ph_charge_locked(alloc, per_gib, ctypes.c_size_t(1 << 30))
            library.ph_charge(alloc)
            library.ph_charge(launch)
            took.append(int(library.ph_apart_end()))

        thread = threading.Thread(target=stage)
        thread.start()
        thread.join()
        times.append(int(library.ph_now()))
        library.ph_apart_from(10_000, took[0])
        waits = (
            ("driver", 9_000),
            ("interpreter", 11_000),
            ("driver", 11_500),
            ("interpreter", 13_000),
            ("driver", 13_000),
        )
        for wait, at in (*waits, ("interpreter", 20_000), ("driver", 30_000)):
            library.ph_advance(ctypes.c_int64(at - int(library.ph_now())))
            getattr(library, f"ph_await_{wait}")()
            times.append(int(library.ph_now()))
        return took + times

    found = run(
        body, rank, api_ns={"LAUNCH": 2500, "HOST_ALLOC": 1000, "HOST_ALLOC_GIB": 5000, "BACKWARD_WAKE": 200}
    ).value
    assert found[:2] == [11_000, 0], "it moves a time of its own"
    assert found[2:5] == [9_000, 12_500, 18_600], (
        "before it, until the thread leaves Python, and until its memory is pinned"
    )
    assert found[5:] == [21_000, 21_000, 21_000, 30_000], "until it is done, and not after it"


def test_the_loop_waits_for_a_thread_that_has_pythons_lock(rank: Any) -> None:
    """The other thread keeps the lock for 4 ms, and the loop needs 20 us to wake up."""

    def body(library: CDLL) -> list[int]:
        library.ph_rivals.argtypes = [ctypes.c_int64] * 2
        times = []
        for lock, share in ((0, 0), (4 * 10**6, 10**6), (4 * 10**6, 10**5)):
            library.ph_rivals(lock, share)
            for call, before in (("regain", 0), ("run", 4_900_000), ("run", 200_000), ("run", 0)):
                library.ph_advance(ctypes.c_int64(before))
                began = int(library.ph_now())
                getattr(library, f"ph_{call}_interpreter")()
                times.append(int(library.ph_now()) - began)
        return times

    found = run(body, rank, api_ns={"BACKWARD_WAKE": 40_000}).value
    assert found[:8] == [0, 0, 0, 0, 4_020_000, 0, 4_000_000, 0]
    assert found[8:] == [400_000, 0, 550_000, 0], "a tenth of the time since then"


def test_measured_mode_counts_the_program_and_not_the_brackets(rank: Any) -> None:
    def burn(library: CDLL, ns: int) -> None:
        import time

        end = time.thread_time_ns() + ns
        while time.thread_time_ns() < end:
            pass

    def body(library: CDLL) -> tuple[int, int]:
        library.ph_enter()
        library.ph_leave()
        start = library.ph_now()
        burn(library, 20_000_000)
        library.ph_enter()
        outside = library.ph_now() - start
        burn(library, 20_000_000)
        library.ph_leave()
        library.ph_enter()
        return outside, library.ph_now() - start - outside

    outside, inside = run(body, rank, host_mode=layout.HostMode.MEASURED, host_scale=2.0).value
    assert 40_000_000 <= outside < 50_000_000
    assert inside < 5_000_000


def test_null_mode_records_nothing(rank: Any) -> None:
    def body(library: CDLL) -> bool:
        emit(library, "MEMSET")
        first = library.ph_now()
        return bool(library.ph_now() >= first >= 0)

    dump = run(body, rank, null_mode=True)
    assert dump.value is True and dump.records == []


# ---------------------------------------------------------------- names


def test_equal_keys_give_equal_ids_and_one_definition(rank: Any) -> None:
    def body(library: CDLL) -> list[int]:
        ids = [
            library.ph_name(library.ph_hash(b"%d" % i, len(b"%d" % i), 0), b"name %d" % i, len(b"name %d" % i))
            for i in range(3000)
        ]
        again = [library.ph_name(library.ph_hash(b"%d" % i, len(b"%d" % i), 0), b"", 0) for i in range(3000)]
        assert ids == again
        return ids

    dump = run(body, rank)
    assert dump.value == list(range(1, 3001))
    assert [(r["id"], r["blob"]) for r in dump.of("DEFINE_NAME")] == [(i + 1, b"name %d" % i) for i in range(3000)]


def test_names_from_before_the_connection_are_sent_with_it(rank: Any) -> None:
    dump = run(
        lambda library: library.ph_name(77, b"", 0), rank, before=lambda library: library.ph_name(77, b"early", 5)
    )
    assert dump.value == 1
    assert dump.of("DEFINE_NAME")[0]["blob"] == b"early"


# ---------------------------------------------------------------- memory


def info(library: CDLL) -> tuple[int, int]:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    library.ph_memory_info(0, ctypes.addressof(free), ctypes.addressof(total))
    return free.value, total.value


def test_accounting_is_by_2_mib_against_the_gpu(rank: Any) -> None:
    def body(library: CDLL) -> None:
        start, total = info(library)
        assert (start, total) == (768 * MIB, 1024 * MIB)
        first = library.ph_memory_alloc(0, 1)
        second = library.ph_memory_alloc(0, 512)  # shares the first's chunk
        assert start - info(library)[0] == 2 * MIB and first % 512 == second % 512 == 0
        large = library.ph_memory_alloc(0, 3 * MIB)
        assert start - info(library)[0] == 6 * MIB and large % (2 * MIB) == 0
        spare = 64 * MIB  # what the context gives back when memory runs out
        assert library.ph_memory_alloc(0, 768 * MIB + spare) is None
        assert library.ph_memory_charge(0, 762 * MIB + spare) and not library.ph_memory_charge(0, 1)
        assert library.ph_memory_charge(0, -762 * MIB - spare)
        for pointer in (first, second, large):
            assert library.ph_memory_free(pointer) == 0
            assert library.ph_memory_free(pointer) == -1
        assert info(library)[0] == start + spare

    assert run(body, rank).status == 0


def test_pinned_and_device_memory_are_told_apart(rank: Any) -> None:
    class Range(ctypes.Structure):
        _fields_ = (
            ("base", ctypes.c_size_t),
            ("size", ctypes.c_size_t),
            ("space", ctypes.c_int),
            ("device", ctypes.c_int),
        )

    def body(library: CDLL) -> None:
        found = Range()
        device, pinned = library.ph_memory_alloc(0, 4 * MIB), library.ph_pinned_alloc(5000)
        assert library.ph_memory_find(device + 4 * MIB - 1, ctypes.addressof(found))
        assert (found.base, found.size, found.space) == (device, 4 * MIB, DEVICE_SPACE)
        assert library.ph_memory_find(pinned + 4999, ctypes.addressof(found)) and found.space == PINNED_SPACE
        assert not library.ph_memory_find(pinned + 5000, ctypes.addressof(found))
        assert library.ph_memory_free(pinned) == -1 and library.ph_pinned_free(device) == -1
        mine = host(bytes(100))
        assert library.ph_register(mine, 100, 3, -1) == 0 and library.ph_register(mine, 100, 3, -1) == -1
        assert library.ph_unregister(mine) == 0 and library.ph_unregister(mine) == -1

    assert run(body, rank).status == 0


def test_clear_zeroes_exactly_what_it_is_told(rank: Any) -> None:
    def body(library: CDLL) -> None:
        size = 64 * PAGE
        base = library.ph_memory_alloc(0, 4 * MIB)
        write(library, base, b"\xff" * size)
        library.ph_memory_clear(base + 100, size - 300)
        assert read(base, size) == b"\xff" * 100 + bytes(size - 300) + b"\xff" * 200
        library.ph_memory_clear(base, size)
        assert read(base, size) == bytes(size)

    assert run(body, rank).status == 0


def test_allocations_have_ascending_addresses_in_every_run(rank: Any) -> None:
    """Whatever else is mapped, and also after a free: L2 residency and torch's allocator go by addresses."""

    def body(mapped: int, library: CDLL) -> list[int]:
        kept, addresses = [], []
        for _ in range(3):
            kept += [mmap.mmap(-1, mapped * MIB) for _ in range(mapped)]
            addresses.append(library.ph_memory_alloc(0, 3 * MIB))
            library.ph_memory_free(addresses[-1])
        return addresses

    first, other = (run(functools.partial(body, mapped), rank).value for mapped in (0, 5))
    assert first == other == sorted(set(first)) and len(first) == 3


@pytest.mark.skipif(bool(sources.sanitizers()), reason="a sanitizer keeps memory of its own for what is touched")
def test_clearing_untouched_memory_costs_none(rank: Any) -> None:
    def body(library: CDLL) -> tuple[int, int]:
        data = b"y" * MIB  # before: what of it the allocator keeps afterwards depends on what it has freed so far
        base = library.ph_memory_alloc(0, 60 << 30)
        write(library, base + (30 << 30), b"x")
        before = resident_kib()
        library.ph_memory_clear(base, 60 << 30)
        assert read(base + (30 << 30), 1) == b"\0"
        write(library, base + (40 << 30), data)
        library.ph_memory_clear(base, 60 << 30)
        return before, resident_kib()

    before, after = run(body, rank, device={"memory_bytes": 80 << 30}).value
    assert after - before < 512


@pytest.mark.parametrize("size", [1000, TRUE_COPY, TRUE_COPY + 1])
def test_copy_rule(rank: Any, size: int) -> None:
    true = size <= TRUE_COPY

    def body(library: CDLL) -> None:
        data = bytes(i % 251 + 1 for i in range(size))
        device, other = (library.ph_memory_alloc(0, 4 * MIB) for _ in range(2))
        write(library, other, b"old")
        back = host(b"\xee" * size)
        library.ph_memory_copy(device, host(data), size)
        library.ph_memory_copy(other, device, size)
        library.ph_memory_copy(back, other, size)
        assert back.raw == (data if true else bytes(size))

    assert run(body, rank).status == 0


def test_large_copy_to_the_host_carries_true_pages_and_zeros(rank: Any) -> None:
    def body(library: CDLL) -> None:
        size = 8 * MIB + 5
        device = library.ph_memory_alloc(0, size)
        write(library, device + 3 * MIB - 2, b"abcd")
        back = host(b"\xee" * size)
        library.ph_memory_copy(back, device, size)
        assert back.raw == bytes(3 * MIB - 2) + b"abcd" + bytes(5 * MIB + 3)

    assert run(body, rank).status == 0


def test_host_to_host_copies_are_true_at_any_size(rank: Any) -> None:
    def body(library: CDLL) -> None:
        data = os.urandom(3 * MIB)
        back = host(bytes(3 * MIB))
        library.ph_memory_copy(back, host(data), len(data))
        assert back.raw == data

    assert run(body, rank).status == 0


def test_set_is_true_when_small(rank: Any) -> None:
    def body(library: CDLL) -> None:
        device = library.ph_memory_alloc(0, 4 * MIB)
        library.ph_memory_set(device, 0x5A, 1000)
        assert read(device, 1001) == b"\x5a" * 1000 + b"\0"
        library.ph_memory_set(device, 0x5A, 2 * MIB)
        assert read(device, 2 * MIB) == bytes(2 * MIB)

    assert run(body, rank).status == 0


def test_freed_memory_comes_back_as_zeros(rank: Any) -> None:
    def body(library: CDLL) -> None:
        keep = library.ph_memory_alloc(0, 512)
        small = library.ph_memory_alloc(0, 512)
        write(library, keep, b"keep")
        write(library, small, b"gone")
        assert library.ph_memory_free(small) == 0
        assert read(keep, 4) == b"keep" and read(small, 4) == bytes(4)

    assert run(body, rank).status == 0


# ---------------------------------------------------------------- payloads


def test_pending_payload_arrives_on_touch(rank: Any) -> None:
    payload = bytes(i % 253 for i in range(200_000))  # more than one reply holds

    def body(library: CDLL) -> None:
        base = library.ph_memory_alloc(0, 4 * MIB)
        library.ph_expect(base, len(payload), 9)
        assert read(base, 100) == bytes(100)
        library.ph_touch(base + 150_000, 1)
        assert read(base, len(payload)) == payload

    dump = run(body, rank, payloads={9: payload})
    assert [(r["ticket"], r["offset"]) for r in dump.of("PAYLOAD")] == [(9, 0), (9, 65536), (9, 131072), (9, 196608)]


def test_overwritten_part_of_a_payload_stays_overwritten(rank: Any) -> None:
    def body(library: CDLL) -> bytes:
        base = library.ph_memory_alloc(0, 4 * MIB)
        library.ph_expect(base, 12, 4)
        library.ph_memory_copy(base + 4, host(b"MINE"), 4)
        library.ph_touch(base, 12)
        return read(base, 12)

    assert run(body, rank, payloads={4: b"abcdefghijkl"}).value == b"abcdMINEijkl"


def test_later_payload_wins(rank: Any) -> None:
    def body(library: CDLL) -> bytes:
        base = library.ph_memory_alloc(0, 4 * MIB)
        library.ph_expect(base, 8, 1)
        library.ph_expect(base + 4, 8, 2)
        library.ph_touch(base, 12)
        return read(base, 12)

    assert run(body, rank, payloads={1: b"11111111", 2: b"22222222"}).value == b"111122222222"


def test_dropped_payload_is_not_fetched(rank: Any) -> None:
    def body(library: CDLL) -> None:
        base = library.ph_memory_alloc(0, 4 * MIB)
        library.ph_expect(base, 8, 1)
        library.ph_memory_clear(base, 8)
        library.ph_touch(base, 8)

    reported = run(body, rank).of("PAYLOAD")
    assert [(record["ticket"], record["slot"]) for record in reported] == [(1, 0xFF)]  # forgotten, and nobody waits


@pytest.mark.parametrize(("members", "size"), [(1, 5), (3, 0), (3, 5), (4, 50_000)])
def test_exchange_returns_every_member(rank: Any, members: int, size: int) -> None:
    mine = bytes(i % 249 for i in range(size))

    def body(library: CDLL) -> bytes:
        out, length = ctypes.c_void_p(), ctypes.c_size_t()
        arguments = (ctypes.c_uint64(1), ctypes.c_uint64(2), members, 0, mine, ctypes.c_size_t(size))
        assert library.ph_exchange(*arguments, ctypes.byref(out), ctypes.byref(length)) == 0
        return read(out.value or 0, length.value)

    dump = run(body, rank)
    assert dump.value == (size.to_bytes(4, "little") + mine) * members
    assert len(dump.of("EXCHANGE")) == (members > 1)


def test_exchange_without_peers_fails_clearly_in_null_mode(rank: Any) -> None:
    def body(library: CDLL) -> int:
        out, length = ctypes.c_void_p(), ctypes.c_size_t()
        arguments = (ctypes.c_uint64(1), ctypes.c_uint64(2), 2, 0, b"", ctypes.c_size_t(0))
        return int(library.ph_exchange(*arguments, ctypes.byref(out), ctypes.byref(length)))

    dump = run(body, rank, null_mode=True)
    assert dump.value == -1
    assert dump.stderr.startswith("phantora: rank 0 cannot exchange data with 1 others: nothing is simulated")


# ---------------------------------------------------------------- streams, events, failure


def test_streams_and_events(rank: Any) -> None:
    def body(library: CDLL) -> None:
        stream = library.ph_stream_create(0, 1, -2)
        assert library.ph_stream_of(stream, False) == stream
        assert library.ph_stream_of(None, False) == library.ph_stream_of(1, False) != library.ph_stream_of(2, False)
        assert library.ph_stream_of(None, True) == library.ph_stream_of(2, False)
        assert library.ph_stream_destroy(stream) == 0 and library.ph_stream_destroy(stream) == -1
        assert library.ph_stream_of(stream, False) is None
        event = library.ph_event_create(0, 0)
        assert library.ph_event_alive(event) and library.ph_event_destroy(event) == 0
        assert not library.ph_event_alive(event) and library.ph_event_destroy(event) == -1

    dump = run(body, rank)
    assert dump.status == 0, dump.stderr
    assert dump.kinds() == ["RANK_START", "STREAM_CREATE", "STREAM_CREATE", "STREAM_DESTROY", "RANK_EXIT"]
    created = dump.of("STREAM_CREATE")[0]
    assert (created["stream"], created["flags"], created["priority"]) == (1, layout.Flag["PH_F_NONBLOCKING"], -2)


def test_unsupported_call_ends_the_rank_by_name(rank: Any) -> None:
    dump = run(lambda library: library.ph_unsupported(b"libcublas", b"cublasSgelsBatched", False), rank)
    assert dump.status == 78 and dump.of("RANK_EXIT")[0]["status"] == 78
    assert dump.stderr == (
        "phantora: cublasSgelsBatched (libcublas) is not supported by the simulator; run with --unsupported "
        "warn to let it pass as a no-op, or avoid the call\n"
    )


def test_the_last_call_that_got_an_error_is_known(rank: Any) -> None:
    def body(library: CDLL) -> None:
        assert library.ph_refused() is None
        library.ph_unsupported(b"libcuda", b"cuArrayCreate", True)
        assert library.ph_refused() == b"cuArrayCreate"

    assert run(body, rank).status == 0


def test_unsupported_call_is_reported_once_under_warn(rank: Any) -> None:
    def body(library: CDLL) -> None:
        for _ in range(3):
            library.ph_unsupported(b"libcublas", b"cublasSgelsBatched", False)

    dump = run(body, rank, unsupported=layout.Unsupported.WARN)
    assert dump.status == 0 and dump.stderr.count("\n") == 1
    assert dump.of("DEFINE_NAME")[0]["blob"] == b"cublasSgelsBatched"
    assert len(dump.of("UNSUPPORTED")) == 1


# ---------------------------------------------------------------- Python frames


def test_freed_code_leaves_nothing_to_code_at_its_address(rank: Any) -> None:
    """Frames of ``__eq__`` are free of charge. A third of the functions live on, so the table of code grows."""

    def body(library: CDLL) -> list[int]:
        clock = ctypes.PyDLL(str(rank.parent / "libphantora_clock.so"))
        assert clock.ph_count_frames()
        frame, charged, living, found = layout.Api.names().index("PY_FRAME"), library.ph_charged, [], []
        for i in range(9000):
            scope: dict[str, Any] = {}
            exec(f"def {('other', '__eq__')[i % 2]}(): pass\nfunction = {('other', '__eq__')[i % 2]}", scope)
            function = scope.pop("function")
            before = charged(frame)
            function()
            function()
            found.append(charged(frame) - before)
            living += [function] * (i % 3 == 0)
        return found

    assert run(body, rank).value == [2, 0] * 4500
