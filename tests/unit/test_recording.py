"""Records of ranks are kept whole, and come back for another cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantora.errors import PhantoraError
from phantora.sim.engine import library as native
from phantora.trace import recording
from phantora.trace.reader import open_log
from phantora.trace.recording import RECORD, RecordingWriter, decode, encode
from phantora.wire import layout
from phantora.wire.records import read
from tests.support.fakelog import small_run
from tests.support.fakeranks import Bench


def drawn(count: int, seed: int) -> recording.Records:
    """Records of all kinds with any content."""
    raw = np.random.default_rng(seed).integers(0, 256, (count, RECORD.itemsize), np.uint8)
    raw[:, 0] %= len(layout.Kind.names())
    return raw.view(RECORD)[:, 0]


@given(st.integers(0, 300), st.integers(0, 2**32))
def test_any_record_comes_back(count: int, seed: int) -> None:
    records = drawn(count, seed)
    assert decode(encode(3, records)).tobytes() == records.tobytes()


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40)), max_size=30))
def test_chunks_do_not_depend_on_the_pieces(pieces: list[tuple[int, int]]) -> None:
    """Each rank's chunks are full but for the last, whatever came when."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording, "CHUNK_RECORDS", 32)
        patch.setattr(recording, "SPOOL_BYTES", 500)
        writer, said = RecordingWriter(), {rank: [np.empty(0, RECORD)] for rank in range(3)}
        for seed, (rank, count) in enumerate(pieces):
            said[rank].append(drawn(count, seed))
            writer.add(rank, said[rank][-1])
        chunks = list(writer.finish())
    assert [chunk.rank for chunk in chunks] == sorted(chunk.rank for chunk in chunks)
    for rank, parts in said.items():
        mine = [chunk for chunk in chunks if chunk.rank == rank]
        assert all(chunk.records == 32 for chunk in mine[:-1])
        got = b"".join(decode(chunk).tobytes() for chunk in mine)
        assert got == np.concatenate(parts).tobytes()


def test_a_damaged_chunk_is_no_record() -> None:
    chunk = encode(0, drawn(100, 0))
    for data in (chunk.data[:-5], b"", b"nonsense"):
        with pytest.raises((ValueError, OSError)):
            decode(recording.Chunk(0, 100, data))
    with pytest.raises((ValueError, OSError)):
        decode(recording.Chunk(0, -1, chunk.data))


def test_readers_of_rows_pass_over_the_recording(tmp_path: Path) -> None:
    run = small_run(steps=1)
    plain = open_log(run.write(tmp_path / "plain.arrow"))
    run.records = {1: drawn(50, 1), 0: drawn(70, 2)}
    log = open_log(run.write(tmp_path / "recorded.arrow"))
    assert (log.num_batches, log.num_rows) == (plain.num_batches, plain.num_rows)
    assert [(chunk.rank, chunk.records) for chunk in log.recording()] == [(0, 70), (1, 50)]
    assert plain.recording() == []


def test_a_recording_of_another_wire_is_refused() -> None:
    metadata = encode(0, drawn(3, 0)).metadata()
    metadata[recording.HEADER_KEY] = metadata[recording.HEADER_KEY].replace(
        f'"wire": {layout.WIRE_VERSION}'.encode(), b'"wire": 0'
    )
    with pytest.raises(PhantoraError, match="run `phantora trace` again"):
        recording.Chunk.from_metadata(metadata)


# ------------------------------------------------------------------ the engine, with fixed durations


def recorded(bench: Bench) -> list[recording.Records]:
    return [bench.engine.take_records(rank, True) for rank in range(len(bench.ranks))]


def replayed(engine_library: Path, said: list[recording.Records], host_scale: float = 1.0) -> Bench:
    """A bench whose ranks are recordings; not yet run."""
    bench = Bench.create(engine_library, len(said), speak=False)
    bench.engine.play(host_scale)
    for rank, records in zip(bench.ranks, said, strict=True):
        rank.ring[: len(records)] = records
        rank.control["head"] = len(records)
    return bench


