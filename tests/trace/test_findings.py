"""Logs made by hand with known answers: the report gives exactly these, in words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from phantora.errors import PhantoraError
from phantora.trace.analysis.analyze import Filters, analyze
from phantora.trace.analysis.findings import findings, no_sync
from phantora.trace.analysis.hosts import OtherHosts
from phantora.trace.analysis.report import CriticalPath, Details, Report
from phantora.trace.analysis.summary import lines
from phantora.trace.reader import open_log
from tests.support.fakelog import METADATA, FakeRun, Kind

US = 1000
STEP = 1000 * US
EVERYTHING = Filters()


class Drawn(FakeRun):
    """Two steps of 1 ms on each of `ranks` ranks, drawn in microseconds from the step's begin."""

    def __init__(self, ranks: int = 2) -> None:
        super().__init__(metadata=replace(METADATA, world_size=ranks, ranks_per_host=ranks))
        self.gemm = self.price("gemm", "measured", 1e9)
        self.transfer = self.price("communication", "measured", algorithm="RING/SIMPLE/2")
        for rank in range(ranks):
            for step in range(2):
                self.add(Kind.ANNOTATION, rank, step * STEP, (step + 1) * STEP, f"ProfilerStep#{step + 1}")

    def group(self, comm: int, name: str, ranks: tuple[int, ...]) -> None:
        shape = ",".join(map(str, ranks))
        for rank in ranks:
            self.add(Kind.COMMUNICATOR, rank, 0, 0, name, comm=comm, sig=self.signature("ranks", shape))

    def kernel(self, rank: int, start: int, end: int, launch: int, op: str = "aten::mm", stream: int = 0) -> None:
        for step in range(2):
            t = step * STEP
            self.add(
                Kind.KERNEL,
                rank,
                t + start * US,
                t + end * US,
                "gemm",
                launch=t + launch * US,
                stream=stream,
                price=self.gemm,
                sig=self.signature(op, "bf16[64,64]"),
            )

    def collective(
        self, comm: int, arrivals: dict[int, int], end: int, name: str = "AllGather", kind: int = Kind.COLLECTIVE
    ) -> None:
        ready = max(arrivals.values())
        for step in range(2):
            for rank, start in arrivals.items():
                t = step * STEP
                self.add(
                    kind,
                    rank,
                    t + start * US,
                    t + end * US,
                    f"ncclDevKernel_{name}_RING_LL",
                    stream=7,
                    comm=comm,
                    launch=t,
                    ready=t + ready * US,
                    seq=step * 100 + end,
                    bytes=1 << 20,
                    price=self.transfer,
                )

    def report(self, directory: Path, filters: Filters = EVERYTHING) -> Report:
        return analyze(open_log(self.write(directory / "run.arrow")), filters)


def words(report: Report) -> list[str]:
    assert report.details is not None
    return report.details.findings


def test_exposed_all_gather(tmp_path: Path) -> None:
    run = Drawn()
    run.group(0, "fsdp", (0, 1))
    for rank in (0, 1):
        run.kernel(rank, 0, 400, 0)
        run.kernel(rank, 700, 1000, 0, "aten::addmm")
    run.collective(0, {0: 300, 1: 300}, 700)
    assert words(run.report(tmp_path)) == [
        "Exposed transfers: communication that no compute hides takes 300.00 us of a step (30.0%), most in "
        "all_gather of fsdp: ranks 0-1 (300.00 us, awaited most by addmm); a call of 1.0 MiB takes 400.00 us at 1 GB/s "
        "of bus bandwidth; it hides if it begins earlier (prefetching), or if what was gathered is kept."
    ]


def test_the_kind_of_collective_that_costs_most_may_have_several_groups(tmp_path: Path) -> None:
    """The all-gathers of two groups cost 2 x 200 us on half of the ranks each, an all-reduce of all 150 us."""
    run = Drawn(4)
    for comm, ranks in enumerate(((0, 1, 2, 3), (0, 1), (2, 3))):
        run.group(comm, "", ranks)
    for rank in range(4):
        run.kernel(rank, 0, 200, 0)
        run.kernel(rank, 400, 500, 0)
        run.kernel(rank, 650, 1000, 0)
    run.collective(1, {0: 200, 1: 200}, 400)
    run.collective(2, {2: 200, 3: 200}, 400)
    run.collective(0, dict.fromkeys(range(4), 500), 650, "AllReduce")
    (said,) = words(run.report(tmp_path))
    assert "takes 350.00 us of a step (35.0%), most in all_gather of 2 groups (200.00 us, awaited" in said


