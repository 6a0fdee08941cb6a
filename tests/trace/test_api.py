"""Runs from Python: tables that Arrow, pandas, polars and DuckDB load, and what a notebook shows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import phantora
from phantora.errors import PhantoraError
from tests.support.fakelog import small_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> phantora.Run:
    return phantora.open(small_run().write(tmp_path_factory.mktemp("api") / "run.arrow"))


def test_tables(run: phantora.Run) -> None:
    steps = run.steps().to_pandas()
    assert list(steps["rank"]) == [0, 0, 0, 1, 1, 1] and list(steps["note"]) == ["start-up", "", ""] * 2
    assert list(steps["time"]) == [600_000, 1_000_000, 1_000_000] * 2
    assert (steps["end"] - steps["start"] == steps["time"]).all()
    kernels = run.kernels().to_pandas()
    assert len(kernels) == 12 and set(kernels["duration"]) == {200_000} and set(kernels["op"]) == {"aten::mm"}
    collectives = run.collectives().to_pandas()
    assert set(collectives["transfer"]) == {150_000} and len(collectives) == 6
    assert run.memory().to_pandas()["allocated"].max() == 3 << 30
    assert run.table().num_rows == run.log.num_rows
    summary = run.summary()
    assert summary["step_time_ns"] == 1_000_000 and summary["apart"] == {"start-up": [1]}


def test_texts_that_are_missing_are_nulls_with_an_index_that_exists(run: phantora.Run) -> None:
    """A reader that looks at the indices behind nulls, as polars does, must find words there."""
    table = run.table()
    assert table["op"].null_count and table["error"].null_count
    for batch in pa.ipc.open_file(run.path).read_all().to_batches():
        for column in batch.columns:
            if pa.types.is_dictionary(column.type):
                indices = pa.Array.from_buffers(
                    column.indices.type, len(column), [None, column.indices.buffers()[1]], offset=column.offset
                )
                assert min(indices.to_pylist()) >= 0 and max(indices.to_pylist()) < len(column.dictionary)


def test_polars_and_duckdb(run: phantora.Run) -> None:
    polars, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    whole = polars.read_ipc(str(run.path))
    assert whole.height == run.log.num_rows
    by_class = polars.from_arrow(run.kernels()).group_by("cls").agg(polars.col("duration").sum())
    assert by_class["duration"].to_list() == [2_400_000]
    kernels = run.kernels()  # noqa: F841  DuckDB finds it by its name
    assert duckdb.sql("select sum(duration) from kernels").fetchall() == [(2_400_000,)]


def test_what_a_notebook_shows(run: phantora.Run) -> None:
    assert "step 1.00 ms" in repr(run) and "steady steps 2" in repr(run)
    page = run._repr_html_()
    assert "1x2xH100" in page and "<table>" in page and "compute 40.0%" in page
    assert "background:#4c8fd0" in page  # what pages draw compute with


def test_what_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "x.arrow").write_text("no")
    with pytest.raises(PhantoraError, match="not a Phantora log"):
        phantora.open(tmp_path / "x.arrow")
    with pytest.raises(AttributeError):
        phantora.nothing  # noqa: B018