def wait_loop(bench: Bench) -> None:
    """Two ranks; rank 0 computes, waits, goes on after 30 ns; both meet."""
    zero, one = bench.ranks
    for index, rank in enumerate(bench.ranks):
        rank.communicator(1, 2, index)
        rank.stream(8)
    for _ in range(3):
        zero.kernel("k:100", at=zero.clock + 10)
        zero.emit("ANNOTATION", id=zero.name("span"), start=zero.clock - 5)
        zero.ask("sync", "STREAM_SYNC")
        bench.run()
        zero.answer("sync")
        zero.emit("OP_BEGIN", op=1, start=zero.clock + 1, at=zero.clock + 30)
        zero.emit("OP_END", op=1, at=zero.clock + 2)
        zero.collective(1, 40, stream=8)
        one.collective(1, 40, stream=8, at=one.clock + 500)
    for rank in bench.ranks:
        rank.exit()
    bench.run()


def test_a_replay_is_the_run(engine_library: Path) -> None:
    bench = Bench.create(engine_library, 2, record=True)
    wait_loop(bench)
    again = replayed(engine_library, recorded(bench))
    assert again.run() & native.DONE
    assert again.rows() == bench.rows()


def test_hosts_go_on_after_the_new_answer(engine_library: Path) -> None:
    """Kernels that take 300 instead of 100 ns: the host's next call comes as much later."""
    bench = Bench.create(engine_library, 2, record=True)
    wait_loop(bench)
    again = replayed(engine_library, recorded(bench))
    again.durations = {"k:100": 300}
    assert again.run() & native.DONE
    before, after = bench.rows(), again.rows()

    def of(rows: list[dict[str, Any]], kind: str) -> list[tuple[int, int]]:
        return [(row["start"], row["end"]) for row in rows if row["kind"] == kind and row["rank"] == 0]

    assert of(after, "KERNEL") == [(s + 200 * i, e + 200 * (i + 1)) for i, (s, e) in enumerate(of(before, "KERNEL"))]
    for kind, late in (("OPERATOR", 1), ("ANNOTATION", 0)):  # after the wait of each round, and before it
        expected = [(s + 200 * (i + late), e + 200 * (i + late)) for i, (s, e) in enumerate(of(before, kind))]
        assert of(after, kind) == expected


def test_host_time_scales_between_waits(engine_library: Path) -> None:
    bench = Bench.create(engine_library, 2, record=True)
    wait_loop(bench)
    again = replayed(engine_library, recorded(bench), host_scale=0.0)
    assert again.run() & native.DONE
    ends = [row["end"] for row in again.rows() if row["kind"] == "KERNEL"]
    assert ends == [100, 200, 300]


def test_a_sleeper_goes_on_when_its_peer_is_released(engine_library: Path) -> None:
    """Rank 1 slept outside CUDA until rank 0's wait ended; with slower kernels it sleeps longer."""
    bench = Bench.create(engine_library, 2, record=True)
    zero, one = bench.ranks
    for index, rank in enumerate(bench.ranks):
        rank.communicator(1, 2, index)
        rank.stream(8)
    zero.collective(1, 40, stream=8, at=0)
    zero.kernel("k:100", blocks=1, at=0)
    zero.ask("sync", "STREAM_SYNC", stream=0)
    bench.run()
    assert bench.engine.release_sleepers([1])
    assert zero.answer("sync") == (0, 100)
    one.collective(1, 40, stream=8, at=130)
    for rank in bench.ranks:
        rank.exit()
    bench.run()
    said = recorded(bench)

    same = replayed(engine_library, said)
    same.run()
    assert same.engine.release_sleepers([])
    assert same.run() & native.DONE
    assert same.rows() == bench.rows()

    slower = replayed(engine_library, said)
    slower.durations = {"k:100": 300}
    slower.run()
    assert slower.engine.release_sleepers([])
    assert slower.run() & native.DONE
    (arrival,) = (row["start"] for row in slower.rows() if row["kind"] == "COLLECTIVE" and row["rank"] == 1)
    assert arrival == 330