def test_what_prepares_a_kernel_is_not_what_waits(tmp_path: Path) -> None:
    run = Drawn()
    run.group(0, "dp", (0, 1))
    for rank in (0, 1):
        run.kernel(rank, 0, 400, 0)
        run.kernel(rank, 700, 710, 0, "aten::fill_.Scalar")
        run.kernel(rank, 710, 1000, 0, "aten::_foreach_norm")
    run.collective(0, {0: 300, 1: 300}, 700, "AllReduce")
    (said,) = words(run.report(tmp_path))
    assert "awaited most by _foreach_norm); a call of 1.0 MiB" in said and "smaller buckets would begin earlier" in said


def test_steps_that_compile_or_tune_are_set_apart(tmp_path: Path) -> None:
    run = FakeRun()
    for step in range(6):
        t = step * STEP
        run.add(Kind.ANNOTATION, 0, t, t + STEP, f"ProfilerStep#{step + 1}")
        run.add(Kind.KERNEL, 0, t + 100 * US, t + 900 * US, "gemm", launch=t + 10 * US)
    run.add(Kind.ANNOTATION, 0, 2 * STEP + 5 * US, 2 * STEP + 5 * US, "phantora: compiling")
    run.add(Kind.ANNOTATION, 0, 4 * STEP + 5 * US, 4 * STEP + 8 * US, "phantora: tuning")
    headline = analyze(open_log(run.write(tmp_path / "run.arrow")), details=False).headline
    assert headline.apart == {"start-up": [1], "recompile": [3], "autotuning": [5]} and headline.steps == 3


def test_a_run_of_one_step_has_no_steady_one(tmp_path: Path) -> None:
    run = FakeRun()
    run.add(Kind.ANNOTATION, 0, 0, STEP, "Optimizer.step#SGD.step")
    run.add(Kind.KERNEL, 0, 100 * US, 900 * US, "gemm", launch=10 * US)
    report = analyze(open_log(run.write(tmp_path / "run.arrow")), details=False)
    assert report.headline.steps == 0 and report.headline.step_time == 800 * US
    assert dict(lines(report))["STEP"].startswith("none is steady: ")


def test_the_second_of_two_steps_is_not_steady_while_it_waits_for_its_host(tmp_path: Path) -> None:
    for late, steady in ((0, 1), (400 * US, 0)):
        run, t = FakeRun(), 0
        for step, begin in enumerate((3 * STEP, late)):
            launch = t + begin
            run.add(Kind.ANNOTATION, 0, t, launch + 20 * US, f"Optimizer.step#SGD.step{step}")
            t = launch + 910 * US
            run.add(Kind.KERNEL, 0, t - 900 * US, t, "gemm", launch=launch)
        report = analyze(open_log(run.write(tmp_path / "run.arrow")), details=False)
        assert report.headline.steps == steady, late
        assert dict(lines(report))["STEP"].startswith("none is steady: ") == (not steady)


def test_rollouts_between_updates_count_in_the_mean_of_the_run(tmp_path: Path) -> None:
    """Every third iteration takes four times as long."""
    run, t = FakeRun(), 0
    for step in range(1, 8):
        begin = t
        for _ in range(1 if step % 3 else 4):
            run.add(Kind.KERNEL, 0, t, t + STEP, "gemm", launch=t)
            t += STEP
        run.add(Kind.ANNOTATION, 0, begin, t, f"ProfilerStep#{step}")
    report = analyze(open_log(run.write(tmp_path / "run.arrow")), details=False)
    assert report.headline.apart == {"start-up": [1], "more work": [3, 6]}
    assert report.headline.step_time == STEP and report.headline.mean == 2 * STEP
    assert "2.00 ms on average with more work" in dict(lines(report))["STEP"]


def test_steps_of_more_and_of_less_work_are_named_together(tmp_path: Path) -> None:
    run, t = FakeRun(), 0
    for step, kernels in enumerate((4, 4, 16, 4, 1, 4, 16, 4, 4), 1):
        begin = t
        for _ in range(kernels):
            run.add(Kind.KERNEL, 0, t, t + STEP, "gemm", launch=t)
            t += STEP
        run.add(Kind.ANNOTATION, 0, begin, t, f"ProfilerStep#{step}")
    report = analyze(open_log(run.write(tmp_path / "run.arrow")), details=False)
    assert "on average with more and less work" in dict(lines(report))["STEP"]


