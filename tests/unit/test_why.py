"""Causes of hangs and out-of-memory errors from files that torch writes, and hostile files."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from phantora.dumps.plain_pickle import load
from phantora.dumps.why import why
from phantora.errors import PhantoraError
from phantora.trace.analysis.analyze import analyze
from phantora.trace.analysis.render import render
from phantora.trace.reader import open_log
from tests.support.fakelog import small_run

PAIR = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
FOUR = {
    "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"},
    "1": {"name": "1", "desc": "tp", "ranks": "[0, 1]"},
    "2": {"name": "2", "desc": "dp", "ranks": "[0, 2]"},
}


def call(
    name: str = "all_reduce",
    sequence: int = 1,
    state: str = "completed",
    size: Sequence[int] = (8,),
    line: int = 10,
    group: str = "0",
    at: int = 0,
    p2p: bool = False,
) -> dict[str, Any]:
    return {
        "frames": [
            {"name": name, "filename": "/x/site-packages/torch/distributed/distributed_c10d.py", "line": 3068},
            {"name": "<module>", "filename": "/home/me/train.py", "line": line},
        ],
        "process_group": (group, "default_pg"),
        "collective_seq_id": 0 if p2p else sequence,
        "p2p_seq_id": sequence if p2p else 0,
        "profiling_name": f"nccl:{name}",
        "time_created_ns": at * 10**9,
        "input_sizes": [list(size)],
        "input_dtypes": ["Float"],
        "output_sizes": [list(size)],
        "state": state,
        "timeout_ms": 600000,
        "is_p2p": p2p,
    }


def dump(folder: Path, groups: dict[str, Any], *ranks: list[dict[str, Any]] | None) -> str:
    """Writes dumps, None of a rank without one, and returns the answer."""
    paths = []
    for rank, entries in enumerate(ranks):
        if entries is not None:
            numbered = [{**entry, "record_id": number} for number, entry in enumerate(entries)]
            path = folder / f"nccl_trace_rank_{rank}"
            path.write_bytes(pickle.dumps({"version": "2.10", "pg_config": groups, "entries": numbered}, protocol=2))
            paths.append(str(path))
    return str(why(paths))


WAITS: dict[str, Any] = {"state": "scheduled"}
HANGS = {
    "a rank is missing": (
        PAIR,
        ([call(), call(sequence=2, line=12, at=3, **WAITS)], [call(at=9)]),
        ["rank 1 did not issue all_reduce of 8 float (number 2 of default_pg, ranks 0-1)", "rank 0 in all_reduce"],
    ),
    "a rank issued another collective": (
        PAIR,
        ([call("broadcast", line=7, **WAITS)], [call("all_reduce", line=9, **WAITS)]),
        ["rank 1 issued another collective than rank 0", "rank 1: all_reduce of 8 float at train.py:9, scheduled"],
    ),
    "sizes differ": (
        PAIR,
        ([call(size=(8,), **WAITS)], [call(size=(4, 2), line=11, **WAITS)]),
        ["rank 1 issued all_reduce of another size or type than rank 0", "1: all_reduce of 4x2 float at train.py:11"],
    ),
    "uneven parts of an all-to-all are no mismatch": (
        PAIR,
        ([call("all_to_all", size=(8,), **WAITS)], [call("all_to_all", size=(6,), **WAITS)]),
        ["all ranks issued all_to_all of 8 float", "it does not end: work before it on a GPU, the network or NCCL"],
    ),
    "a rank has no dump": (PAIR, ([call(**WAITS)], None), ["rank 1 wrote no dump, and all_reduce of 8 float waits"]),
    "one GPU does not reach it": (
        PAIR,
        ([call(state="started")], [call(state="scheduled")]),
        ["all ranks issued all_reduce of 8 float", "on rank 1 the GPU's work before it does not end"],
    ),
    "the chain ends at the missing rank": (  # 3 waits for 2, 2 for 0, 0 for 1, and 1 is elsewhere
        FOUR,
        (
            [call(group="1", line=20, at=1, **WAITS)],
            [],
            [call(group="2", line=30, at=2, **WAITS)],
            [call(group="0", line=40, at=3, **WAITS)],
        ),
        ["rank 1 did not issue all_reduce of 8 float (number 1 of tp, ranks 0-1)", "train.py:20"],
    ),
    "two groups in different orders": (
        {"1": {"desc": "a", "ranks": "[0, 1]"}, "2": {"desc": "b", "ranks": "[0, 1]"}},
        ([call(group="1", line=5, **WAITS)], [call(group="2", line=6, **WAITS)]),
        ["ranks 0-1 wait for each other", "rank 1: all_reduce of 8 float of b at train.py:6, scheduled"],
    ),
    "both send first": (
        PAIR,
        ([call("send 0->1", line=3, p2p=True, **WAITS)], [call("send 1->0", line=4, p2p=True, **WAITS)]),
        ["ranks 0-1 wait for each other", "rank 0 in send of 8 float of default_pg at train.py:3"],
    ),
    "a receive without a send": (
        PAIR,
        ([call("recv 0<-1", line=3, p2p=True, **WAITS)], [call(line=8)]),
        ["rank 1 did not issue recv of 8 float", "rank 1: all_reduce of 8 float at train.py:8, completed"],
    ),
    "nothing waits": (PAIR, ([call()], [call()]), ["none: every call in these dumps has completed"]),
}  # fmt: skip


@pytest.mark.parametrize("case", HANGS)
def test_the_cause_of_a_hang(tmp_path: Path, case: str) -> None:
    groups, ranks, expected = HANGS[case]
    text = dump(tmp_path, groups, *ranks)
    assert [part for part in expected if part not in text] == [], text


REAL = {  # of two H200 with torch 2.11: validation/probes/dumps.py
    "missing": ["rank 1 did not issue all_reduce of 1024 float", "rank 0 in all_reduce of 1024 float at train.py:32"],
    "mismatch": ["rank 1 issued another collective than rank 0", "rank 0: broadcast of 1024 float at train.py:34"],
    "size": ["all_reduce of another size or type", "rank 0: all_reduce of 512 float at train.py:36, completed"],
    "order": ["ranks 0-1 wait for each other", "of default_pg at train.py:39", "of group 1 at train.py:39"],
    "receive": ["rank 0 wrote no dump, and every call in the other dumps has completed"],
    "busy": ["all ranks issued all_reduce of 1024 float", "work before it on a GPU, the network or NCCL"],
    "fine": ["none: every call in these dumps has completed"],
    "leak": ["64.0 MiB asked at train.py:64", "train.py:64 keeps 28 blocks, 1.66 GiB", "detach it"],
    "fragmentation": ["212.9 MiB unallocated in 5 pieces, the largest 88.0 MiB: fragmentation", "expandable_segments"],
}  # fmt: skip


@pytest.mark.parametrize("case", REAL)
def test_the_causes_of_real_jobs(case: str) -> None:
    text = str(why(sorted(map(str, Path("tests/golden/dumps", case).iterdir()))))
    assert [part for part in REAL[case] if part not in text] == [], text


GIB = 1 << 30


def frames(line: int) -> list[dict[str, Any]]:
    return [
        {"name": "malloc", "filename": "CUDACachingAllocator.cpp", "line": 0},
        {"name": "forward", "filename": "/x/site-packages/torch/nn/modules/linear.py", "line": 134},
        {"name": "step", "filename": "/home/me/train.py", "line": line},
    ]


def event(action: str, address: int, size: int, line: int, time: int, **more: Any) -> dict[str, Any]:
    return {
        "action": action,
        "addr": address,
        "size": size,
        "stream": 0,
        "time_us": time,
        "frames": frames(line),
    } | more


def snapshot(path: Path, events: list[dict[str, Any]], free: Sequence[int] = (), settings: Any = None) -> str:
    """Writes the snapshot of `events`, whose live blocks and `free` pieces make the segments."""
    alive: dict[int, int] = {}
    for one in events:
        if one["action"] == "alloc":
            alive[one["addr"]] = one["size"]
        elif one["action"] == "free_completed":
            del alive[one["addr"]]
    blocks: list[dict[str, Any]] = [
        {"address": address, "size": size, "state": "active_allocated", "frames": []} for address, size in alive.items()
    ]
    blocks += [{"address": -1 - number, "size": size, "state": "inactive"} for number, size in enumerate(free)]
    segments = [{"device": 0, "total_size": sum(block["size"] for block in blocks), "blocks": blocks}]
    value = {"segments": segments, "device_traces": [events], "allocator_settings": settings or {}}
    path.write_bytes(pickle.dumps(value, protocol=4))
    return str(path)


def step(number: int, kept: int) -> list[dict[str, Any]]:
    """A step that frees its activations of 4 GiB and keeps `kept` bytes at line 27."""
    at, address = 1000 * number, 1 + 10 * number
    found = [event("alloc", address, 4 * GIB, 15, at), event("free_completed", address, 4 * GIB, 15, at + 500)]
    return [*found, event("alloc", address + 1, kept, 27, at + 600)] if kept else found


PARAMETERS = [event("alloc", 10_000 + k, GIB, 5, k) for k in range(6)]


def test_a_leak_is_the_line_whose_blocks_stay(tmp_path: Path) -> None:
    events = [*PARAMETERS, *(one for number in range(1, 9) for one in step(number, 2 * GIB))]
    events.append(event("oom", 0, 4 * GIB, 15, 9000, device_free=GIB))
    text = str(why([snapshot(tmp_path / "oom.pickle", events)]))
    assert "4.00 GiB asked at train.py:15, 1.00 GiB free" in text
    assert "HELD BY   train.py:27 16.00 GiB, train.py:5 6.00 GiB" in text
    assert "train.py:27 keeps 8 blocks, 16.00 GiB, none of them freed" in text
    assert "detach it, use torch.no_grad" in text


def test_parameters_and_activations_are_no_leak(tmp_path: Path) -> None:
    events = [*PARAMETERS, *(one for number in range(1, 9) for one in step(number, 0))]
    events += [event("alloc", 50_000 + k, GIB, 15, 9000 + k) for k in range(9)]  # a forward pass
    events.append(event("oom", 0, 4 * GIB, 16, 9100, device_free=0))
    text = str(why([snapshot(tmp_path / "oom.pickle", events)]))
    assert "GROWS" not in text and "phantora fits of the script" in text


def test_fragmentation_is_named(tmp_path: Path) -> None:
    events = [*PARAMETERS, event("oom", 0, 3 * GIB, 15, 9, device_free=0)]
    text = str(why([snapshot(tmp_path / "oom.pickle", events, free=[2 * GIB, 2 * GIB])]))
    assert "4.00 GiB unallocated in 2 pieces, the largest 2.00 GiB: fragmentation" in text
    assert "expandable_segments:True" in text


def test_two_snapshots_differ_by_block(tmp_path: Path) -> None:
    real = snapshot(tmp_path / "real.pickle", [*PARAMETERS, event("alloc", 1, 3 * GIB, 15, 9)])
    simulated = snapshot(tmp_path / "sim.pickle", PARAMETERS)
    text = str(why([real, simulated]))
    assert f"9.00 GiB in {real}, 6.00 GiB in {simulated}" in text
    assert f"LACKS     {simulated}: 1 block of 3.00 GiB, train.py:15" in text


class Evil:
    def __reduce__(self) -> Any:
        return (print, ("called",))


PLAIN = {"a": [1, -5, 2**70, 2.5, None, True, False, "é", b"x"], ("t", 1): {"nested": [[], {}, ()]}, "same": [1] * 3}


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_plain_pickles_are_read(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "x.pickle"
    value = PLAIN if protocol > 2 else {**PLAIN, "a": ["é", 1]}  # protocol 2 has no bytes
    path.write_bytes(pickle.dumps(value, protocol=protocol))
    assert load(path) == value


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pickle.dumps(Evil()), "is refused: its pickle has the operation STACK_GLOBAL"),
        (pickle.dumps(Evil(), protocol=2), "is refused: its pickle has the operation GLOBAL"),
        (b"\x80\x02(S'x'\ni__builtin__\nprint\n.", "is refused: its pickle has the operation"),
        (b"\x80\x02P1\n.", "is refused: its pickle has the operation PERSID"),
        (pickle.dumps(PLAIN)[:-20], "is no complete pickle"),
        (b"\x80\x02u.", "is no complete pickle"),
        (b"\x80\x02]q\x00h\x09.", "is no complete pickle"),
        (b"\x80\x02}]K\x01s.", "is no complete pickle"),
        (b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.", "is no complete pickle"),
        (pickle.dumps([1]), "is no memory snapshot of torch"),
        (pickle.dumps({"segments": 3, "device_traces": []}), "is a damaged memory snapshot"),
        (pickle.dumps({"segments": [], "device_traces": []}), "is an empty memory snapshot"),
    ],
)
def test_hostile_files_end_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes, message: str
) -> None:
    path = tmp_path / "x.pickle"
    path.write_bytes(data)
    with pytest.raises(PhantoraError, match=message) as caught:
        why([str(path)])
    assert "\n" not in str(caught.value) and capsys.readouterr().out == ""


def test_a_log_gives_the_largest_delay() -> None:
    text = str(why(["tests/golden/small.arrow"]))
    assert text.startswith("STEP") and "NEXT" in text
    assert len(text.splitlines()) <= 5


DEADLOCK = "deadlock: a rank ended before the collectives of its group; find out why it ended"
ABSENT = "rank 0 waits in all_reduce of 8 float32 (called at train.py:9); not there: rank 1"


@pytest.mark.parametrize(
    ("reason", "error", "line", "question"),
    [
        ("hang", f"{DEADLOCK}\n  {ABSENT}\n  rank 1 has exited", f"{DEADLOCK}: {ABSENT}", "hang"),
        ("script failed", "rank 1 at train.py:5: ValueError: no", "rank 1 at train.py:5: ValueError: no", "failure"),
    ],
)
def test_the_log_of_a_failed_run_gives_its_failure(
    tmp_path: Path, reason: str, error: str, line: str, question: str
) -> None:
    run = small_run()
    run.trailer |= {"status": 1, "reason": reason, "error": error}
    path = run.write(tmp_path / "run.arrow")
    found = why([str(path)])
    assert (found.question, found.lines) == (question, (("FAILED", line),))
    report = analyze(open_log(path))
    assert (report.failure, report.complete) == (line, False)
    out = io.StringIO()
    render(report, Console(file=out, width=300))
    assert out.getvalue().splitlines()[0] == f"FAILED: {line}"


def test_the_log_of_an_interrupted_run_gives_the_largest_delay(tmp_path: Path) -> None:
    run = small_run()
    run.trailer |= {"status": 130, "reason": "interrupted", "error": "interrupted by SIGINT"}
    path = run.write(tmp_path / "run.arrow")
    assert why([str(path)]).question == "speed" and not analyze(open_log(path)).complete


def test_files_that_are_no_dumps(tmp_path: Path) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({"entries": []}))
    with pytest.raises(PhantoraError, match="is no dump of NCCL's flight recorder: KeyError 'pg_config'"):
        why([str(path)])
    with pytest.raises(PhantoraError, match="are both of rank 0"):
        dump(tmp_path, PAIR, [call()])
        (tmp_path / "copy").mkdir()
        (tmp_path / "copy" / path.name).write_bytes(path.read_bytes())
        why([str(path), str(tmp_path / "copy" / path.name)])
