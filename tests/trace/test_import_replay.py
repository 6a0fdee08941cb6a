"""Replays of real runs, from their traces alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from phantora.errors import PhantoraError
from phantora.importers import import_traces
from phantora.runs.replay import ReplaySpec, replay
from phantora.spec import OutputSpec, WhatIfSpec
from phantora.trace.analysis.analyze import analyze
from phantora.trace.export import export
from phantora.trace.reader import open_log
from phantora.trace.schema import DEVICE_KINDS
from phantora.wire.records import make, read
from tests.support.fakelog import small_run
from tests.support.kineto_files import Trace

ROUNDING = 2  # ns, of a transfer whose bytes are scaled


def two_ranks(folder: Path, gpu: str = "NVIDIA H100 80GB HBM3") -> Path:
    """Rank 1 comes 200 us late to the first all-reduce of two. The host waits for its GPU, then launches a kernel."""
    paths = []
    for rank in (0, 1):
        late = 200.0 * rank
        trace = Trace(rank, 2, gpu=gpu)
        mm = trace.operator("aten::mm", 10, 20, [4096, 4096], [4096, 4096])
        trace.kernel("nvjet_tst", 15, 25, 300 + late, external=mm)
        trace.slice("cuda_runtime", "cudaEventRecord", 40, 2)
        trace.slice("cuda_runtime", "cudaStreamWaitEvent", 44, 2)
        trace.all_reduce(50, 330 + late, 500 + 80 - late)  # the transfer: 80 us
        trace.all_reduce(60, 912, 90)
        trace.slice("cuda_runtime", "cudaStreamSynchronize", 70, 940)
        trace.kernel("add", 1020, 1030, 40)
        paths.append(trace.write(folder / f"rank{rank}.json"))
    return made(folder, paths)


def made(folder: Path, paths: list[Path] | list[str]) -> Path:
    import_traces([str(path) for path in paths], str(folder / "real.arrow"))
    return folder / "real.arrow"


def again(log: Path, **changes: object) -> Path:
    target = log.with_name("again.arrow")
    replay(ReplaySpec(log=log, output=OutputSpec(str(target), force=True), **changes))  # type: ignore[arg-type]
    return target


def work(path: Path) -> list[tuple[int, int, int, int]]:
    """Rank, stream, start and end of all work of GPUs, in order."""
    found: list[tuple[int, int, int, int]] = []
    for batch in open_log(path).batches(("kind", "rank", "stream", "start", "end"), DEVICE_KINDS):
        found += zip(*(batch[column].tolist() for column in ("rank", "stream", "start", "end")), strict=True)
    return sorted(found)


def test_on_its_own_cluster_a_real_run_takes_as_long_as_it_did(tmp_path: Path) -> None:
    log = two_ranks(tmp_path)
    copy = again(log)
    np.testing.assert_allclose(work(copy), work(log), rtol=0, atol=ROUNDING)
    assert set(open_log(copy).words("provenance")) - {""} == {"real"}


def test_a_slow_rank_holds_the_others_up(tmp_path: Path) -> None:
    log = two_ranks(tmp_path)
    before, after = work(log), work(again(log, what_if=WhatIfSpec(straggler=("rank=1:2",))))
    # Its first kernel takes 500 us more, so that both all-reduces and what follows the wait come so much later.
    moved = [b[3] - a[3] for a, b in zip(before, after, strict=True) if a[0] == 0]
    np.testing.assert_allclose(moved, [0, 500_000, 500_000, 500_000], rtol=0, atol=ROUNDING)


def begun_late() -> Trace:
    """A step of 1 ms whose first 400 us of work were launched before the trace began: they have no call."""
    trace = Trace()
    trace.slice("user_annotation", "ProfilerStep#3", 5, 995)
    for start in (10, 210):
        trace.kernel("elementwise_kernel<add::{lambda()#1}>", 0, start, 200)
    trace.events = [event for event in trace.events if event["cat"] != "cuda_runtime"]
    return trace


def launched_before(folder: Path) -> Path:
    """The rest of the step is launched in the trace."""
    trace = begun_late()
    for start in (410, 710):
        trace.kernel("nvjet_tst", 20, start, 300)
    return made(folder, [trace.write(folder / "rank0.json")])


def test_work_launched_before_the_trace_stays_in_its_step(tmp_path: Path) -> None:
    log = launched_before(tmp_path)
    own, other = (analyze(open_log(path), details=False) for path in (log, again(log)))
    assert own.headline.step_time == other.headline.step_time == 1_000_000
    assert own.by_class == other.by_class == pytest.approx({"gemm": 0.6, "elementwise": 0.4})


def test_a_host_that_waits_for_work_launched_before_the_trace_does_not_work(tmp_path: Path) -> None:
    """It waits 395 us and launches 40 us later; a slower host takes twice these 40 us, and no more."""
    trace = begun_late()
    trace.slice("cuda_runtime", "cudaDeviceSynchronize", 15, 395)
    for launched, start in ((450, 460), (455, 760)):
        trace.kernel("nvjet_tst", launched, start, 300)
    log = made(tmp_path, [trace.write(tmp_path / "rank0.json")])
    before, after = work(log), work(again(log, host_scale=2.0))
    moved = [b[2] - a[2] for a, b in zip(before, after, strict=True)]
    np.testing.assert_allclose(moved, [0, 0, 40_000, 40_000], rtol=0, atol=15_000)


def test_kernels_without_operator_scale_by_their_class(tmp_path: Path) -> None:
    target = again(launched_before(tmp_path), gpu="A100-80GB")
    took = [end - start for _, _, start, end in work(target)]
    assert took[0] / 200_000 == pytest.approx(3350 / 2039, rel=0.01)  # memory of H100 and A100, GB/s
    assert took[2] / 300_000 == pytest.approx(989.5 / 312, rel=0.01)  # TFLOP/s


def test_a_replay_that_is_not_the_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = launched_before(tmp_path)
    monkeypatch.setattr("phantora.runs.replay._AGREES", -1.0)
    with pytest.raises(PhantoraError, match=r"its own step takes 1\.00 ms and its replay 1\.00 ms"):
        again(log)
    assert not log.with_name("again.arrow").exists()


def test_on_another_gpu_durations_are_scaled_by_the_ratio_of_prices(tmp_path: Path) -> None:
    log = two_ranks(tmp_path)
    target = again(log, gpu="A100-80GB")
    took = {rank: end - start for rank, stream, start, end in work(target) if stream == 0 and start < 100_000}
    assert took[1] / took[0] == pytest.approx(500 / 300, rel=1e-3)
    assert 2 < took[0] / 300_000 < 4  # 990 and 312 TFLOP/s
    transfers = [end for rank, stream, start, end in work(target) if stream == 13]
    assert len(set(transfers)) == 2  # both ranks end together
    about = open_log(target).metadata
    assert (about.cluster, about.host_mode) == ("2x1xA100-80GB", "measured")
    assert "scaled" in open_log(target).words("provenance")


def test_a_simulated_run_comes_back_from_its_export(tmp_path: Path) -> None:
    simulated = small_run().write(tmp_path / "run.arrow")
    log = made(tmp_path, export(simulated, str(tmp_path / "traces") + "/"))
    own, other = (analyze(open_log(path), details=False) for path in (simulated, again(log)))
    times = [[step.times.time for step in report.steps] for report in (own, other)]
    np.testing.assert_allclose(times[1], times[0], rtol=0.002)


def test_the_run_of_an_unknown_gpu_keeps_its_durations(tmp_path: Path) -> None:
    log = two_ranks(tmp_path, "NVIDIA GeForce RTX 2080 Ti")
    np.testing.assert_allclose(work(again(log)), work(log), rtol=0, atol=ROUNDING)
    about = open_log(tmp_path / "again.arrow").metadata
    assert "2080" in about.cluster and about.peak_flops == {}
    with pytest.raises(PhantoraError, match="has no prices here, so its durations cannot be scaled"):
        again(log, gpu="H200")


def test_what_traces_lack_for_a_replay_is_named(tmp_path: Path) -> None:
    trace = Trace(0, 2)
    trace.kernel("k", 10, 20, 30)
    with pytest.raises(PhantoraError, match="1 of 2 ranks: profile every rank"):
        again(made(tmp_path, [trace.write(tmp_path / "one.json")]))
    bare = Trace()
    bare.kernel("k", 10, 20, 30)
    bare.events = [event for event in bare.events if event["cat"] == "kernel"]
    with pytest.raises(PhantoraError, match="no launches of its kernels: record longer"):
        again(made(tmp_path, [bare.write(tmp_path / "bare.json")]))
    host = Trace()
    host.operator("aten::mm", 0, 10, [2, 2], [2, 2])
    with pytest.raises(PhantoraError, match="no kernels: profile with activities"):
        again(made(tmp_path, [host.write(tmp_path / "host.json")]))


def test_times_of_a_launch_survive_the_wire() -> None:
    record = make("TIMED", time=5, duration=7, delay=3, crowd=1.5)
    assert [read(record)[name] for name in ("duration", "delay", "crowd")] == [7, 3, 1.5]


Ops = dict[tuple[int, int, int], list[tuple[str, float, float]]]
"""Kind, start and duration by replica, stage and rank."""


def table(path: Path, ops: Ops) -> Path:
    """A table of operators of one step."""
    rows = []
    for (replica, stage, rank), own in ops.items():
        count: Counter[str] = Counter()
        for kind, start, duration in own:
            rows.append(
                {
                    "dp_rank": replica,
                    "stage": stage,
                    "rank": rank,
                    "step": 7,
                    "optype": kind,
                    "start_ts": start,
                    "duration": duration,
                    "seq_id": count[kind],
                    "mc": 0,
                    "gmc": stage,
                }
            )
            count[kind] += 1
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def step_of(log: Path) -> float:
    """Seconds from the first row on a GPU to the end of the last."""
    rows = work(log)
    return (max(row[3] for row in rows) - min(row[2] for row in rows)) / 1e9


def test_a_table_of_operators_without_its_straggler(tmp_path: Path) -> None:
    replicas: Ops = {
        (replica, 0, 2 * replica): [
            ("forward-compute", 0, 1),
            ("backward-compute", 1, 1 + 2 * replica),
            ("grads-reduce-scatter", 2 + 2 * replica, 2.2 - 2 * replica),
            ("optimizer", 4.2, 0.1),
        ]
        for replica in (0, 1)
    }
    log = made(tmp_path, [table(tmp_path / "jobs.parquet", replicas)])
    assert open_log(log).metadata.world_size == 4  # ranks 0 and 2 stand for two each
    assert step_of(again(log)) == pytest.approx(4.3, abs=1e-6)
    assert step_of(again(log, stragglers=False)) == pytest.approx(1 + 2 + 0.2 + 0.1, abs=1e-6)


def test_a_table_of_operators_of_a_pipeline(tmp_path: Path) -> None:
    stages: Ops = {
        (0, 0, 0): [
            ("forward-compute", 0, 1),
            ("forward-send", 1, 0.1),
            ("backward-recv", 1, 3.2),
            ("backward-compute", 4.2, 1),
            ("optimizer", 5.2, 0.1),
        ],
        (0, 1, 1): [
            ("forward-recv", 0, 1.1),
            ("forward-compute", 1.1, 1),
            ("backward-compute", 2.1, 2),
            ("backward-send", 4.1, 0.1),
            ("optimizer", 4.1, 0.1),
        ],
    }
    log = made(tmp_path, [table(tmp_path / "jobs.parquet", stages)])
    np.testing.assert_allclose(work(again(log)), work(log), rtol=0, atol=100)
    # Its only forward pass takes a second more: all that follows is late.
    slow = work(again(log, what_if=WhatIfSpec(straggler=("rank=0:2",))))
    assert max(row[3] for row in slow) / 1e9 == pytest.approx(5.3 + 1 + 1 + 0.1, abs=1e-5)


def test_tables_of_other_things_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    with pytest.raises(PhantoraError, match="it has no column 'dp_rank'"):
        made(tmp_path, [tmp_path / "other.parquet"])
    (tmp_path / "cut.parquet").write_bytes(b"PAR1")
    with pytest.raises(PhantoraError, match="cannot read the table"):
        made(tmp_path, [tmp_path / "cut.parquet"])
