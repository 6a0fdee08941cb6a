"""Logs from reports of Nsight Systems, from rocprofv3's CSV and from traces of XLA."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from phantora.cli.main import cli
from phantora.errors import PhantoraError
from phantora.importers import import_traces
from phantora.runs.replay import whole_recording
from phantora.trace.analysis.analyze import analyze
from phantora.trace.reader import Log, open_log
from tests.trace.test_import_kineto import only
from tests.trace.test_import_others import nsight

KERNELS = (
    "Kind,Agent_Id,Queue_Id,Stream_Id,Thread_Id,Dispatch_Id,Kernel_Id,Kernel_Name,Correlation_Id,Start_Timestamp,"
    "End_Timestamp,LDS_Block_Size,Scratch_Size,VGPR_Count,Accum_VGPR_Count,SGPR_Count,Workgroup_Size_X,"
    "Workgroup_Size_Y,Workgroup_Size_Z,Grid_Size_X,Grid_Size_Y,Grid_Size_Z"
)
COPIES = "Kind,Direction,Stream_Id,Source_Agent_Id,Destination_Agent_Id,Correlation_Id,Start_Timestamp,End_Timestamp"
CALLS = "Domain,Function,Process_Id,Thread_Id,Correlation_Id,Start_Timestamp,End_Timestamp"


def imported(path: Path, *more: Path) -> Log:
    target = path.parent / "real.arrow"
    import_traces([str(path), *map(str, more)], str(target))
    return open_log(target)


def refused(log: Log) -> str:
    with pytest.raises(PhantoraError) as caught:
        whole_recording(log)
    return str(caught.value)


def test_a_report_of_nsight_is_exported_by_nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report, tools = tmp_path / "job.nsys-rep", tmp_path / "bin"
    report.write_bytes(b"NVIDIA")
    monkeypatch.setenv("PATH", str(tools))
    with pytest.raises(PhantoraError, match=r"nsys is not on PATH; .* nsys export --type sqlite .*job\.nsys-rep$"):
        imported(report)
    nsight(tmp_path / "made.sqlite")
    tools.mkdir()
    (tools / "nsys").write_text(f'#!/bin/sh\n[ "$1" = export ] && exec /bin/cp {tmp_path}/made.sqlite "$7"\n')
    (tools / "nsys").chmod(0o755)
    assert len(only(imported(report), "kernel")) == 2
    done = CliRunner().invoke(cli, ["analyze", str(report)], catch_exceptions=False)
    assert "job.nsys-rep was imported" in done.output
    (tools / "nsys").write_text("#!/bin/sh\necho no such report >&2\nexit 1\n")
    with pytest.raises(PhantoraError, match=r"job\.nsys-rep: nsys export failed: no such report"):
        imported(report)


def rocprof(folder: Path) -> list[Path]:
    """A process with one GPU: a product, an all_reduce, a copy."""
    kernel = 'KERNEL_DISPATCH,"Agent 4",1,{stream},70,1,33,"{name}",9,{start},{end},64,0,12,4,48,256,1,1,1024,2,1'
    files = {
        "70_kernel_trace.csv": [
            KERNELS,
            kernel.format(stream=2, name="ncclDevKernel_Generic_1(ncclDevKernelArgs)", start=3000, end=3500),
            kernel.format(stream=0, name="Cijk_Ailk_Bljk_HHS_BH_MT128x128", start=1000, end=2000),
        ],
        "70_memory_copy_trace.csv": [COPIES, 'MEMORY_COPY,MEMORY_COPY_HOST_TO_DEVICE,3,"Agent 0","Agent 4",7,500,900'],
        "70_rccl_api_trace.csv": [
            CALLS,
            *(f"RCCL_API,{name},70,70,1,1,2" for name in ("ncclGroupStart", "ncclAllReduce")),
        ],
    }
    for name, lines in files.items():
        (folder / name).write_text("\n".join(lines) + "\n")
    return [folder / name for name in files]


def test_rocprof(tmp_path: Path) -> None:
    kernels, copies, _ = rocprof(tmp_path)
    log = imported(kernels, copies)  # as the shell gives all files of a folder
    (kernel,), (collective,), (copy,) = (only(log, kind) for kind in ("kernel", "collective", "memcpy"))
    assert (kernel["start"], kernel["end"], kernel["stream"]) == (500, 1500, 0)
    assert kernel["name"].startswith("Cijk_") and copy["name"] == "Memcpy HtoD (Pinned -> Device)"
    assert collective["name"] == "ncclDevKernel_Generic_1 all_reduce" and collective["stream"] == 2
    assert "cannot be replayed: a trace of rocprofv3 does not say what streams wait for" in refused(log)
    assert analyze(log).ranks[0].gpu.compute > 0


def test_files_of_rocprof_that_are_no_kernel_trace(tmp_path: Path) -> None:
    copies = tmp_path / "9_memory_copy_trace.csv"
    copies.write_text(COPIES + "\n")
    with pytest.raises(PhantoraError, match=r"there is no 9_kernel_trace\.csv: profile with rocprofv3 --kernel-trace"):
        imported(copies)
    kernels = tmp_path / "9_kernel_trace.csv"
    for text, said in (
        ("a,b\n1,2\n", "KeyError"),
        (KERNELS + "\n", "no kernel was traced"),
        (KERNELS + "\nx\n", "Error"),
    ):
        kernels.write_text(text)
        with pytest.raises(PhantoraError, match=said) as caught:
            imported(kernels)
        assert "\n" not in str(caught.value)
    file = sqlite3.connect(tmp_path / "job_results.db")
    file.execute("create table rocpd_metadata_0000 (id)")
    file.close()
    with pytest.raises(PhantoraError, match="rocpd convert --output-format csv"):
        imported(tmp_path / "job_results.db")


def xla(path: Path) -> Path:
    """Two GPUs and the host of one process, as jax.profiler writes them."""
    events: list[dict[str, Any]] = []

    def named(what: str, process: int, name: str, thread: int = 0) -> None:
        events.append({"ph": "M", "pid": process, "tid": thread, "name": what, "args": {"name": name}})

    def work(process: int, thread: int, name: str, begin: float, length: float, **args: Any) -> None:
        events.append(
            {"ph": "X", "pid": process, "tid": thread, "ts": begin, "dur": length, "name": name, "args": args}
        )

    for gpu in (0, 1):
        named("process_name", gpu + 1, f"/device:GPU:{gpu}")
        named("thread_name", gpu + 1, "Stream #14(Compute)", 14)
        named("thread_name", gpu + 1, "XLA Modules", 90)
    named("process_name", 701, "/host:CPU")
    named("thread_name", 701, "python", 5)
    details = "regs:32 static_shared:16 dynamic_shared:1024 grid:264,2,1 block:128,1,1 occ_pct:50"
    for gpu in (0, 1):
        work(gpu + 1, 90, "jit_train_step", 10, 100, hlo_module="jit_train_step")
        work(gpu + 1, 14, "MemcpyH2D", 5, 2, memcpy_details="kind_src:pinned kind_dst:device size:4096 dest:0 async:1")
        work(gpu + 1, 14, "gemm_fusion_dot_2", 10, 50.5, kernel_details=details, hlo_op="gemm_fusion_dot.2")
        work(gpu + 1, 14, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 70, 20)
    work(701, 5, "train", 4, 110, step_num="7")
    with gzip.open(path, "wt") as file:
        json.dump({"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}, "traceEvents": events}, file)
    return path


def test_xla(tmp_path: Path) -> None:
    log = imported(xla(tmp_path / "host.trace.json.gz"))
    assert log.metadata.world_size == 2
    kernels, collectives, copies = (only(log, kind) for kind in ("kernel", "collective", "memcpy"))
    assert [(row["rank"], row["name"], row["end"] - row["start"]) for row in kernels] == [
        (0, "gemm_fusion_dot_2", 50_500),
        (1, "gemm_fusion_dot_2", 50_500),
    ]
    assert len(collectives) == 2 and [row["bytes"] for row in copies] == [4096, 4096]
    assert {row["name"] for row in only(log, "annotation")} == {"ProfilerStep#7"}
    assert "a trace of XLA does not say what streams wait for" in refused(log)
    assert analyze(log).step_source == "profiler"


def test_protobufs_of_xla_are_read_by_the_json_next_to_them(tmp_path: Path) -> None:
    planes = tmp_path / "host.xplane.pb"
    planes.write_bytes(b"\n\x10")
    with pytest.raises(PhantoraError, match=r"there is no host\.trace\.json\.gz next to it"):
        imported(planes)
    xla(tmp_path / "host.trace.json.gz")
    assert len(only(imported(planes), "kernel")) == 2
    with gzip.open(tmp_path / "host.trace.json.gz", "wt") as file:
        file.write('{"traceEvents": [{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/host:CPU"}}]}')
    with pytest.raises(PhantoraError, match="no work of a GPU or TPU was traced"):
        imported(tmp_path / "host.trace.json.gz")
