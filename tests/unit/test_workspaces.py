"""Tables of convolutions' workspaces: reading, refusing, choosing by GPU, and the form in which the stub gets them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from phantora.cost import workspaces
from phantora.cost.parse import parse_signature, write_signature
from phantora.cost.table_files import DATA
from phantora.cost.wanted import Wanted
from phantora.cost.workspaces import Bytes, Convolution, read_workspaces, workspaces_for, write_workspaces
from phantora.errors import PhantoraError
from phantora.hardware import load_gpu
from phantora.profile import forms
from phantora.profile.workspaces import calls_of
from phantora.wire import layout
from phantora.wire.workspaces import Block, keys, pack

ABOUT = {"gpu": "NVIDIA H100 80GB HBM3", "torch": "2.11.0+cu130", "cuda": "13.0", "cudnn": "91900"}
PLAIN = Convolution(
    form="fwd",
    type="bf16",
    layout="nhwc",
    x=(8, 64, 56, 56),
    w=(64, 64, 3, 3),
    stride=(1, 1),
    padding=(1, 1),
    dilation=(1, 1),
)
VOLUME = Convolution(
    form="wgrad",
    type="f16",
    layout="nchw",
    x=(2, 4, 9, 8, 7),
    w=(6, 2, 3, 1, 3),
    stride=(2, 1, 1),
    padding=(0, 1, 2),
    dilation=(1, 1, 2),
)


def packed(path: Path) -> np.ndarray:
    return pack([Block(**columns) for columns in read_workspaces(path).columns()])


def test_words_are_those_of_the_wire() -> None:
    for words, enum in (
        (workspaces.FORMS, layout.ConvForm),
        (workspaces.TYPES, layout.ConvType),
        (workspaces.LAYOUTS, layout.ConvLayout),
    ):
        assert [word.upper() for word in words] == enum.names()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    rows = {PLAIN: Bytes(7, None), VOLUME: Bytes(None, 9)}
    write_workspaces(tmp_path / "a.parquet", ABOUT, rows)
    table = read_workspaces(tmp_path / "a.parquet")
    assert table.rows() == rows and table.about == ABOUT
    assert table.described == "a.parquet: NVIDIA H100 80GB HBM3, torch 2.11.0+cu130, cuDNN 91900"
    array = packed(tmp_path / "a.parquet")
    assert {tuple(row)[1:] for row in array.tolist()} == {(8, 7, -1), (2, -1, 9)}


def test_batches_of_a_convolution_stand_together_in_order(tmp_path: Path) -> None:
    rows = {replace(PLAIN, x=(batch, 64, 56, 56)): Bytes(batch) for batch in (32, 8, 128)}
    write_workspaces(tmp_path / "a.parquet", ABOUT, rows | {VOLUME: Bytes(1)})
    array = packed(tmp_path / "a.parquet")
    assert (np.diff(array["key"].astype(object)) >= 0).all()
    own = array[array["usual"] != 1]
    assert len(set(own["key"].tolist())) == 1 and own["batch"].tolist() == own["usual"].tolist() == [8, 32, 128]


def test_every_number_counts_in_the_key(tmp_path: Path) -> None:
    others = [
        replace(PLAIN, form="dgrad"),
        replace(PLAIN, type="f16"),
        replace(PLAIN, layout="nchw"),
        replace(PLAIN, x=(8, 32, 56, 56)),
        replace(PLAIN, x=(8, 64, 57, 56)),
        replace(PLAIN, x=(8, 64, 56, 57)),
        replace(PLAIN, w=(32, 64, 3, 3)),
        replace(PLAIN, w=(64, 32, 3, 3)),
        replace(PLAIN, w=(64, 64, 3, 1)),
        replace(PLAIN, stride=(2, 1)),
        replace(PLAIN, padding=(1, 0)),
        replace(PLAIN, dilation=(1, 2)),
    ]
    write_workspaces(tmp_path / "a.parquet", ABOUT, {c: Bytes(1) for c in (PLAIN, *others)})
    (block,) = (Block(**columns) for columns in read_workspaces(tmp_path / "a.parquet").columns())
    assert len(set(keys(block).tolist())) == 1 + len(others)


def test_the_shipped_keys_are_all_different() -> None:
    for path in sorted((DATA / workspaces.FOLDER).glob("*.parquet")):
        rows = read_workspaces(path).rows()
        shapes = {replace(c, x=c.x[1:]) for c in rows}
        array = packed(path)
        assert len(array) == len(rows) and len(set(array["key"].tolist())) == len(shapes)


def test_tables_of_a_generation_complete_each_other(tmp_path: Path) -> None:
    """Each has its own bytes where both were measured. None repeats what another says."""
    h100, h200 = (read_workspaces(DATA / workspaces.FOLDER / f"{name}-sxm.parquet").rows() for name in ("h100", "h200"))
    both = h100.keys() & h200.keys()
    assert all(h100[one] != h200[one] for one in both)
    differing = min(one for one in both if h100[one].usual != h200[one].usual)
    for gpu, own in (("H100", h100), ("H200", h200)):
        found = workspaces_for(load_gpu(gpu), [DATA])
        assert found is not None
        array = pack([Block(**columns) for columns in found.columns()])
        assert len(array) == len(h100.keys() | h200.keys()) > 11_000
        write_workspaces(tmp_path / "one.parquet", ABOUT, {differing: own[differing]})
        assert packed(tmp_path / "one.parquet")[0] in array


@pytest.mark.parametrize(
    ("name", "table"),
    [("H100-SXM", "h100-sxm"), ("H200-SXM", "h200-sxm"), ("H100-PCIE", "h100-sxm"), ("A100-SXM-80GB", None)],
)
def test_a_gpu_finds_its_table_or_that_of_its_generation(name: str, table: str | None) -> None:
    found = workspaces_for(load_gpu(name), [DATA])
    assert (found and Path(found.path).stem) == table


def test_a_users_table_comes_before_the_shipped_one(tmp_path: Path) -> None:
    shipped: dict[Convolution, Bytes] = {}
    for path in (DATA / workspaces.FOLDER).glob("*.parquet"):
        shipped |= read_workspaces(path).rows()
    known = next(iter(shipped))
    write_workspaces(tmp_path / workspaces.FOLDER / "mine.parquet", ABOUT, {known: Bytes(123456), VOLUME: Bytes(1)})
    found = workspaces_for(load_gpu("H100-SXM"), [tmp_path, DATA])
    assert found is not None and "mine.parquet" in found.described
    array = pack([Block(**columns) for columns in found.columns()])
    assert VOLUME not in shipped and len(array) == len(shipped) + 1 and 123456 in array["usual"]


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    with pytest.raises(PhantoraError, match="no table of workspaces"):
        read_workspaces(path)
    path.write_bytes(b"nonsense")
    with pytest.raises(PhantoraError, match=r"a\.parquet: no table of workspaces"):
        read_workspaces(path)
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(PhantoraError, match="but no table of workspaces"):
        read_workspaces(path)
    for broken, reason in (
        ({PLAIN: Bytes(-5)}, "negative"),
        ({replace(PLAIN, w=(64, 64, 3)): Bytes(5)}, "do not belong together"),
        ({replace(PLAIN, form="sideways"): Bytes(5)}, "sideways"),
    ):
        write_workspaces(path, ABOUT, broken)
        with pytest.raises(PhantoraError, match=reason):
            read_workspaces(path)


def test_convolutions_of_a_run_are_measured_one_gradient_at_a_time() -> None:
    forward, backward, *_ = forms.convolution(8, 64, 64, 56, 3, 1, "bfloat16", True)
    calls = calls_of([Wanted(signature='{"op":"aten::mm","args":[]}'), backward, forward, forward])
    assert [c.form for c in calls] == ["dgrad", "wgrad", "fwd"]
    assert {replace(c, form="fwd") for c in calls} == {PLAIN}
    for convolution, call in calls.items():
        signature = parse_signature(call.signature)
        assert workspaces.convolution_of(signature, call.compute) == convolution
        assert write_signature(signature) == call.signature


def test_tables_are_read_without_threads() -> None:
    """A run may be allowed few: to read its tables failed then, and blamed them."""
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom phantora.cost.parquet import read_columns\n"
        "count = lambda: len(os.listdir('/proc/self/task'))\nbefore = count()\n"
        "read_columns(Path(sys.argv[1]), ['gpu', 'x', 'w', 'usual', 'largest'])\nprint(before, count())\n"
    )
    path = str(DATA / "workspaces" / "h100-sxm.parquet")
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    before, after = done.stdout.split()
    assert before == after
