"""The native trace in Perfetto's own trace processor: every slice of the log, and not one error."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from phantora.cli.export import export as command
from phantora.cli.query import query
from phantora.errors import PhantoraError
from phantora.trace import writer
from phantora.trace.export import export, proto
from phantora.trace.export.selection import Selection, parse_kinds, parse_numbers
from phantora.trace.reader import open_log
from phantora.trace.schema import KINDS
from tests.support.fakelog import FakeRun, Kind, small_run
from tests.support.trace_processor import ask

SLICES = """
    select s.category, s.name, s.ts, s.dur, p.name, coalesce(t.name, h.name), s.depth
    from slice s join track t on s.track_id = t.id
    left join process_track pt on pt.id = t.id left join thread_track tt on tt.id = t.id
    left join thread h using (utid)
    left join process p on p.upid = coalesce(pt.upid, h.upid)"""
FLOWS = """
    select a.category, a.ts, b.category, b.ts from flow f
    join slice a on f.slice_out = a.id join slice b on f.slice_in = b.id"""


def test_perfettos_own_messages_know_every_byte(tmp_path: Path) -> None:
    """Written again by the package perfetto, a trace is the same message: no field is unknown, none is lost."""
    from google.protobuf.unknown_fields import UnknownFieldSet
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

    (path,) = export(small_run().write(tmp_path / "run.arrow"), str(tmp_path / "run.perfetto"))
    trace = pb.Trace.FromString(Path(path).read_bytes())
    assert len(trace.packet) > 50
    for packet in trace.packet:
        assert len(UnknownFieldSet(packet)) == 0
        payload = packet.WhichOneof("data")
        if payload is not None and packet.DESCRIPTOR.fields_by_name[payload].message_type is not None:
            assert len(UnknownFieldSet(getattr(packet, payload))) == 0
    assert pb.Trace.FromString(trace.SerializeToString()) == trace


def test_small_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "BATCH_ROWS", 9)  # many batches
    run = small_run()
    log = run.write(tmp_path / "run.arrow")
    (path,) = export(log, str(tmp_path / "run.perfetto"))
    slices, flows, arguments, counters = ask(
        Path(path),
        SLICES,
        FLOWS,
        """select s.name, a.key, coalesce(a.string_value, a.int_value, a.real_value) from slice s
           join args a using (arg_set_id)
           where s.category in ('kernel', 'collective') and s.ts < 10310000""",
        """select p.name, t.name, c.ts, c.value from counter c
           join process_counter_track t on c.track_id = t.id
           join process p using (upid)""",
    )
    drawn = ("kernel", "memcpy", "collective", "record", "wait", "sync", "operator", "annotation")
    expected = Counter(
        (KINDS[row["kind"]], row["start"], row["end"] - row["start"], f"rank {row['rank']} (host 0, H100)")
        for row in run.rows
        if KINDS[row["kind"]] in drawn
    )
    assert Counter((s[0], s[2], s[3], s[4]) for s in slices if s[0] in drawn) == expected
    tracks = {(s[0], s[5]) for s in slices}
    assert ("kernel", "stream 0 (compute)") in tracks and ("collective", "stream 1 (all_reduce default_pg)") in tracks
    assert ("transfer", "default_pg (ranks 0-1)") in tracks
    assert ("operator", "main") in tracks and ("operator", "thread 1") in tracks
    assert {s[1] for s in slices if s[5] == "steps"} == {"step 1", "step 2", "step 3"}
    assert not any("overlap" in track for _, track in tracks)
    # A launch lies on the thread of its operator, inside it.
    assert {(s[5], s[6]) for s in slices if s[0] == "launch" and s[2] == 10_064_000} == {("thread 1", 1)}

    launches = 2 * 3 * 4  # ranks, steps; two kernels, a collective, a copy
    found = Counter((out, into) for out, _, into, _ in flows)
    assert found == {
        ("launch", "kernel"): launches // 2,
        ("launch", "collective"): launches // 4,
        ("launch", "memcpy"): launches // 4,
        ("record", "release"): 6,
        ("memcpy", "release"): 6,
    }
    assert all(before <= after for _, before, _, after in flows)

    found_arguments = {(name, key): value for name, key, value in arguments}
    assert found_arguments["nvjet_tn", "debug.op"] == "aten::mm"
    assert found_arguments["nvjet_tn", "debug.shape"] == "bf16[4096,4096], bf16[4096,14336]"
    assert found_arguments["nvjet_tn", "debug.class"] == "gemm"
    assert found_arguments["nvjet_tn", "debug.flops"] == 2e11
    collective = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
    assert found_arguments[collective, "debug.provenance"] == "analytic"
    assert found_arguments[collective, "debug.algorithm"] == "ring/simple"
    assert found_arguments[collective, "debug.bytes"] == 1 << 20
    assert found_arguments[collective, "debug.wait_ns"] == 50_000
    allocated = [
        (ts, value) for process, name, ts, value in counters if name == "memory allocated" and "0 (" in process
    ]
    assert sorted(allocated)[:3] == [(10_015_000, 1 << 30), (10_045_000, 3 << 30), (10_720_000, 1 << 29)]
    assert {value for _, name, _, value in counters if name == "memory reserved"} == {4 << 30}


def nested(run: FakeRun, rng: np.random.Generator, start: int, end: int, depth: int) -> None:
    """Operators inside operators, many with a begin or an end in common, some of no length."""
    run.add(Kind.OPERATOR, 0, start, end, f"op{depth}")
    cuts = sorted(rng.integers(start, end + 1, 2 * int(rng.integers(0, 3))).tolist())
    if cuts and rng.random() < 0.6:
        cuts[0] = start
    if cuts and rng.random() < 0.6:
        cuts[-1] = end
    if depth < 5:
        for a, b in zip(cuts[::2], cuts[1::2], strict=True):
            nested(run, rng, a, b, depth + 1)


@pytest.mark.parametrize("rows", [1, 13, 10_000])
def test_nesting_survives_ties(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(writer, "BATCH_ROWS", rows)
    rng = np.random.default_rng(rows)
    run, at = FakeRun(), 0
    for _ in range(60):
        end = at + int(rng.integers(1, 40))
        nested(run, rng, at, end, 0)
        at = end
    (path,) = export(run.write(tmp_path / "run.arrow"), str(tmp_path / "run.perfetto"))
    (slices,) = ask(Path(path), SLICES)
    assert Counter((s[1], s[2], s[3]) for s in slices) == Counter(
        (run.tables.names[row["name"]], row["start"], row["end"] - row["start"]) for row in run.rows
    )
    assert {s[5] for s in slices} == {"main"}
    twins = Counter((s[2], s[3]) for s in slices)
    for s in slices:
        if s[3] and (twins[s[2], s[3]] == 1 or rows == 10_000):
            assert s[6] == int(s[1][2:])  # as deep as it was made


@pytest.mark.parametrize("rows", [4, 10_000])
def test_slices_that_cross_go_to_tracks_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(writer, "BATCH_ROWS", rows)
    rng = np.random.default_rng(7)
    run = FakeRun()
    for i in range(120):
        start = int(rng.integers(0, 1000))
        end = start + int(rng.integers(0, 60))
        run.add(Kind.FLOW, i % 2, start, end, f"link {i % 3}", bytes=i)
        run.add(Kind.ANNOTATION, i % 2, start, end, f"span {i}")
        run.add(Kind.KERNEL, i % 2, start, end, f"kernel {i}", stream=i % 3)
    (path,) = export(run.write(tmp_path / "run.arrow"), str(tmp_path / "run.perfetto"))
    slices, tracks = ask(Path(path), SLICES, "select name from track")
    expected = Counter((KINDS[row["kind"]], row["start"], row["end"] - row["start"]) for row in run.rows)
    assert Counter((s[0], s[2], s[3]) for s in slices) == expected
    names = {track for (track,) in tracks}
    assert {"link 0", "link 0 (overlap 1)", "stream 1 (compute) (overlap 1)", "main (overlap 1)"} <= names
    assert {s[4] for s in slices if s[0] == "flow"} == {"network"}


def test_sends_meet_receives(tmp_path: Path) -> None:
    run = FakeRun()
    for seq in range(3):
        t = 1000 * seq
        for rank in (0, 1):
            run.add(
                Kind.SENDRECV,
                rank,
                t + 10 * rank,
                t + 500,
                "ncclDevKernel_SendRecv",
                comm=0,
                seq=seq,
                ready=t + 100,
                value=1 - rank,
                bytes=4096,
            )
    (path,) = export(run.write(tmp_path / "run.arrow"), str(tmp_path / "run.perfetto"))
    flows, peers = ask(
        Path(path),
        FLOWS,
        "select int_value from slice join args using (arg_set_id) where key = 'debug.peer' order by 1",
    )
    assert sorted(flows) == [["transfer", t, "transfer", t] for t in (100, 1100, 2100)]
    assert [peer for (peer,) in peers] == [0] * 6 + [1] * 6


def test_selection_and_compression(tmp_path: Path) -> None:
    log = str(small_run().write(tmp_path / "run.arrow"))
    out = str(tmp_path / "part.pftrace.gz")
    done = CliRunner().invoke(
        command, [log, "-o", out, "--ranks", "1", "--steps", "2-3", "--kinds", "kernel,collective"]
    )
    assert (done.exit_code, done.output) == (0, out + "\n"), done
    (slices,) = ask(Path(out), SLICES)
    assert {s[0] for s in slices} == {"kernel", "collective", "transfer", "launch", "step"}
    assert {s[4] for s in slices} == {"rank 1 (host 0, H100)"}
    assert min(s[2] for s in slices) == 10_700_000
    assert sum(s[0] == "kernel" for s in slices) == 4


def test_export_of_a_log_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "BATCH_ROWS", 9)
    data = small_run().write(tmp_path / "run.arrow").read_bytes()
    (tmp_path / "cut.arrow").write_bytes(data[: len(data) // 2])
    (path,) = export(tmp_path / "cut.arrow", str(tmp_path / "run.perfetto"))
    kernels = sum(len(b) for b in open_log(tmp_path / "cut.arrow").batches(("id",), kinds=("kernel",)))
    assert ask(Path(path), "select count(*) from slice where category = 'kernel'") == [[[kernels]]]
    assert kernels > 0


def test_errors(tmp_path: Path) -> None:
    log = small_run().write(tmp_path / "run.arrow")
    with pytest.raises(PhantoraError, match=r"end the path with one of \.perfetto"):
        export(log, "x.txt")
    with pytest.raises(PhantoraError, match="there is no folder"):
        export(log, str(tmp_path / "no" / "x.perfetto"))
    with pytest.raises(PhantoraError, match="no rows of rank 9; the run had ranks 0 to 1"):
        export(log, str(tmp_path / "x.perfetto"), Selection(ranks=frozenset({9})))
    with pytest.raises(PhantoraError, match="the log has 1, 2, 3"):
        export(log, str(tmp_path / "x.perfetto"), Selection(steps=frozenset({9})))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.arrow"]  # nothing half done is left
    assert parse_numbers("0-3,7") == {0, 1, 2, 3, 7}
    for wrong in ("", "a", "3-1", "1-"):
        with pytest.raises(PhantoraError, match="write it like 0-3,7"):
            parse_numbers(wrong)
    with pytest.raises(PhantoraError, match="unknown kind of row"):
        parse_kinds("kernel,nonsense")


def test_columns_of_bytes_are_what_single_messages_are() -> None:
    values = np.array([1, 300, 7], np.int64)
    matrix = proto.rows(3, proto.message(4, proto.number(9, 1), *proto.numbers(11, values)))
    assert matrix[1].tobytes() == proto.blob(4, proto.number(9, 1), proto.number(11, 300))
    assert matrix[0].tobytes() == b"\x22\x05\x48\x01\x58\x81\x00"  # 1, padded to two bytes


def test_without_arrows(tmp_path: Path) -> None:
    """The file for the page has neither flows nor their marks, and the same slices."""
    log = small_run().write(tmp_path / "run.arrow")
    (plain,) = export(log, str(tmp_path / "plain.perfetto"), Selection(arrows=False))
    (whole,) = export(log, str(tmp_path / "whole.perfetto"))
    (few, flows), (many, _) = (ask(Path(path), SLICES, FLOWS) for path in (plain, whole))
    marks = {"launch", "release"}
    assert flows == [] and not {s[0] for s in few} & marks
    assert sorted(map(str, few)) == sorted(str(s) for s in many if s[0] not in marks)


def test_queries_of_the_page(tmp_path: Path) -> None:
    """The queries of docs/query.md, by the real trace processor."""
    run = small_run()
    for rank in range(2):
        run.add(Kind.POWER, rank, 0, 5_000_000, stream=0, value=2_500_000)
    export(run.write(tmp_path / "run.arrow"), str(tmp_path / "run.perfetto"))
    page = (Path(__file__).resolve().parents[2] / "docs" / "query.md").read_text()
    kernels, waits, counters = ask(tmp_path / "run.perfetto", *re.findall(r"```sql\n(.*?)\n```", page, re.DOTALL))
    assert kernels[0][1] == 12 and kernels[0][2] == pytest.approx(2.4)
    assert waits and waits[0][2] == pytest.approx(0.15)  # rank 0 waits 50 us in each of three steps
    assert [row[2] for row in counters if row[1] == "power"] == [500, 500]


def test_query_without_a_trace_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = str(small_run().write(tmp_path / "run.arrow"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("PERFETTO_BIN", raising=False)
    with pytest.raises(PhantoraError, match="no trace processor: put trace_processor_shell"):
        CliRunner().invoke(query, [log, "select 1"], catch_exceptions=False)
    monkeypatch.setenv("PERFETTO_BIN", str(tmp_path / "none"))
    with pytest.raises(PhantoraError, match="no program is there"):
        CliRunner().invoke(query, [log, "select 1"], catch_exceptions=False)