def test_threads_wait_for_their_own_answers(engine_library: Path) -> None:
    """A thread of autograd waits 100 ns and a watchdog asks while the host waits for a kernel of 1000 or 3000 ns."""
    bench = Bench.create(engine_library, 1, record=True)
    (rank,) = bench.ranks
    rank.stream(8)
    rank.kernel("k:1000", stream=0, blocks=1)
    rank.emit("EVENT_RECORD", id=1)
    rank.kernel("k:100", stream=8, blocks=1)
    rank.ask("host", "STREAM_SYNC", at=10)
    rank.ask("autograd", "STREAM_SYNC", stream=8, thread=1, at=20)
    rank.ask("watchdog", "EVENT_QUERY", id=1, thread=layout.OTHER_THREADS, at=30)
    bench.run()
    rank.answer("autograd")
    assert rank.answer("host") == (0, 1000)
    rank.emit("OP_BEGIN", op=1, start=1001, at=1005)
    rank.emit("OP_END", op=1, at=1010)
    rank.exit()
    bench.run()
    said = recorded(bench)
    assert not any(records["kind"] == layout.Kind.EVENT_QUERY for records in said[0])
    for kernel, late in ((1000, 0), (3000, 2000)):
        again = replayed(engine_library, said)
        again.durations = {"k:1000": kernel}
        assert again.run() & native.DONE
        (operator,) = (row for row in again.rows() if row["kind"] == "OPERATOR")
        assert (operator["start"], operator["end"]) == (1001 + late, 1010 + late)


def test_payloads_polls_and_addresses_are_not_kept(engine_library: Path) -> None:
    helper = layout.Flag["PH_F_HELPER"]
    bench = Bench.create(engine_library, 1, record=True)
    (rank,) = bench.ranks
    rank.communicator(1, 1, 0)
    rank.collective(1, 8, data=b"12345678", ticket=5)
    rank.ask("bytes", "PAYLOAD", ticket=5)
    rank.emit("EVENT_RECORD", id=1)
    rank.ask("poll", "EVENT_QUERY", id=1, flags=helper)
    rank.emit("MEMORY", allocated=512, reserved=512, change=512, address=0x7F1234567000)
    rank.exit()
    bench.run()
    (said,) = recorded(bench)
    kinds = [layout.Kind.names()[record["kind"]] for record in said]
    assert kinds == ["RANK_START", "COMM_CREATE", "COLLECTIVE", "EVENT_RECORD", "MEMORY", "RANK_EXIT"]
    start, collective, memory = (read(said[n : n + 1]) for n in (0, 2, 4))
    assert start["pid"] == 0 and collective["ticket"] == 0 and memory["address"] < 100


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": layout.Kind.KERNEL, "stream": 4_000_000_000},
        {"kind": layout.Kind.DEFINE_NAME, "id": 4_000_000_000},
        {"kind": layout.Kind.SEND, "id": 9, "word0": 7},
        {"kind": layout.Kind.EXCHANGE, "word2": 1 << 60, "slot": 0},
        {"kind": layout.Kind.COMM_CREATE, "word2": 1 << 60},
        {"kind": layout.Kind.MOVED, "word1": 77},
        {"kind": 250},
    ],
)
def test_impossible_records_are_refused(engine_library: Path, fields: dict[str, int]) -> None:
    bench = Bench.create(engine_library, 1, record=True)
    bench.ranks[0].exit()
    bench.run()
    (said,) = recorded(bench)
    bad = np.zeros(1, RECORD)
    bad["slot"] = layout.CONSTANTS["PH_NO_SLOT"]
    for name, value in fields.items():
        bad[name] = value
    again = replayed(engine_library, [np.concatenate([said[:1], bad, said[1:]])])
    assert again.run() & native.ERROR
    assert "recording of rank 0 is damaged" in again.engine.error()
