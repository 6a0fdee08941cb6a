"""The log as a file: what is written is what is read, whole, cut short, or refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phantora.cli.opening import note_newer
from phantora.errors import PhantoraError
from phantora.runs.outputs import Outputs
from phantora.trace import schema, writer
from phantora.trace.analysis.grouping import group
from phantora.trace.reader import Log, open_log
from phantora.trace.recording import RECORD
from phantora.trace.schema import COLUMNS, KINDS, TEXT_COLUMNS, Tables
from phantora.trace.writer import LogWriter, kernel_name
from tests.support.fakelog import METADATA, FakeRun, Kind, large_rows, small_run, write_rows


def contents(log: Log) -> list[dict[str, object]]:
    """Every row with its texts."""
    rows = []
    for batch in log.batches():
        for i in range(len(batch)):
            row = {}
            for column in COLUMNS:
                value = batch[column][i].item()
                if column == "kind":
                    value = KINDS[value]
                elif column in TEXT_COLUMNS:
                    value = log.words(column)[value] if value >= 0 else None
                elif column == "error":
                    value = None if np.isnan(value) else value
                row[column] = value
            rows.append(row)
    return rows


def test_columns_are_those_of_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "log.md").read_text()
    table = page.split("## Columns")[1].split("##")[0]
    listed = [
        name.strip()
        for line in table.splitlines()
        if line.startswith("|")
        for name in line.split("|")[1].split(",")
        if name.strip() not in ("column", "---")
    ]
    assert sorted(listed) == sorted(COLUMNS)


def test_round_trip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "BATCH_ROWS", 7)
    run = small_run()
    log = open_log(run.write(tmp_path / "run.arrow"))
    assert log.complete and log.num_batches > 10
    assert log.metadata == METADATA
    assert log.trailer == {"rows": len(run.rows), "wall_seconds": 1.5}
    read = contents(log)
    assert len(read) == log.num_rows == len(run.rows)
    for row, wrote in zip(read, run.array(), strict=True):
        for column in ("rank", "stream", "start", "end", "launch", "ready", "id", "link", "comm", "seq", "value"):
            assert row[column] == wrote[column]
        assert row["kind"] == KINDS[wrote["kind"]]
    kernel = next(row for row in read if row["kind"] == "kernel")
    assert kernel["name"] == "nvjet_tn"
    assert (kernel["op"], kernel["shape"]) == ("aten::mm", "bf16[4096,4096], bf16[4096,14336]")
    assert (kernel["cls"], kernel["provenance"], kernel["algorithm"]) == ("gemm", "measured", None)
    assert (kernel["flops"], kernel["bytes"]) == (2e11, 3_000_000)
    collective = next(row for row in read if row["kind"] == "collective")
    assert (collective["algorithm"], collective["op"], collective["bytes"]) == ("ring/simple", None, 1 << 20)
    names = {row["kind"]: row["name"] for row in read}
    assert names["operator"] == "aten::mm"  # without a name of its own: the operator
    assert names["memcpy"] == "Memcpy DtoH (Device -> Pageable)"
    assert (names["record"], names["wait"]) == ("cudaEventRecord", "cudaStreamWaitEvent")


def test_flops_belong_to_the_main_kernel(tmp_path: Path) -> None:
    run = FakeRun()
    price = run.price("attention", "measured", 5e9, bytes=7e6, main_part=1)
    for part in range(3):
        run.add(Kind.KERNEL, 0, 10 * part, 10 * part + 5, "k", price=price, part=part)
    rows = contents(open_log(run.write(tmp_path / "run.arrow")))
    assert [(row["flops"], row["bytes"]) for row in rows] == [(0, 0), (5e9, 7_000_000), (0, 0)]
    assert {row["cls"] for row in rows} == {"attention"}


def test_kernel_name() -> None:
    assert kernel_name('{"lib":"cublas","call":"gemm","name":"nvjet"}') == "nvjet"
    assert kernel_name('{"lib":"cudnn","call":"execute"}') == "cudnn::execute"
    assert kernel_name('{"not":"a library"}') == '{"not":"a library"}'
    assert kernel_name("{broken") == "{broken"


def test_full_batches_have_a_fixed_size(tmp_path: Path) -> None:
    tables, rows = large_rows(150_000)
    log = open_log(write_rows(tmp_path / "run.arrow", METADATA, tables, rows, {}, 10_001))
    sizes = [len(log.batch(i, ("id",))) for i in range(log.num_batches)]
    assert sizes == [schema.BATCH_ROWS, schema.BATCH_ROWS, len(rows) - 2 * schema.BATCH_ROWS]


def test_the_file_depends_neither_on_pieces_nor_on_the_order_of_ids(tmp_path: Path) -> None:
    tables, rows = large_rows(150_000)
    first = write_rows(tmp_path / "a.arrow", METADATA, tables, rows, {"x": 1}).read_bytes()
    pieces = write_rows(tmp_path / "b.arrow", METADATA, tables, rows, {"x": 1}, 777).read_bytes()
    assert first == pieces

    rng = np.random.default_rng(3)
    shuffled, again = Tables(), rows.copy()
    for column, old, new in (
        ("name", tables.names, shuffled.names),
        ("sig", tables.signatures, shuffled.signatures),
        ("price", tables.prices, shuffled.prices),
    ):
        order = rng.permutation(len(old))  # new id -> old id
        new.extend(old[i] for i in order)
        place = np.argsort(order)
        again[column] = np.where(rows[column] >= 0, place[rows[column]], -1)
    assert first == write_rows(tmp_path / "c.arrow", METADATA, shuffled, again, {"x": 1}).read_bytes()


def test_tables_may_grow_while_the_log_is_written(tmp_path: Path) -> None:
    tables, rows = large_rows(150_000)
    growing = Tables()
    log_writer = LogWriter(tmp_path / "a.arrow", METADATA, growing)
    half = len(rows) // 2
    for part, share in ((rows[:half], 0.9), (rows[half:], 1.0)):
        parts: tuple[tuple[list[Any], list[Any]], ...] = (
            (tables.names, growing.names),
            (tables.signatures, growing.signatures),
            (tables.prices, growing.prices),
        )
        for old, new in parts:
            new.extend(old[len(new) : int(share * len(old)) if share < 1 else None])
        known = np.ones(len(part), bool)
        for column, table in (("name", growing.names), ("sig", growing.signatures), ("price", growing.prices)):
            known &= part[column] < len(table)
        log_writer.append(part[known])
    log_writer.close({})
    assert set(tables.names) <= set(open_log(tmp_path / "a.arrow").words("name"))


def test_rows_out_of_order_are_refused(tmp_path: Path) -> None:
    rows = small_run().array()
    with pytest.raises(ValueError, match="order of their end"):
        write_rows(tmp_path / "a.arrow", METADATA, Tables(["x"] * 99), rows[::-1], {})


def test_filters_and_projection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "BATCH_ROWS", 7)
    run = small_run()
    log = open_log(run.write(tmp_path / "run.arrow"))
    found = list(log.batches(("start",), kinds=("kernel", "memcpy"), ranks=(1,)))
    assert sum(len(batch) for batch in found) == 9
    assert all(set(batch.columns) == {"kind", "rank", "start"} for batch in found)
    backwards = list(log.batches(("end",), reverse=True))
    assert [batch.index for batch in backwards] == list(range(log.num_batches))[::-1]
    assert sum(batch.num_rows for batch in log.record_batches(["id", "name"])) == len(run.rows)


def test_rows_are_grouped_by_columns_of_small_and_large_ranges() -> None:
    columns = [np.array(values) for values in ([3, -1, 3, 3], [1 << 40, 5, 7, 1 << 40])]
    keys, place = group(columns)
    assert keys == [(-1, 5), (3, 7), (3, 1 << 40)] and place.tolist() == [2, 0, 1, 2]
    assert group([np.array([], np.int64)])[0] == []


@pytest.mark.parametrize("share", [0.03, 0.1, 0.35, 0.5, 0.75, 0.9, 0.999])
def test_a_log_cut_short_is_read_up_to_its_last_whole_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    monkeypatch.setattr(writer, "BATCH_ROWS", 7)
    whole = small_run(steps=8).write(tmp_path / "run.arrow")
    data = whole.read_bytes()
    cut = tmp_path / "cut.arrow"
    cut.write_bytes(data[: int(share * len(data))])
    everything = contents(open_log(whole))
    if share < 0.05:  # nothing but the schema
        with pytest.raises(PhantoraError, match="no rows"):
            open_log(cut).require_rows()
        return
    log = open_log(cut)
    read = contents(log)
    assert len(read) % 7 == 0 or len(read) == len(everything)
    assert len(read) > 0 and read == everything[: len(read)]
    assert share > 0.9 or not log.complete
    assert contents(log) == read  # batches can be read again, and in any order
    last = log.batch(log.num_batches - 1, ("name", "end"))
    assert last["end"].tolist() == [row["end"] for row in read[-len(last) :]]


def test_a_log_can_be_cut_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "BATCH_ROWS", 40)
    whole = small_run().write(tmp_path / "run.arrow")
    data, everything = whole.read_bytes(), contents(open_log(whole))
    cut = tmp_path / "cut.arrow"
    last = 0
    for size in range(0, len(data), 97):
        cut.write_bytes(data[:size])
        try:
            read = contents(open_log(cut))
        except PhantoraError:
            assert last == 0
            continue
        assert len(read) >= last
        assert read == everything[: len(read)]
        last = len(read)
    assert last == len(everything)


def test_a_log_can_be_cut_within_its_recording(tmp_path: Path) -> None:
    """The recording lies behind the rows, in batches without rows."""
    tables, rows = large_rows(1000)
    whole, cut = tmp_path / "run.arrow", tmp_path / "cut.arrow"
    with LogWriter(whole, METADATA, tables) as log:
        log.append(rows)
        sizes = []
        for rank in range(3):
            log.record(rank, np.frombuffer(np.random.default_rng(rank).bytes(100 * RECORD.itemsize), RECORD))
        log.close({})
    data = whole.read_bytes()
    for size in range(0, len(data), 1009):
        cut.write_bytes(data[:size])
        try:
            read = open_log(cut)
        except PhantoraError:
            continue
        sizes.append(sum(map(len, read.batches())))
        assert read.complete or not list(read.recording())  # complete: cut between trailer and footer
    assert set(sizes) == {0, 1000} and sizes.count(1000) > 10


def test_a_log_is_written_without_threads(tmp_path: Path) -> None:
    # pyarrow 26 ends the process with SIGSEGV if a limit of processes allows some of its threads and not all
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from tests.support.fakelog import METADATA, large_rows, write_rows\n"
        "threads = lambda: len(os.listdir('/proc/self/task'))\n"
        "before = threads()\n"
        "write_rows(Path('run.arrow'), METADATA, *large_rows(200_000), {})\n"
        "sys.exit(threads() - before)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True)


def test_disk_full(tmp_path: Path) -> None:
    """The file may not grow beyond 200 kB: the error names it, and what was written can be read."""
    path = tmp_path / "run.arrow"
    code = f"""