def test_steps_that_get_longer_are_none_of_them_outliers(tmp_path: Path) -> None:
    run, t = FakeRun(), 0
    for step in range(8):
        begin = t
        for _ in range(2 + step):
            run.add(Kind.KERNEL, 0, t, t + STEP, "gemm", launch=t)
            t += STEP
        run.add(Kind.ANNOTATION, 0, begin, t, f"ProfilerStep#{step}")
    report = analyze(open_log(run.write(tmp_path / "run.arrow")), details=False)
    assert report.headline.apart == {"start-up": [0]} and report.headline.step_time == 6 * STEP
    assert dict(lines(report))["STEP"].endswith("steps differ: 3 to 9.00 ms, each longer than the last")


def test_straggler(tmp_path: Path) -> None:
    run = Drawn(4)
    run.group(0, "dp", (0, 1, 2, 3))
    for rank in range(4):
        run.kernel(rank, 0, 900 if rank == 2 else 500, 0)
    run.collective(0, {rank: 900 if rank == 2 else 500 for rank in range(4)}, 1000, "AllReduce")
    report = run.report(tmp_path)
    assert words(report) == [
        "Straggler: rank 2 comes last in 1 collectives (100.0% of all lateness); waiting for late ranks costs "
        "300.00 us of a step (30.0%); its kernels take 80.0% longer than those of the median rank, 400.00 us a step "
        "(40.0%); fixing it gains as much at least.",
        "Exposed transfers: communication that no compute hides takes 100.00 us of a step (10.0%; 40.0% with waits for "
        "ranks), most in "
        "all_reduce of dp: ranks 0-3 (100.00 us); a call of 1.0 MiB takes 100.00 us at 16 GB/s of bus bandwidth; "
        "smaller buckets would begin earlier, during the backward pass.",
    ]
    assert report.details is not None
    (collective,) = report.details.collectives
    assert (collective.last, collective.last_share, collective.skew) == (2, 1.0, 400 * US)
    assert (collective.wait, collective.transfer) == (300 * US, 100 * US)
    assert collective.bus_bandwidth == pytest.approx((1 << 20) / 100e-6 * 2 * 3 / 4)
    first, *others = report.details.stragglers
    assert (first.rank, first.caused, first.waited) == (2, 400 * US, 0) and {s.waited for s in others} == {400 * US}
    # Beyond the straggler's work nothing matters: the path is its kernel, then the transfer.
    path = report.details.critical_paths[0]
    assert path.by_class == {"gemm": 900 * US, "communication": 100 * US} and path.length == path.time == STEP


def test_pipeline_bubble(tmp_path: Path) -> None:
    run = Drawn()
    run.group(0, "pp", (0, 1))
    run.kernel(0, 0, 400, 0)
    run.collective(0, {0: 400, 1: 0}, 420, "SendRecv", Kind.SENDRECV)
    run.kernel(1, 420, 1000, 0)
    run.kernel(0, 420, 1000, 0)
    report = run.report(tmp_path)
    assert words(report)[0] == (
        "Pipeline bubble: for 200.00 us of a step (20.0%) ranks wait for their partners; "
        "rank 0 computes 1.7 times as long as others: give its stage fewer layers."
    )
    assert report.steady.stalls["pipeline bubble"] == 200 * US  # 400 on rank 1, none on rank 0
    assert report.ranks[1].steps[1].times.stalls["pipeline bubble"] == 400 * US


@pytest.mark.parametrize(("slower", "decided"), [(1450, True), (1100, False)])
def test_a_bubble_of_late_launches(tmp_path: Path, slower: int, decided: bool) -> None:
    """Steps of 1 ms whose ranks compute equally long; hosts 1.5 times slower make them 1.45 or 1.1 ms."""
    run = Drawn()
    run.group(0, "pp", (0, 1))
    run.kernel(0, 0, 400, 0)
    run.collective(0, {0: 400, 1: 0}, 420, "SendRecv", Kind.SENDRECV)
    run.kernel(1, 420, 820, 0)
    report = run.report(tmp_path)
    assert report.details is not None
    hosts = OtherHosts(faster=700 * US, slower=slower * US, low=700 * US, high=1500 * US, measured=False)
    report.headline = replace(report.headline, hosts=hosts, step_time=1000 * US)
    bubble = next(text for text in findings(report, report.details) if text.startswith("Pipeline bubble"))
    late = ", whose hosts launch late: hosts 1.5 times slower add 450.00 us."
    assert bubble.endswith(late if decided else "ranks wait for their partners.")


