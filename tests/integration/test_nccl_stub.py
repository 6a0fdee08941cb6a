"""NCCL's C interface against the real runtime and the real engine: codes, records, bytes. No torch."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phantora.hardware import device_fields, load_cluster
from phantora.sim.engine import library as native
from phantora.stubs import StubSet, ensure
from phantora.wire import layout
from phantora.wire.records import read
from phantora.wire.session import Session, SessionConfig

PROGRAM = Path(__file__).with_name("nccl_program.py")
OK, CUDA_ERROR, INVALID_ARGUMENT, INVALID_USAGE = 0, 1, 4, 5
API_NS = {"NCCL_ENQUEUE": 1000, "NCCL_GROUP": 10_000, "COMM_INIT": 1_000_000}
CONNECTION = 12 << 20
KERNELS, SENDS = 558 << 20, 58 << 20  # NCCL's own, with its first communicator and its first send


@dataclass
class Outcome:
    """Output of the ranks, and the records in their rings."""

    results: list[dict[str, Any]]
    records: list[list[dict[str, Any]]]
    blobs: list[list[bytes]] = field(default_factory=list)


def decode(session: Session, rank: int) -> tuple[list[dict[str, Any]], list[bytes]]:
    """The records of a rank in order, and what each of them carried. The ring must not have wrapped."""
    dtype = layout.dtype(layout.Record)
    head = int(session.control["head"][rank])
    assert head <= layout.RING_RECORDS, "the ring has wrapped: give the scenario less to do"
    offset = int(session.header["ring_offset"]) + rank * layout.RING_RECORDS * dtype.itemsize
    ring = np.ndarray((layout.RING_RECORDS,), dtype, buffer=session.area, offset=offset)
    kinds = layout.Kind.names()
    said: list[dict[str, Any]] = []
    blobs: list[bytes] = []
    carried = b""
    for place in range(head):
        record = ring[place : place + 1]
        kind = kinds[record["kind"][0]]
        if kind == "BLOB":
            blob = record.view(layout.dtype(layout.Blob))[0]
            carried += blob["data"][: int(blob["used"])].tobytes()
            continue
        said.append({**read(record), "kind": kind})
        blobs.append(carried)
        carried = b""
    return said, blobs


def simulate(engine: native.Engine, session: Session, stop: threading.Event) -> None:
    """Prices everything at 1000 ns and goes on until all ranks have exited."""
    session.header["sim_state"] = layout.SimState.RUNNING
    while not stop.is_set():
        reason = engine.run(2000)
        if reason & native.ERROR:
            return
        while (request := engine.next_price()) is not None:
            engine.set_price(request.id, (1000,) * max(1, request.kernels))
            reason |= native.MOVED
        if reason & native.DONE and not reason & native.PRICES:
            return


@pytest.fixture(scope="module")
def stubs() -> StubSet:
    return ensure()


def run(
    stubs: StubSet,
    tmp_path: Path,
    scenario: str,
    world: int,
    devices: int | None = None,
    decoded: bool = True,
    null_mode: bool = False,
    said: list[str] | None = None,
) -> Outcome:
    """Runs a scenario on `world` ranks. `said`: what the ranks write before their results is added to it."""
    cluster = load_cluster(f"1x{devices or world}xH200")
    config = SessionConfig(world, devices or world, null_mode=null_mode)
    session = Session.create(config, device_fields(cluster.gpu), API_NS)
    engine = native.Engine(stubs.engine, session)
    stop = threading.Event()
    simulator = threading.Thread(target=simulate, args=(engine, session, stop), daemon=True)
    simulator.start()
    environment = {**os.environ, "TEST_DEVICES": str(devices or world)}
    command = [sys.executable, str(PROGRAM), str(stubs.directory), str(session.fd)]
    ranks = [  # each in a new interpreter: the test's own may have loaded real libraries
        subprocess.Popen(
            [*command, str(rank), str(world), str(tmp_path / "id"), scenario],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            pass_fds=(session.fd,),
        )
        for rank in range(world)
    ]
    try:
        outputs = [rank.communicate(timeout=60) for rank in ranks]
    except subprocess.TimeoutExpired:
        pytest.fail(f"the ranks hang: {engine.diagnose()} {engine.error()}")
    finally:
        for rank in ranks:
            rank.kill()
        if not null_mode:
            simulator.join(timeout=10)
        stop.set()
        simulator.join()
    for rank, (out, err) in zip(ranks, outputs, strict=True):
        assert rank.returncode == 0, f"{out}{err}{engine.error()}"
    lines = [out.splitlines() for out, _ in outputs]
    if said is not None:
        said += [line for rank in lines for line in rank[:-1]]
    outcome = Outcome([json.loads(rank[-1]) for rank in lines], [])
    for index in range(world) if decoded else ():
        records, blobs = decode(session, index)
        outcome.records.append(records)
        outcome.blobs.append(blobs)
    engine.close()
    session.close()
    return outcome


def test_error_codes_and_texts(stubs: StubSet, tmp_path: Path) -> None:
    outcome = run(stubs, tmp_path, "errors", 1)
    result = outcome.results[0]
    expected = {
        "rank_too_large": (INVALID_ARGUMENT, "Invalid rank requested : 2/2"),
        "no_ranks": (INVALID_ARGUMENT, "Invalid rank requested : 0/0"),
        "foreign_id": (INVALID_ARGUMENT, "ncclGetUniqueId"),
        "bad_config": (INVALID_ARGUMENT, "maxCTAs attribute value 0"),
        "unset_config": (INVALID_ARGUMENT, "NCCL_CONFIG_INITIALIZER"),
        "old_config": (OK, ""),
        "null_comm": (INVALID_ARGUMENT, "comm argument is NULL"),
        "null_buffer": (INVALID_ARGUMENT, "AllReduce : sendbuff argument is NULL"),
        "host_buffer": (INVALID_ARGUMENT, "is not a valid pointer"),
        "bad_type": (INVALID_ARGUMENT, "invalid type 12"),
        "bad_op": (INVALID_ARGUMENT, "reduction operation 5 unknown"),
        "overflow": (INVALID_ARGUMENT, "overflows"),
        "bad_stream": (CUDA_ERROR, "invalid resource handle"),
        "bad_root": (INVALID_ARGUMENT, "Broadcast : invalid root 1"),
        "bad_peer": (INVALID_ARGUMENT, "Send : invalid peer -1"),
        "group_end": (INVALID_USAGE, "not in a group call"),
        "null_count": (INVALID_ARGUMENT, "argument is NULL"),
        "shrink_to_none": (INVALID_ARGUMENT, "cannot exclude 1 of 1"),
        "device_interface": (INVALID_USAGE, "device interface"),
        "no_count_is_nothing": (OK, ""),
        "count": (OK, ""),
        "destroy": (OK, ""),
        "dead_comm": (INVALID_ARGUMENT, "destroyed or aborted"),
        "destroy_twice": (INVALID_ARGUMENT, "destroyed or aborted"),
    }
    assert set(result["cases"]) == set(expected)
    for name, (status, text) in expected.items():
        assert result["cases"][name][0] == status, (name, result["cases"][name])
        assert text in result["cases"][name][1], name
    assert result["count"] == 1
    assert result["texts"][0] == "no error"
    assert result["texts"][4].startswith("invalid argument")
    assert result["texts"][8] == "unknown result code"
    assert 22000 < result["version"] < 30000
    assert not [r for r in outcome.records[0] if r["kind"] in ("COLLECTIVE", "SEND", "KERNEL", "MEMCPY")]


def test_small_results_are_true(stubs: StubSet, tmp_path: Path) -> None:
    results = run(stubs, tmp_path, "values", 4, decoded=False).results
    for rank, got in enumerate(results):
        assert got["sum"] == [10.0, 60.0]
        assert got["max"] == [3.0, 0.0]
        assert got["avg"] == [1.5, 1.5]
        assert got["int64"] == [4 * 2**40 + 6]
        assert got["half"] == [3.0]
        assert got["premul"] == [6.0]
        assert got["premul_device"] == [8.0]
        assert got["destroyed"] == [OK, INVALID_ARGUMENT]
        assert got["all_gather"] == [7.0, 8.0, 9.0, 10.0]
        assert got["reduce_scatter"] == [4 * (7.0 + rank)]
        assert got["all_to_all"] == [100.0 * k + rank for k in range(4)]
        assert got["scatter"] == [200.0 + rank]
        assert got["gather"] == ([0.0, 100.0, 200.0, 300.0] if rank == 1 else None)
        assert got["reduce"] == ([600.0, 604.0] if rank == 1 else None)
        assert got["broadcast"] == [300.0, 301.0]
        assert got["objects"] is True
        assert got["large"] == [0.0] * 8
        assert got["ring"] == [float((rank - 1) % 4)]


def test_groups_become_one_launch_per_communicator_and_stream(stubs: StubSet, tmp_path: Path) -> None:
    outcome = run(stubs, tmp_path, "groups", 2)
    for rank in range(2):
        statuses = outcome.results[rank]["statuses"]
        assert statuses == [OK] * 16 + [INVALID_ARGUMENT, INVALID_ARGUMENT, OK]
        records, blobs = outcome.records[rank], outcome.blobs[rank]
        made = [k for k, r in enumerate(records) if r["kind"] == "COMM_CREATE"]
        assert [blobs[k] for k in made] == [b"first", b""]
        first, second = (records[k]["id"] for k in made)
        assert all(records[k]["members"] == 2 and records[k]["rank"] == rank for k in made)
        kinds = ("GROUP_BEGIN", "COLLECTIVE", "SEND", "RECV")
        launches = [(k, r) for k, r in enumerate(records) if r["kind"] in kinds]
        s0, s1 = sorted({r["stream"] for _, r in launches})
        assert [
            (r["kind"], r["id"], r["stream"], r["records"] if r["kind"] == "GROUP_BEGIN" else r["bytes"])
            for _, r in launches
        ] == [
            ("GROUP_BEGIN", first, s0, 2),
            ("COLLECTIVE", first, s0, 16),
            ("COLLECTIVE", first, s0, 1 << 20),
            ("COLLECTIVE", second, s0, 32),
            ("COLLECTIVE", first, s1, 64),
            ("GROUP_BEGIN", first, s1, 2),
            ("RECV", first, s1, 1 << 18),
            ("SEND", first, s1, 1 << 18),
            ("COLLECTIVE", first, s0, 1 << 17),  # all-gather counts its output: 2 x 32768 x 2 bytes
        ]
        carried = [(len(blobs[k]), r["ticket"] != 0) for k, r in launches if r["kind"] != "GROUP_BEGIN"]
        # The all-gather takes 16 known sums among others: their bytes travel, which are zeros here.
        assert carried == [(16, True), (0, False), (32, True), (64, True), (0, False), (0, False), (0, True)]
        send, gather = launches[7][1], launches[8][1]
        bfloat16 = layout.NCCL_DTYPE_NAMES.index("bfloat16")
        assert (send["peer"], send["dtype"], send["count"]) == (1 - rank, bfloat16, 1 << 17)
        assert (gather["coll"], gather["dtype"], gather["redop"]) == (layout.Coll.ALL_GATHER, bfloat16, 0)
        assert records[-2]["kind"] == "COMM_DESTROY"
    keys = [[(r["key_hi"], r["key_lo"]) for r in records if r["kind"] == "COMM_CREATE"] for records in outcome.records]
    assert keys[0] == keys[1]
    assert len(set(keys[0])) == 2


def test_keys_and_records_repeat(stubs: StubSet, tmp_path: Path) -> None:
    def trace(folder: str) -> list[list[tuple[Any, ...]]]:
        (tmp_path / folder).mkdir()
        outcome = run(stubs, tmp_path / folder, "groups", 2)
        skip = ("RANK_START", "EXCHANGE", "CLOCK")
        return [[tuple(r.values()) for r in records if r["kind"] not in skip] for records in outcome.records]

    assert trace("one") == trace("two")


def test_splitting_and_shrinking(stubs: StubSet, tmp_path: Path) -> None:
    results = run(stubs, tmp_path, "splits", 4).results
    for rank, got in enumerate(results):
        base = rank // 2 * 2
        assert got["half"] == [2, rank % 2, rank, [base, base + 1]]
        assert got["reverse"] == [4, 3 - rank, rank, [3, 2, 1, 0]]
        assert got["odd"] == ([2, rank // 2, rank, [1, 3]] if rank % 2 else None)
        if rank != 1:
            assert got["shrunk"] == [3, max(0, rank - 1), rank, [0, 2, 3]]


def test_device_memory_of_communicators(stubs: StubSet, tmp_path: Path) -> None:
    for got in run(stubs, tmp_path, "memory", 2).results:
        assert got["init"] == KERNELS  # stay when the communicator goes
        assert got["ring"] == 24 * CONNECTION
        assert got["pairs"] == 32 * CONNECTION + SENDS
        assert got["own"] == 2 << 20
        assert got["left"] == SENDS


def test_two_members_on_one_gpu_are_refused(stubs: StubSet, tmp_path: Path) -> None:
    for got in run(stubs, tmp_path, "same_device", 2).results:
        assert got["status"] == INVALID_USAGE
        assert "Duplicate GPU detected : rank 0 and rank 1" in got["error"]
        assert got["comm"] is None


def test_all_devices_of_one_process(stubs: StubSet, tmp_path: Path) -> None:
    outcome = run(stubs, tmp_path, "one_process", 1, devices=2)
    got = outcome.results[0]
    assert got["status"] == OK
    assert got["ranks"] == [[0, 0], [1, 1]]
    assert got["twice"][0] == INVALID_USAGE
    made = [r for r in outcome.records[0] if r["kind"] == "COMM_CREATE"]
    assert [(r["rank"], r["stream"]) for r in made] == [(0, 0), (1, 1)]
    assert not [r for r in outcome.records[0] if r["kind"] == "EXCHANGE"]


def test_null_mode_pretends_that_all_members_are_alike(stubs: StubSet, tmp_path: Path) -> None:
    outcome = run(stubs, tmp_path, "pretended", 2, null_mode=True)
    assert outcome.results == [{"count": 2, "all_gather": [5, 6, 5, 6], "received": [0]}] * 2
    assert outcome.records == [[], []]


def test_what_nccl_debug_writes(stubs: StubSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "info")
    monkeypatch.setenv("NCCL_DEBUG_FILE", f"{tmp_path}/%h.%p.log")
    run(stubs, tmp_path, "splits", 4, decoded=False)
    logs = sorted(tmp_path.glob("*.log"))
    assert len(logs) == 4
    said = [[line.partition(" NCCL INFO ")[2] for line in log.read_text().splitlines()] for log in logs]
    start = re.compile(r"[\w-]+:\d+:\d+ \[(\d)\] NCCL INFO ")
    assert all(start.match(line) for log in logs for line in log.read_text().splitlines())
    assert all(re.fullmatch(r"NCCL version 2\.\d+\.\d+\+cuda\d+", lines[0]) for lines in said)
    assert all("Comm config Blocking set to 1" in lines for lines in said)
    for state in ("START", "COMPLETE"):
        of_world = re.compile(
            r"ncclCommInitRankConfig comm 0x\w+ rank (\d) nranks 4 cudaDev (\d) nvmlDev (\d) busId (\w+) commId (\w+) "
            rf"- Init {state}"
        )
        found = [match.groups() for lines in said for line in lines if (match := of_world.fullmatch(line))]
        assert sorted(fact[:4] for fact in found) == [
            (str(rank),) * 3 + (f"{0x19 + 0x11 * rank:x}000",) for rank in range(4)
        ]
        assert len({fact[4] for fact in found}) == 1
        half = re.compile(rf"ncclCommSplit comm .* nranks 2 .* parent 0x\w+ splitCount 1 color \d .* - Init {state}")
        assert sum(bool(half.fullmatch(line)) for lines in said for line in lines) == 4
    assert not any("channels" in line for lines in said for line in lines)


@pytest.mark.parametrize(
    ("level", "parts", "expected"),
    [("VERSION", "ALL", ["NCCL version"]), ("WARN", "ALL", ["NCCL version", "NCCL WARN"]), ("INFO", "^INIT,ENV", None)],
)
def test_levels_and_parts_of_nccl_debug(
    stubs: StubSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, parts: str, expected: list[str] | None
) -> None:
    monkeypatch.setenv("NCCL_DEBUG", level)
    monkeypatch.setenv("NCCL_DEBUG_SUBSYS", parts)
    said: list[str] = []
    run(stubs, tmp_path, "errors", 1, decoded=False, said=said)
    kinds = {kind for kind in ("NCCL version", "NCCL WARN", "NCCL INFO") for line in said if kind in line}
    assert kinds == set(expected or ["NCCL version", "NCCL WARN", "NCCL INFO"])
    assert not any("- Init" in line or "Comm config" in line for line in said)
    if level != "VERSION":
        assert any(line.endswith("NCCL WARN Invalid rank requested : 2/2") for line in said)