import resource, sys
from tests.support.fakelog import METADATA, large_rows, write_rows
from phantora.errors import PhantoraError
from phantora.runs.outputs import Outputs
from phantora.trace import writer
writer.BATCH_ROWS = 1000
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
try:
    write_rows({str(path)!r}, METADATA, *large_rows(50_000), {{}}, 5000)
except PhantoraError as error:
    print(error)
"""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert str(path) in done.stdout and "cannot write the log" in done.stdout
    log = open_log(path)
    assert not log.complete
    rows = log.num_rows
    assert rows > 1000 and f"its first {rows} rows can be read" in done.stdout


def test_full_device() -> None:
    with pytest.raises(PhantoraError, match=r"/dev/full: cannot .* the log: No space left on device"):
        small_run().write(Path("/dev/full"))


def test_nothing_is_written_after_a_failure(tmp_path: Path) -> None:
    log_writer = LogWriter(tmp_path / "a.arrow", METADATA, Tables())
    log_writer.close({})
    log_writer.close({})  # closing twice is harmless
    with pytest.raises(ValueError, match="closed"):
        log_writer.end_rows()


def test_errors(tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    with pytest.raises(PhantoraError, match="No such file"):
        open_log(path)
    with pytest.raises(PhantoraError, match="Is a directory"):
        open_log(tmp_path)
    with pytest.raises(PhantoraError, match="cannot create the log"):
        LogWriter(tmp_path / "no" / "x.arrow", METADATA, Tables())
    path.write_bytes(b"")
    with pytest.raises(PhantoraError, match="empty"):
        open_log(path)
    for junk in (b"x", b"hello world, this is no log", b"ARROW1\x00\x00", b"ARROW1\x00\x00" + b"junk" * 100):
        path.write_bytes(junk)
        with pytest.raises(PhantoraError, match="not a Phantora log"):
            open_log(path)
    import pyarrow as pa

    with pa.ipc.new_file(str(path), pa.schema([("a", pa.int32())])):
        pass
    with pytest.raises(PhantoraError, match="not a Phantora log"):
        open_log(path)


def test_one_run_writes_a_log_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    with LogWriter(path, METADATA, Tables()):
        for attempt in (lambda: LogWriter(path, METADATA, Tables()), lambda: Outputs.at(str(path))):
            with pytest.raises(PhantoraError, match="another run is writing it"):
                attempt()
    LogWriter(path, METADATA, Tables()).close({})
    assert Outputs.at(str(path)).written.name == "a.partial.arrow"


def test_a_log_of_a_failed_run_is_replaced_and_a_later_one_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def ends(status: int) -> Path | None:
        outputs = Outputs.at(str(path))
        LogWriter(outputs.written, METADATA, Tables()).close({"status": status})
        return outputs.settle(status == 0, rows=1)

    path, partial = tmp_path / "a.arrow", tmp_path / "a.partial.arrow"
    assert ends(1) == path and ends(1) == path and ends(0) == path
    note_newer([str(path)])
    assert ends(1) == partial and path.exists() and not capsys.readouterr().err
    note_newer([str(path)])
    assert capsys.readouterr().err == f"phantora: note: this is {path}; a later run wrote {partial}\n"
    assert ends(0) == path and not partial.exists()


def test_a_log_that_was_deleted_meanwhile_is_told(tmp_path: Path) -> None:
    log_writer = LogWriter(tmp_path / "a.arrow", METADATA, Tables())
    (tmp_path / "a.arrow").unlink()
    with pytest.raises(PhantoraError, match="was deleted while the run wrote it"):
        log_writer.close({})


def test_a_newer_log_is_refused(tmp_path: Path) -> None:
    run = small_run()
    run.metadata = type(METADATA)(**{**asdict(METADATA), "format": schema.LOG_FORMAT + 1})
    with pytest.raises(PhantoraError, match="upgrade Phantora"):
        open_log(run.write(tmp_path / "run.arrow"))


def test_metadata_of_a_later_minor_version_is_read() -> None:
    text = json.dumps({**asdict(METADATA), "something": "new"})
    assert schema.RunMetadata.from_json(text) == METADATA