def test_host_bound_step(tmp_path: Path) -> None:
    run = Drawn(1)
    for i in range(10):
        run.kernel(0, 100 * i + 60, 100 * i + 100, 100 * i + 60)
    report = run.report(tmp_path)
    assert words(report) == ["Host-bound: for 600.00 us of a step (60.0%) the GPU waits for the host to launch."]
    assert report.details is not None
    path = report.details.critical_paths[1]
    assert path.by_class == {"host": 960 * US, "gemm": 40 * US}  # the last launch, and its kernel
    assert path.gain == {"host": 600 * US, "gemm": 40 * US}  # without host time 400 us of kernels remain


def test_synchronisation(tmp_path: Path) -> None:
    run = Drawn(1)
    run.kernel(0, 0, 500, 0)
    run.kernel(0, 700, 1000, 700)
    for step in range(2):
        mm = [row["id"] for row in run.rows if row["kind"] == Kind.KERNEL and row["end"] == step * STEP + 500 * US]
        run.add(Kind.SYNC, 0, step * STEP + 100 * US, step * STEP + 500 * US, "cudaStreamSynchronize", link=mm[0])
    report = run.report(tmp_path)
    assert words(report) == [
        "Synchronisation: for 200.00 us of a step (20.0%) the GPU is idle because the host had waited for it."
    ]
    assert report.details is not None
    path = report.details.critical_paths[1]
    assert path.by_class == {"gemm": 800 * US, "host": 200 * US} and path.gain == {"gemm": 700 * US, "host": 200 * US}


def test_a_wait_costs_no_more_than_it_takes(tmp_path: Path) -> None:
    """The host waits for 50 us, then loads data for 200."""
    run = Drawn(1)
    run.kernel(0, 0, 500, 0)
    run.kernel(0, 700, 1000, 700)
    for step in range(2):
        run.add(Kind.SYNC, 0, step * STEP + 450 * US, step * STEP + 500 * US, "cudaStreamSynchronize")
    assert words(run.report(tmp_path)) == [
        "Host-bound: for 150.00 us of a step (15.0%) the GPU waits for the host to launch.",
        "Synchronisation: for 50.00 us of a step (5.0%) the GPU is idle because the host had waited for it.",
    ]


def test_two_communicators(tmp_path: Path) -> None:
    run = Drawn(4)
    run.group(0, "tp", (0, 1))
    run.group(1, "tp", (2, 3))
    run.group(2, "dp", (0, 2))
    for rank in range(4):
        run.kernel(rank, 0, 300, 0)
        run.kernel(rank, 400, 800, 0)
    run.collective(0, {0: 300, 1: 300}, 400, "AllReduce")
    run.collective(1, {2: 300, 3: 300}, 400, "AllReduce")
    run.collective(2, {0: 700, 2: 700}, 1000, "ReduceScatter")
    report = run.report(tmp_path)
    assert report.details is not None
    exposed = {(e.group, e.waited_by): e.exposed * 4 for e in report.exposure}  # means over four ranks
    assert exposed == {
        ("tp: ranks 0-1", "aten::mm"): 200 * US,
        ("tp: ranks 2-3", "aten::mm"): 200 * US,
        ("dp: ranks 0,2", ""): 400 * US,
    }
    assert "most in reduce_scatter of dp: ranks 0,2 (100.00 us)" in words(report)[1]
    assert [(c.group, c.ranks, c.count) for c in report.details.collectives] == [
        ("dp: ranks 0,2", 2, 2),
        ("tp: ranks 0-1", 2, 2),
        ("tp: ranks 2-3", 2, 2),
    ]
    only = run.report(tmp_path, Filters(ranks=frozenset({3}), steps=frozenset({2})))
    assert only.details is not None
    assert {e.group for e in only.exposure} == {"tp: ranks 2-3"}


def test_a_stretch_of_time(tmp_path: Path) -> None:
    run = Drawn(1)
    run.kernel(0, 0, 500, 0)
    report = run.report(tmp_path, Filters(time=(250 * US, 750 * US)))
    assert report.step_source == "time" and report.steady.time == 500 * US and report.steady.compute == 250 * US
    with pytest.raises(PhantoraError, match=r"nothing runs from 1\.000 s on; the log ends at 2\.00 ms"):
        run.report(tmp_path, Filters(time=(10**9, 2 * 10**9)))


