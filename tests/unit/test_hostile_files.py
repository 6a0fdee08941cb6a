"""Damaged and hostile files end in one line; the rest of the fuzzer is `tests/robustness/fuzz.py`."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import pytest

from phantora.errors import PhantoraError
from phantora.hardware import load_cluster
from phantora.hardware.hosts import load_host
from phantora.launch.shared_forkserver import WarmServer
from phantora.rank.routing import parse_routing
from phantora.trace.schema import RunMetadata
from phantora.wire import layout, records
from tests.robustness import fuzz, fuzz_engine
from tests.support.fakeranks import Bench

HOST = 'name = "x"\nbase = "default"\nfactor = {}\n'
CLUSTER = 'gpu = "H100"\ngpus_per_host = {}\n'


@pytest.mark.parametrize("number", ["9" * 400, "9" * 5000, "1e400", "nan", "-1"])
def test_numbers_without_end(tmp_path: Path, number: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(HOST.format(number))
    with pytest.raises(PhantoraError, match=r"x\.toml"):
        load_host(str(path))
    path.write_text(CLUSTER.format(number))
    with pytest.raises(PhantoraError):
        load_cluster(str(path))


def test_nesting_without_end(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text("a = " + "[" * 50_000)
    with pytest.raises(PhantoraError, match="not valid TOML"):
        load_cluster(str(path))
    path.write_text('{"*": ' + "[" * 50_000)
    with pytest.raises(PhantoraError, match="not JSON"):
        parse_routing(str(path))


@pytest.mark.parametrize("spec", ["999999x8xH100", "1x99999xH100", "dgx-h100:9999999"])
def test_clusters_larger_than_any(spec: str) -> None:
    with pytest.raises(PhantoraError, match="too large"):
        load_cluster(spec)


def test_a_share_that_no_float_holds(tmp_path: Path) -> None:
    path = tmp_path / "routing.json"
    path.write_text('{"0": [1, 1%s]}' % ("0" * 400))
    with pytest.raises(PhantoraError, match="layer 0 needs a list of shares"):
        parse_routing(str(path))


def test_metadata_of_another_type() -> None:
    text = RunMetadata().to_json()
    assert RunMetadata.from_json(text) == RunMetadata()
    for name, was, wrong in (("kernel_gap_ns", "0", '"x"'), ("peak_flops", "{}", "[]"), ("gpu", '""', "null")):
        changed = text.replace(f'"{name}": {was}', f'"{name}": {wrong}')
        with pytest.raises(ValueError, match=f"{name} cannot be"):
            RunMetadata.from_json(changed)


@pytest.mark.parametrize(
    "target",
    [
        *("log, analysed", "log, replayed", "cluster", "host", "sweep", "table", "routing", "fork server"),
        *("flight recorder", "memory snapshot", "step lines", "kernel trace", "XLA trace"),
    ],
)
def test_a_short_run_of_each_fuzzer_finds_nothing(target: str, tmp_path: Path) -> None:
    assert fuzz.run(target, 0.3, 1, tmp_path) == 0


@pytest.mark.parametrize("target", ["ranks", "ranks, replayed", "viewer"])
def test_a_short_run_of_the_other_fuzzers_finds_nothing(target: str, tmp_path: Path, engine_library: Path) -> None:
    assert fuzz.run(target, 0.5, 1, tmp_path) == 0


def test_a_shared_fork_server_outlives_what_is_no_run() -> None:
    server = WarmServer()
    try:
        for data in (b"[" * 5000, b'{"do": "load"}', b"\xff", b"{}"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
                link.settimeout(30)
                link.connect(server.path)
                link.send(data)
                assert link.recv(100) == b""
    finally:
        server.close()


def test_a_rank_that_says_what_cannot_be_is_named(engine_library: Path) -> None:
    """Live: a clear error, and the ranks that did nothing wrong are distinguished from it."""
    bench = Bench.create(engine_library, 2)
    bench.ranks[1].emit("MEMSET", stream=4_000_000_000, bytes=8)
    with pytest.raises(PhantoraError, match=r"what rank 1 says cannot be \(record 1 of kind 14\)"):
        fuzz_engine.turns(bench.engine)
    bench = Bench.create(engine_library, 2)
    bench.ranks[0].control["head"] = 1 << 40
    with pytest.raises(PhantoraError, match=r"what rank 0 says cannot be \(its ring\)"):
        fuzz_engine.turns(bench.engine)
    bench = Bench.create(engine_library, 2)
    bench.ranks[0].communicator(1, 2, 0)
    bench.ranks[0].communicator(2, 2, 1)
    with pytest.raises(PhantoraError, match="rank 0 is two members of one communicator"):
        fuzz_engine.turns(bench.engine)


IMPOSSIBLE: list[dict[str, Any]] = [
    {"kind": "COMM_CREATE", "id": 0, "key_hi": 1, "key_lo": 1, "members": 2, "rank": 0},  # 0: has not joined
    {"kind": "GROUP_BEGIN", "records": 1 << 63},
    {"kind": "PEER_COPY", "id": 1, "peer": 1, "bytes": 8},  # nobody has said who that is
    {"kind": "WAIT_SIGNAL", "id": 1, "peer": 1, "channel": 0},
]


@pytest.mark.parametrize("record", IMPOSSIBLE, ids=lambda record: str(record["kind"]))
def test_records_that_reached_beyond_what_the_engine_has(engine_library: Path, record: dict[str, Any]) -> None:
    bench = Bench.create(engine_library, 2)
    bench.ranks[0].communicator(1, 2, 0)
    bench.ranks[0].emit(**record)
    with pytest.raises(PhantoraError, match="what rank 0 says cannot be"):
        fuzz_engine.turns(bench.engine)


def test_memory_is_shared_with_members_that_are_named(engine_library: Path) -> None:
    bench = Bench.create(engine_library, 2)
    bench.engine.add_link(1e9, bench.engine.intern(0, "link"), [1])
    shared = layout.Flag["PH_F_SHARED"]
    bench.ranks[0].emit("COMM_CREATE", id=1, key_hi=1, key_lo=1, members=2, rank=0, flags=shared)
    with pytest.raises(PhantoraError, match="rank 0 shares memory in a communicator, and does not say with whom"):
        fuzz_engine.turns(bench.engine)


def test_a_group_of_two_communicators_has_no_peer(engine_library: Path) -> None:
    """The log would look for the receiver of one among the members of the other."""
    bench = Bench.create(engine_library, 3)
    for rank in bench.ranks:
        rank.communicator(1, 3, rank.index)
    bench.ranks[0].communicator(2, 1, 0, key=8)
    bench.ranks[0].emit("GROUP_BEGIN", records=2)
    bench.ranks[0].transfer("SEND", 1, 2, 64)
    bench.ranks[0].collective(2, 64)
    bench.ranks[2].transfer("RECV", 1, 0, 64)
    for rank in bench.ranks:
        rank.exit()
    fuzz_engine.turns(bench.engine)
    rows = bench.engine.take_rows(True)
    pairs = rows[rows["kind"] == layout.RowKind.names().index("SENDRECV")]
    assert {int(row["rank"]): int(row["value"]) for row in pairs} == {0: -1, 2: 0}


REDUCED = [  # of int64: operator, factor, what each of two ranks gives, what they get
    (0, 0.0, (2**63 - 1, 1), -(2**63)),
    (1, 0.0, (2**62, 6), -(2**63)),
    (5, float("nan"), (3, 4), 0),
    (5, 1e30, (1, 0), 2**63 - 1),
    (5, -1e30, (1, 0), -(2**63)),
    (5, 3.0, (2, 4), 18),
]


@pytest.mark.parametrize(("operator", "factor", "given", "got"), REDUCED)
def test_whole_numbers_wrap(
    engine_library: Path, operator: int, factor: float, given: tuple[int, int], got: int
) -> None:
    bench = Bench.create(engine_library, 2)
    for rank, number in zip(bench.ranks, given, strict=True):
        rank.communicator(1, 2, rank.index)
        rank.blob(number.to_bytes(8, "little", signed=True))
        rank.emit("COLLECTIVE", id=1, coll=0, dtype=4, redop=operator, count=1, bytes=8, ticket=5, scalar=factor)
        rank.ask("bytes", "PAYLOAD", ticket=5)
    fuzz_engine.turns(bench.engine)
    assert [int.from_bytes(rank.payload("bytes"), "little", signed=True) for rank in bench.ranks] == [got, got]


def test_a_replayed_request_goes_on_at_a_time(engine_library: Path) -> None:
    for resumes in (-(2**63), -2):
        bench = Bench.create(engine_library, 1)
        bench.engine.play(1.0)
        rank = bench.ranks[0]
        rank.ask("sync", "DEVICE_SYNC")
        rank.ring.view(records.answered())["resumes"][int(rank.control["head"][0]) - 1] = resumes
        with pytest.raises(PhantoraError, match="the recording of rank 0 is damaged"):
            fuzz_engine.turns(bench.engine)


LONG_KEYS = ["a." * 40_000 + "a", '"a" . ' * 40_000 + "a", "[" + "a." * 40_000 + "a]\nb", "'a'." * 65 + "a"]


@pytest.mark.parametrize("key", LONG_KEYS, ids=range(len(LONG_KEYS)))
def test_keys_of_many_parts(tmp_path: Path, key: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(f"{key} = 1\n")
    begin = time.process_time()
    with pytest.raises(PhantoraError, match=r"x\.toml has a key of more than 64 parts"):
        load_cluster(str(path))
    assert time.process_time() - begin < 1
    path.write_text("# " + "1.2, " * 40_000 + "\nname = '" + "a.b " * 40_000 + "'\n" + "a" * 200_000 + "\n")
    with pytest.raises(PhantoraError, match="not valid TOML"):
        load_cluster(str(path))
    assert time.process_time() - begin < 1
