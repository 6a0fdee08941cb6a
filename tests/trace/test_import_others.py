"""Logs from Nsight Systems' exports and from execution traces."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from phantora.errors import PhantoraError
from phantora.importers import READERS, import_traces
from phantora.trace.other_files import instead
from phantora.trace.reader import open_log
from tests.support.kineto_files import Trace
from tests.trace.test_import_kineto import only

_PROCESS, _THREAD = 0x1_0000_0000_0000, 0x1_0000_0000_0000 + 77
_TEXTS = (
    "",
    "void gemm<float>(float*)",
    "gemm",
    "cudaLaunchKernel_v7000",
    "cudaDeviceSynchronize_v3020",
    "",
    "aten::mm, seq = 1, op_id = 4, sizes = [[128, 256], [256, 512]]",
    "forward",
)


def nsight(path: Path, old: bool = False) -> Path:
    """Two GPUs of two processes; `old`: as versions before 2022 wrote it, with fewer columns."""
    file = sqlite3.connect(path)
    file.execute("create table StringIds (id integer, value text)")
    file.executemany("insert into StringIds values (?, ?)", list(enumerate(_TEXTS)))
    kernel = "start, end, deviceId, streamId, correlationId, globalPid, " + ("shortName" if old else "demangledName")
    file.execute(f"create table CUPTI_ACTIVITY_KIND_KERNEL ({kernel})")
    file.execute("create table CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId)")
    file.execute("create table NVTX_EVENTS (start, end, eventType, text, globalTid" + ("" if old else ", textId") + ")")
    for gpu in (0, 1):
        process, thread = _PROCESS + (gpu << 24), _THREAD + (gpu << 24)
        file.execute(
            "insert into CUPTI_ACTIVITY_KIND_KERNEL values (?, ?, ?, 7, 5, ?, ?)",
            (2000, 2750, gpu, process, 2 if old else 1),
        )
        file.executemany(
            "insert into CUPTI_ACTIVITY_KIND_RUNTIME values (?, ?, ?, ?, ?)",
            [(1010, 1020, thread, 5, 3), (1030, 2800, thread, 6, 4)],
        )
        ranges = [(1000, 1025, 59, 6), (900, 3000, 59, 7)]
        for start, end, kind, text in ranges:
            values = (start, end, kind, _TEXTS[text], thread) if old else (start, end, kind, None, thread, text)
            file.execute(f"insert into NVTX_EVENTS values ({', '.join('?' * len(values))})", values)
    file.commit()
    file.close()
    return path


@pytest.mark.parametrize("old", [False, True])
def test_nsight(tmp_path: Path, old: bool) -> None:
    imported = import_traces([str(nsight(tmp_path / "t.sqlite", old))], str(tmp_path / "real.arrow"))
    assert imported.ranks == [0, 1] and "memory" in imported.missing and "shapes" not in imported.missing
    log = open_log(tmp_path / "real.arrow")
    for rank in (0, 1):
        (kernel,), (operator,), (sync,), (mark,) = (
            [row for row in only(log, kind) if row["rank"] == rank]
            for kind in ("kernel", "operator", "sync", "annotation")
        )
        assert (kernel["start"], kernel["end"], kernel["launch"]) == (1100, 1850, 110)  # from the first event on
        assert kernel["name"] == _TEXTS[2 if old else 1] and kernel["link"] == operator["id"]
        assert (kernel["op"], kernel["shape"]) == ("aten::mm", "tensor[128,256], tensor[256,512]")
        assert sync["link"] == kernel["id"] and mark["name"] == "forward"


def test_files_that_are_no_export_of_nsight_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.sqlite").write_text("no database")
    with pytest.raises(PhantoraError, match="nsys export"):
        import_traces([str(tmp_path / "t.sqlite")], str(tmp_path / "real.arrow"))


def test_execution_traces_have_operators_with_their_tensors(tmp_path: Path) -> None:
    inputs = {
        "values": [[1, 2, 0, 64, 2, "cuda:0"], [3, 4, 0, 1, 8, "cpu"], [[5, 6, 0, 8, 4, "cuda:0"]], 2],
        "shapes": [[8, 8], [], [[8]], []],
        "types": ["Tensor(c10::BFloat16)", "Tensor(double)", "GenericList[Tensor(float)]", "Int"],
    }
    process = {"id": 1, "name": "[pytorch|profiler|execution_trace|process]"}
    nodes = [process, {"id": 2, "name": "aten::mul", "inputs": inputs}]
    (tmp_path / "et.json").write_text(json.dumps({"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": nodes}))
    imported = import_traces([str(tmp_path / "et.json")], str(tmp_path / "real.arrow"))
    (operator,) = only(open_log(tmp_path / "real.arrow"), "operator")
    assert operator["shape"] == "bf16[8,8], fp64[]@cpu, (fp32[8]), 2"
    assert "times" in imported.missing


def test_an_execution_trace_gives_its_arguments_to_the_trace_of_its_run(tmp_path: Path) -> None:
    trace = Trace()
    mm = trace.operator("aten::mm", 10, 50)
    trace.events[-1]["args"]["Record function id"] = 41
    trace.kernel("nvjet_tst", 20, 70, 30.5, external=mm)
    kineto = trace.write(tmp_path / "kineto.json")
    tensor = [1, 1, 0, 4, 2, "cuda:0"]
    node = {
        "id": 3,
        "name": "aten::mm",
        "attrs": [{"name": "rf_id", "type": "uint64", "value": 41}],
        "inputs": {
            "values": [tensor, tensor],
            "shapes": [[128, 256], [256, 512]],
            "types": ["Tensor(c10::BFloat16)", "Tensor(c10::BFloat16)"],
        },
    }
    observed = tmp_path / "et.json"
    observed.write_text(json.dumps({"schema": "1.1.0-chakra.0.0.4", "nodes": [node]}))
    import_traces([str(observed), str(kineto)], str(tmp_path / "real.arrow"))
    (batch,) = open_log(tmp_path / "real.arrow").batches(("start", "shape", "flops"), ("kernel",))
    assert batch["flops"].tolist() == [2.0 * 128 * 256 * 512] and batch["start"].tolist() == [60_000]
    node["attrs"] = [{"name": "rf_id", "type": "uint64", "value": 42}]
    observed.write_text(json.dumps({"schema": "1.1.0-chakra.0.0.4", "nodes": [node]}))
    with pytest.raises(PhantoraError, match="not of the same run as the profiler's trace: 0 of 1 operators"):
        import_traces([str(observed), str(kineto)], str(tmp_path / "other.arrow"))


def test_every_trace_that_is_given_for_a_log_has_its_command() -> None:
    for reader in READERS:
        assert reader.description and reader.suffixes
        for suffix in reader.suffixes:
            assert instead(f"run{suffix}") == f"make one of this trace: `phantora import run{suffix}`"
