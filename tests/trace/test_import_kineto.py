"""Logs from traces of torch.profiler."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phantora.errors import PhantoraError
from phantora.importers import import_traces, json_events
from phantora.trace.analysis.analyze import analyze
from phantora.trace.export import export
from phantora.trace.reader import Log, open_log
from phantora.trace.schema import KINDS
from tests.support.fakelog import small_run
from tests.support.kineto_files import BACKWARD, Trace


def rows(log: Log) -> list[dict[str, Any]]:
    """Rows as dicts, with their words."""
    words = {column: [*log.words(column), None] for column in ("name", "op", "shape", "cls", "provenance")}
    found = []
    for batch in log.batches():
        columns = {name: values.tolist() for name, values in batch.columns.items()}
        for values in zip(*columns.values(), strict=True):
            row = dict(zip(columns, values, strict=True))
            row["kind"] = KINDS[row["kind"]]
            found.append(row | {column: text[row[column]] for column, text in words.items()})
    return found


def only(log: Log, kind: str) -> list[dict[str, Any]]:
    return [row for row in rows(log) if row["kind"] == kind]


def one_layer(trace: Trace) -> Trace:
    mm = trace.operator("aten::mm", 10, 50, [128, 256], [256, 512])
    trace.kernel("nvjet_tst", 20, 70, 30.5, external=mm)
    trace.slice("cuda_runtime", "cudaDeviceSynchronize", 80, 40, correlation=7)
    return trace


def test_kernels_have_launch_operator_shape_and_flops(tmp_path: Path) -> None:
    path = one_layer(Trace()).write(tmp_path / "t.json.gz")
    import_traces([str(path)], str(tmp_path / "real.arrow"))
    log = open_log(tmp_path / "real.arrow")
    (kernel,), (operator,), (call,) = only(log, "kernel"), only(log, "operator"), only(log, "call")
    assert (kernel["start"], kernel["end"], kernel["launch"]) == (60_000, 90_500, 10_000)  # from the first event on
    assert (kernel["op"], kernel["shape"]) == ("aten::mm", "bf16[128,256], bf16[256,512]")
    assert (kernel["cls"], kernel["provenance"], kernel["flops"]) == ("gemm", "real", 2.0 * 128 * 256 * 512)
    assert kernel["link"] == call["link"] == operator["id"] and call["value"] == kernel["id"]
    assert kernel["stream"] == 0  # CUPTI's 7
    (sync,) = only(log, "sync")
    assert sync["link"] == kernel["id"] and sync["end"] - sync["start"] == 40_000
    assert log.metadata.gpu == "H100-SXM" and log.metadata.host_mode == "real"


def test_until_torch_2_0_nesting_tells_the_operator(tmp_path: Path) -> None:
    """There the external id of a kernel is its correlation, which may also be the number of some operator."""
    trace = Trace()
    trace.operator("aten::linear", 10, 60)
    trace.operator("aten::addmm", 20, 30)
    trace.operator("aten::add", 200, 5, tid=BACKWARD)
    trace.kernel("gemm", 30, 70, 5, external=3)
    import_traces([str(trace.write(tmp_path / "t.json"))], str(tmp_path / "real.arrow"))
    (kernel,) = only(open_log(tmp_path / "real.arrow"), "kernel")
    assert kernel["op"] == "aten::addmm"


def test_the_skew_of_clocks_is_removed_and_late_ranks_are_found(tmp_path: Path) -> None:
    paths = []
    for rank, skew in ((0, 0.0), (1, 250.0)):
        trace = Trace(rank, 2, skew)
        for step in range(6):
            begin = 1000.0 * step
            late = 40.0 * rank  # rank 1 comes later
            trace.all_reduce(begin + late, begin + late + 10, 100 - late, elements=1 << 20 | step)
        paths.append(str(trace.write(tmp_path / f"rank{rank}.json")))
    imported = import_traces(paths, str(tmp_path / "real.arrow"))
    assert imported.skews[1].removed == 250_000 and (imported.matched, imported.unmatched) == (6, 0)
    found = only(open_log(tmp_path / "real.arrow"), "collective")
    assert [row["end"] for row in found if row["rank"] == 0] == [row["end"] for row in found if row["rank"] == 1]
    assert {row["last_rank"] for row in found} == {1}
    assert all(row["ready"] - row["start"] == 40_000 for row in found if row["rank"] == 0)
    assert sorted({row["seq"] for row in found}) == list(range(6))
    assert {row["bytes"] for row in found} == {2 * (1 << 20 | step) for step in range(6)}


def test_a_file_that_is_cut_short_gives_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_events, "CHUNK_BYTES", 1000)
    trace = Trace()
    for i in range(50):
        trace.kernel(f"k{i}", 10.0 * i, 10.0 * i + 5, 3.25)
    whole = trace.write(tmp_path / "whole.json").read_bytes()
    imported = import_traces([str(tmp_path / "whole.json")], str(tmp_path / "whole.arrow"))
    assert imported.rows == 100 and not imported.notes
    for suffix, data in ((".json", whole[: len(whole) // 2]), (".gz", gzip.compress(whole)[:-400])):
        path = tmp_path / f"cut{suffix}"
        path.write_bytes(data)
        imported = import_traces([str(path)], str(tmp_path / "cut.arrow"))
        assert 0 < imported.rows < 100 and "cut short" in imported.notes[0]


def test_damaged_events_cost_themselves_only(tmp_path: Path) -> None:
    trace = Trace()
    for i in range(5):
        trace.kernel(f"k{i}", 10.0 * i, 10.0 * i + 5, 3.25)
    text = json.dumps(trace.data()).replace('"k2"', '"k"2"', 1).replace('"k3"', '"k3", "occupancy": NaN')
    (tmp_path / "t.json").write_text(text)
    imported = import_traces([str(tmp_path / "t.json")], str(tmp_path / "t.arrow"))
    assert imported.rows == 9 and "1 damaged" in imported.notes[0]


@pytest.mark.parametrize("text", [b"", b"{}", b'{"nodes": []}', b"\x1f\x8b"])
def test_other_files_are_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "t.json").write_bytes(text)
    with pytest.raises(PhantoraError, match="not a trace"):
        import_traces([str(tmp_path / "t.json")], str(tmp_path / "t.arrow"))


def test_two_files_of_one_rank_are_refused(tmp_path: Path) -> None:
    paths = [str(one_layer(Trace()).write(tmp_path / name)) for name in ("a.json", "b.json")]
    with pytest.raises(PhantoraError, match="both of rank 0"):
        import_traces(paths, str(tmp_path / "t.arrow"))


def test_times_are_kept_to_the_nanosecond(tmp_path: Path) -> None:
    """Real traces count from the boot of the machine: 4e12 us."""
    trace = Trace(skew=4_388_896_899_302.098)
    trace.kernel("a", 0, 10, 1254.424)
    import_traces([str(trace.write(tmp_path / "t.json"))], str(tmp_path / "t.arrow"))
    (kernel,) = only(open_log(tmp_path / "t.arrow"), "kernel")
    assert np.isclose(kernel["end"] - kernel["start"], 1_254_424, atol=0)


_KINETO_HOLDS = {
    "kernel": ("rank", "stream", "name", "start", "end", "launch", "op", "shape"),
    "memcpy": ("rank", "stream", "name", "start", "end", "launch", "bytes"),
    "collective": ("rank", "stream", "name", "start", "end", "launch", "ready", "bytes", "seq"),
    "operator": ("rank", "stream", "name", "start", "end", "shape"),
    "annotation": ("rank", "stream", "name", "start", "end"),
}


def test_an_exported_run_comes_back_to_the_nanosecond(tmp_path: Path) -> None:
    log = small_run().write(tmp_path / "run.arrow")
    paths = export(log, str(tmp_path / "traces") + "/")
    import_traces(paths, str(tmp_path / "back.arrow"))
    before, after = open_log(log), open_log(tmp_path / "back.arrow")
    for kind, columns in _KINETO_HOLDS.items():
        own, other = (Counter(tuple(row[c] for c in columns) for row in only(each, kind)) for each in (before, after))
        assert own and own == other, kind
    a, b = analyze(before), analyze(after)
    assert [step.times.time for step in a.steps] == [step.times.time for step in b.steps]
    for part in ("compute", "exposed", "overlapped", "idle", "waiting"):
        assert getattr(a.steady, part) == getattr(b.steady, part)


def test_a_process_with_two_gpus_becomes_two_ranks(tmp_path: Path) -> None:
    """DataParallel: streams of both GPUs have the same numbers."""
    trace = Trace()
    for device in (0, 1):
        trace.rank = device
        trace.kernel(f"k{device}", 10, 20, 30)
    trace.rank = 0
    imported = import_traces([str(trace.write(tmp_path / "t.json"))], str(tmp_path / "t.arrow"))
    assert imported.ranks == [0, 1] and imported.world_size == 2
    found = only(open_log(tmp_path / "t.arrow"), "kernel")
    assert [(row["rank"], row["name"], row["stream"]) for row in found] == [(0, "k0", 0), (1, "k1", 0)]


def test_amd(tmp_path: Path) -> None:
    """HIP's calls, RCCL's kernels, streams from 0 on, whole microseconds since 1970."""
    trace = Trace(skew=1_661_203_462_598_738)
    trace.slice("cuda_runtime", "hipExtModuleLaunchKernel", 10, 3, correlation=5)
    kernel = trace.slice("kernel", "Cijk_Ailk_Bljk_BBS_BH_MT128x128x16", 20, 7, 0, correlation=5, stream=0, device=0)
    other = trace.slice("kernel", "ncclDevKernel_Generic(ncclDevComm*)", 30, 9, 3, correlation=6, stream=3, device=0)
    for event in (kernel, other):
        event |= {"pid": 0, "ts": int(event["ts"])}
    trace.slice("cuda_runtime", "hipStreamSynchronize", 15, 30, correlation=8)
    import_traces([str(trace.write(tmp_path / "t.json"))], str(tmp_path / "t.arrow"))
    log = open_log(tmp_path / "t.arrow")
    (kernel,), (collective,), (sync,) = (only(log, kind) for kind in ("kernel", "collective", "sync"))
    assert (kernel["cls"], kernel["stream"], kernel["launch"], kernel["start"]) == ("gemm", 0, 0, 10_000)
    assert collective["stream"] == 3 and sync["link"] == collective["id"]