def test_memory_by_use(tmp_path: Path) -> None:
    """Two steps of a model with one of everything."""
    run = FakeRun()
    level, blocks = 0, {}

    def block(name: str, size: int, time: int, thread: int = 0) -> None:
        nonlocal level
        level += size
        blocks[name] = (run.add(Kind.MEMORY, 0, time, time, value=level, bytes=5000, stream=thread, sub=0), size)

    def free(name: str, time: int, thread: int = 0) -> None:
        nonlocal level
        row, size = blocks.pop(name)
        level -= size
        run.add(Kind.MEMORY, 0, time, time, value=level, bytes=5000, stream=thread, sub=1, link=row)

    block("parameter", 100, 5)
    for t in (1000, 2000):
        run.add(Kind.KERNEL, 0, t + 30, t + 60, "forward", launch=t + 12)
        block("activation", 200, t + 10)
        block("gathered", 40, t + 20)
        block("gradient", 100, t + 200, thread=1)
        if t == 2000:  # the peak, in the backward pass
            run.add(Kind.OPERATOR, 0, t + 210, t + 230, "aten::mm", stream=1)
            block("workspace", 50, t + 220, thread=1)
            free("workspace", t + 225, thread=1)
        free("activation", t + 300, thread=1)
        free("gathered", t + 301, thread=1)
        if t == 1000:
            block("optimizer", 600, t + 420)
        free("gradient", t + 600)
        run.add(Kind.ANNOTATION, 0, t + 15, t + 25, "FSDP::all_gather (layers.0)")
        run.add(Kind.ANNOTATION, 0, t + 400, t + 500, "Optimizer.step#AdamW.step")
        run.add(Kind.KERNEL, 0, t + 450, t + 490, "adamw", launch=t + 440)
    report = analyze(open_log(run.write(tmp_path / "run.arrow")))
    assert report.details is not None
    (memory,) = report.details.memory
    assert memory.peak_allocated == 1090 and memory.peak_time == 2220 and memory.peak_step == 2
    assert memory.by_category == {
        "parameters": 100,
        "gradients": 100,
        "optimizer": 600,
        "activations": 200,
        "communication": 40,
        "workspaces": 50,
        "fragmentation": 5000 - 1090,
    }
    assert max(allocated for _, allocated, _ in memory.timeline) == 1090


@pytest.mark.parametrize(("reduced", "said"), [(1, False), (4, True)])
def test_gradients_that_each_pass_reduces(tmp_path: Path, reduced: int, said: bool) -> None:
    run = Drawn()
    run.group(0, "dp", (0, 1))
    for rank in (0, 1):
        run.kernel(rank, 0, 400, 0)
    run.collective(0, {0: 300, 1: 300}, 700, "AllReduce")
    report = run.report(tmp_path)
    details = report.details
    assert details is not None and not no_sync(report, details)
    memory = SimpleNamespace(by_category={"parameters": (1 << 20) // reduced})
    modules = [SimpleNamespace(name="DistributedDataParallel.forward")]
    found = SimpleNamespace(modules=modules, memory=[memory], collectives=details.collectives)
    text = no_sync(report, cast(Details, found))
    assert text.startswith("4 backward passes of a step reduce all gradients each") == said
    assert bool(text) == said


def test_paths_cross_ranks_and_streams(tmp_path: Path) -> None:
    """Rank 1's work, through a collective, decides when rank 0's other stream may go on."""
    run = Drawn()
    run.group(0, "dp", (0, 1))
    run.kernel(0, 0, 100, 0)
    run.kernel(1, 0, 500, 0)
    run.collective(0, {0: 100, 1: 500}, 600, "AllReduce")
    for rank, reached in ((0, 100), (1, 500)):
        for t in (0, STEP):
            mark = run.add(Kind.RECORD, rank, t + reached * US, t + reached * US, stream=0, launch=t)
            run.add(Kind.WAIT, rank, t, t + reached * US, stream=7, launch=t, link=mark)
            mark = run.add(Kind.RECORD, rank, t + 600 * US, t + 600 * US, stream=7, launch=t)
            run.add(Kind.WAIT, rank, t + reached * US, t + 600 * US, stream=0, launch=t, link=mark)
        run.kernel(rank, 600, 1000, 0, "aten::addmm")
    report = run.report(tmp_path)
    assert report.details is not None
    path: CriticalPath = report.details.critical_paths[1]
    assert [(s.start // US - 1000, s.end // US - 1000, s.rank, s.cls) for s in path.segments] == [
        (0, 500, 1, "gemm"),
        (500, 600, 0, "communication"),
        (600, 1000, 0, "gemm"),
    ]
    assert path.by_rank == {0: 500 * US, 1: 500 * US} and (path.start_rank, path.end_rank) == (1, 0)
    assert path.gain == {"gemm": 900 * US, "communication": 100 * US}
