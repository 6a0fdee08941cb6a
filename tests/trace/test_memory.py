"""Memory: its content, whether it fits, and the first line of a run that did not fit."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from phantora.sweeps.measure import measured_of
from phantora.trace.analysis import summary, why
from phantora.trace.analysis.analyze import analyze
from phantora.trace.analysis.memory_fit import fit_of, grows, keep_less, other_ranks
from phantora.trace.analysis.render import render
from phantora.trace.analysis.report import Details, FailedAllocation, Growth, MemoryBlock, PeakRange
from phantora.trace.reader import open_log
from phantora.units import GIB
from tests.support.fakelog import FakeRun, Kind

MB = 1 << 20


class Allocator:
    """Rows of torch's allocator on rank 0; times in us."""

    def __init__(self) -> None:
        self.run, self.level = FakeRun(), 0

    def take(self, at: int, size: int, thread: int = 0) -> int:
        self.level += size * MB
        return self._row(at, "alloc", thread)

    def free(self, at: int, block: int, size: int, thread: int = 0, kept: int = -1) -> None:
        self.level -= size * MB
        self._row(at, "free", thread, link=block, seq=kept * 1000 if kept >= 0 else -1)

    def enqueue(self, at: int) -> None:
        self.run.add(Kind.COLLECTIVE, 0, at * 1000, at * 1000 + 1, "ncclDevKernel", launch=at * 1000)

    def fail(self, at: int, asked: int = 0) -> None:
        self._row(at, "oom", 0, seq=asked * MB)

    def tell(self, at: int, place: str, thread: int = 0) -> None:
        self._row(at, place, thread)

    def _row(self, at: int, name: str, thread: int, **columns: int) -> int:
        value = {"value": self.level, "bytes": max(self.level, 600 * MB), "stream": thread}
        return self.run.add(Kind.MEMORY, 0, at * 1000, at * 1000, name, **value, **columns)

    def use(self, at: int, block: int, name: str) -> None:
        self._row(at, name, 0, link=block)

    def mark(self, name: str, start: int, end: int) -> None:
        self.run.add(Kind.ANNOTATION, 0, start * 1000, end * 1000, name)

    def details(self, path: Path) -> Details:
        self.run.trailer["device_memory_bytes"] = 700 * MB
        details = analyze(open_log(self.run.write(path / "run.arrow"))).details
        assert details is not None
        return details


def data_parallel() -> Allocator:
    """Four steps under DDP: parameters 100, built with buckets of 90 that the second forward pass makes anew,
    activations 200, gradients 100, state of the optimizer 200 (MiB)."""
    a = Allocator()
    a.take(1, 100)
    built = a.take(2, 90)
    for step in range(4):
        t = 1000 * (step + 1)
        a.mark("DistributedDataParallel.forward", t, t + 100)
        if step == 1:
            a.free(t + 1, built, 90)
            a.take(t + 2, 90)
        activations = a.take(t + 50, 200)
        gradients = a.take(t + 200, 100, thread=1)
        a.free(t + 300, activations, 200)
        a.mark("Optimizer.step#AdamW.step", t + 400, t + 500)
        if not step:
            a.take(t + 410, 200)
        a.run.add(Kind.KERNEL, 0, (t + 450) * 1000, (t + 460) * 1000, "adamw", launch=(t + 420) * 1000)
        a.free(t + 600, gradients, 100)
    return a


def test_activations_of_data_parallel_are_no_communication(tmp_path: Path) -> None:
    (memory,) = data_parallel().details(tmp_path).memory
    reported = {name: value // MB for name, value in memory.by_category.items()}
    assert reported == {"parameters": 100, "optimizer": 200, "activations": 200, "communication": 90, "gradients": 100}
    over_time = {name: max(values) // MB for name, values in memory.timeline_by_category.items()}
    assert over_time == reported
    levels = [sum(values) for values in zip(*memory.timeline_by_category.values(), strict=True)]
    assert levels == [allocated for _, allocated, _ in memory.timeline]


def test_a_bucket_that_the_watchdog_keeps_is_communication(tmp_path: Path) -> None:
    """The second forward pass lets go of it; a backward thread frees it in the third step."""
    a = Allocator()
    a.take(1, 100)
    built = a.take(2, 90)
    for step in range(4):
        t = 1000 * (step + 1)
        a.mark("DistributedDataParallel.forward", t, t + 100)
        if step == 1:
            a.take(t + 2, 90)
        gradients = a.take(t + 200, 100, thread=1)
        if step == 2:
            a.free(t + 210, built, 90, thread=1, kept=10)
        a.mark("Optimizer.step#SGD.step", t + 400, t + 500)
        a.run.add(Kind.KERNEL, 0, (t + 450) * 1000, (t + 460) * 1000, "sgd", launch=(t + 420) * 1000)
        a.free(t + 600, gradients, 100)
    (memory,) = a.details(tmp_path).memory
    assert memory.by_category["communication"] == 180 * MB and "other" not in memory.by_category


def test_it_fits(tmp_path: Path) -> None:
    fit = data_parallel().details(tmp_path).fit
    assert fit is not None and fit.fits and fit.outside == 10 * MB and fit.taken == 700 * MB
    assert fit.sentence().startswith("Fits: rank 0 takes 700.0 MiB of 80.00 GiB (690.0 MiB allocated")
    fit.left = fit.capacity // 50
    assert "barely" in fit.sentence()


def test_what_is_left_on_every_rank(tmp_path: Path) -> None:
    fit = data_parallel().details(tmp_path).fit
    assert fit is not None and fit.left_by_rank == {0: fit.left} and not other_ranks(fit)
    free = fit.left
    fit.left_by_rank = {0: free, 1: free + 80 * MB}
    assert other_ranks(fit) == "Each of the 2 ranks has 79.32 GiB to 79.39 GiB left."
    fit.left_by_rank = {0: free - 4096 * MB, 1: free, 2: free}
    assert other_ranks(fit) == "Left by rank: 75.32 GiB on 0, 79.32 GiB on 1-2."


def test_a_run_that_did_not_fit_begins_with_it(tmp_path: Path) -> None:
    a = data_parallel()
    a.take(9000, 900)
    a.fail(9001)
    a.run.trailer["device_memory_bytes"] = 1500 * MB
    report = analyze(open_log(a.run.write(tmp_path / "run.arrow")))
    out = io.StringIO()
    render(report, Console(file=out, width=300))  # the path of the log may be long
    lines = [line for line in out.getvalue().splitlines()[1:] if line.strip()]
    assert lines[0].startswith("Does not fit: rank 0 had no room; rank 0 takes")
    assert lines[1].startswith("What would help: ")


def test_where_the_largest_blocks_were_made(tmp_path: Path) -> None:
    a = data_parallel()
    a.mark("module: layers.0.mlp", 6000, 6100)
    a.take(6010, 400)
    a.take(6011, 300, thread=1)  # its place comes after that of the main thread's next block
    a.tell(6012, "model.py:7")
    a.take(6200, 250)
    a.tell(6200, "train.py:30")
    a.tell(6201, "autograd", thread=1)
    a.mark("Optimizer.step#AdamW.step", 7000, 7100)
    a.run.add(Kind.KERNEL, 0, 7050_000, 7060_000, "adamw", launch=7020_000)
    (memory,) = a.details(tmp_path).memory
    reported = {block.bytes // MB: (block.site, block.module) for block in memory.largest}
    assert reported[400] == ("model.py:7", "layers.0.mlp")
    assert reported[300] == ("autograd", "layers.0.mlp") and reported[250] == ("train.py:30", "")
    assert memory.by_module["layers.0.mlp"] == 700 * MB


def test_an_allocation_that_failed(tmp_path: Path) -> None:
    a = data_parallel()
    a.fail(9001, asked=900)
    a.tell(9002, "train.py:12")
    (memory,) = a.details(tmp_path).memory
    assert memory.failed is not None
    assert (memory.failed.bytes, memory.failed.site, memory.failed.time) == (900 * MB, "train.py:12", 9001_000)


def leaking(steps: int, name: str = "kept by leak.py:27 (outs)", every: int = 1) -> Allocator:
    """A model of 100 with a data set of 50 and a library's workspace of 32, of which each step, or each one in `every`,
    keeps 40 (MiB)."""
    a = Allocator()
    model, data = a.take(1, 100), a.take(2, 50)
    a.use(3, model, "parameters")
    gemm, outs = a.run.price("gemm", "measured"), []
    for step in range(steps):
        t = 1000 * (step + 1)
        if step % every == every - 1:
            outs.append(a.take(t + 1, 40))
        a.run.add(Kind.KERNEL, 0, (t + 20) * 1000, (t + 30) * 1000, "gemm", launch=(t + 10) * 1000, price=gemm)
        if not step:
            a.use(t + 12, a.take(t + 11, 32), "workspaces")
        a.mark("Optimizer.step#SGD.step", t + 400, t + 500)
    for out in outs[:-1]:
        a.use(1000 * steps + 900, out, name)
    assert data
    return a


def test_memory_that_grows_is_named_with_what_keeps_it(tmp_path: Path) -> None:
    (memory,) = (a := leaking(6)).details(tmp_path).memory
    used = {name: taken // MB for name, taken in memory.by_category.items()}
    assert used == {"parameters": 100, "data": 50, "workspaces": 32, "kept": 240, "fragmentation": 178}
    report = analyze(open_log(tmp_path / "run.arrow"), details=False)
    left = (80 << 30) - 600 * MB
    full = 6 + left // (40 * MB) + 1
    assert report.growth == Growth(
        rank=0, bytes=40 * MB, every=1, place="leak.py:27 (outs)", kept=True, full=full, larger=False, seen=6
    )
    assert report.growth.far and not replace(report.growth, full=600).far
    found = measured_of(analyze(open_log(tmp_path / "run.arrow")))
    assert not found.grows and found.may_grow.startswith("40.0 MiB an iteration") and found.full == full
    said = dict(summary.lines(report))["GROWS"]
    assert f", not from iteration {report.growth.full:,} on (GROWS)" in dict(summary.lines(report))["FITS"]
    assert dict(why.answer(report))["NEXT"].startswith(f"{keep_less(report.growth)}; ")
    details = analyze(open_log(tmp_path / "run.arrow")).details
    assert details is not None
    assert details.findings[0].startswith("Growing memory: 40.0 MiB an iteration, kept by leak.py:27 (outs)")
    assert (
        said == f"40.0 MiB an iteration, kept by leak.py:27 (outs); out of memory in iteration {report.growth.full:,}"
    )
    assert a.level == 422 * MB


@pytest.mark.parametrize("others", [4, 0], ids=["longer inputs", "a cache that is replaced"])
def test_what_only_the_last_iteration_has_does_not_grow(tmp_path: Path, others: int) -> None:
    """Each iteration's block is larger than the one before, which it replaces; with longer inputs `others`, too."""
    a, before = Allocator(), None
    a.use(3, a.take(1, 100), "parameters")
    for step in range(8):
        t, size = 1000 * (step + 1), 40 * (step + 1)
        for i in range(others):
            a.free(t + 11 + 2 * i, a.take(t + 10 + 2 * i, size), size)
        block = a.take(t + 50, size)
        if before is not None:
            a.free(t + 60, before, size - 40)
        before = block
        a.run.add(Kind.KERNEL, 0, (t + 200) * 1000, (t + 300) * 1000, "gemm", launch=(t + 100) * 1000)
        a.mark("Optimizer.step#SGD.step", t + 400, t + 500)
    found = analyze(open_log(a.run.write(tmp_path / "run.arrow")), details=False).growth
    assert (found is None) == bool(others)


def test_a_deque_of_a_length_that_fits_does_not_grow(tmp_path: Path) -> None:
    for most, there in ((50, False), (5000, True)):
        (folder := tmp_path / str(most)).mkdir()
        leaking(6, name=f"kept by leak.py:27 (outs, at most {most})").details(folder)
        assert (analyze(open_log(folder / "run.arrow"), details=False).growth is not None) == there


def test_memory_that_grows_every_third_iteration(tmp_path: Path) -> None:
    leaking(14, every=3).details(tmp_path)
    growth = analyze(open_log(tmp_path / "run.arrow"), details=False).growth
    assert growth is not None and (growth.bytes, growth.every) == (40 * MB, 3)
    assert grows(growth) == "40.0 MiB every 3 iterations, kept by leak.py:27 (outs)"
    assert growth.full == 14 + 3 * (((80 << 30) - 600 * MB) // (40 * MB)) + 1


def test_a_leak_that_ends_the_run_is_its_remedy(tmp_path: Path) -> None:
    a = leaking(6)
    a.fail(9001, asked=900)
    details = a.details(tmp_path)
    assert details.fit is not None and not details.fit.fits
    assert any("memory grows by 40.0 MiB an iteration, kept by leak.py:27 (outs)" in line for line in details.fit.says)
    assert any("leak.py:27 (outs): keep it on the CPU" in line for line in details.fit.says)  # it has no graph
    words = dict(summary.lines(analyze(open_log(tmp_path / "run.arrow"))))
    assert "STEP" not in words and "HELD UP" not in words and words["GROWS"].endswith("leak.py:27 (outs)")


def test_a_growth_that_is_small_is_not_why_memory_runs_out(tmp_path: Path) -> None:
    a = leaking(6)
    a.take(9000, 60 << 10)
    a.fail(9001, asked=900)
    details = a.details(tmp_path)
    assert details.fit is not None and not any("grows" in line for line in details.fit.says)
    assert analyze(open_log(tmp_path / "run.arrow"), details=False).growth is None


def test_what_ddp_was_built_with_is_no_data(tmp_path: Path) -> None:
    a = Allocator()
    a.use(3, a.take(1, 100), "parameters")
    a.take(4, 100)
    a.take(5, 30)
    a.mark("DistributedDataParallel.forward", 1000, 1100)
    price = a.run.price("gemm", "measured")
    a.run.add(Kind.KERNEL, 0, 1030_000, 1040_000, "gemm", launch=1020_000, price=price)
    a.mark("Optimizer.step#AdamW.step", 1400, 1500)
    a.fail(1450, asked=900)
    (memory,) = a.details(tmp_path).memory
    used = {name: taken // MB for name, taken in memory.by_category.items()}
    assert used == {"parameters": 100, "communication": 100, "data": 30, "fragmentation": 370}


def test_cached_pieces_with_room_for_what_is_asked_are_the_first_remedy(tmp_path: Path) -> None:
    a = Allocator()
    a.take(1, 60 << 10)
    a.level, full = 70 << 10, a.level
    a._row(2, "alloc", 0)
    a.level = full
    a._row(3, "free", 0, link=1)
    a.run.add(Kind.MEMORY, 0, 4000, 4000, "oom", value=full, bytes=(79 << 10) * MB, stream=0, seq=(15 << 10) * MB)
    details = a.details(tmp_path)
    assert details.fit is not None and any("expandable_segments:True (19.00 GiB" in line for line in details.fit.says)


def test_memory_that_stays_level_does_not_grow(tmp_path: Path) -> None:
    data_parallel().details(tmp_path)
    assert analyze(open_log(tmp_path / "run.arrow"), details=False).growth is None


MS = 1000  # in us


def test_when_a_watchdog_frees_is_chance(tmp_path: Path) -> None:
    """A bucket of 100 is freed at 60 ms by a thread that makes no blocks: in reality between 10 and 110 ms."""
    a = Allocator()
    a.take(1, 50)
    bucket = a.take(2, 100)
    early = a.take(30 * MS, 30)  # 180: 80 if the bucket is gone already
    a.free(40 * MS, early, 30)
    a.free(60 * MS, bucket, 100, thread=9)
    late = a.take(90 * MS, 120)  # 170: 270 if the bucket is still there
    a.free(95 * MS, late, 120)
    a.take(120 * MS, 110)  # 160: by now it is gone for certain
    details = a.details(tmp_path)
    (memory,) = details.memory
    assert memory.peak_allocated == 180 * MB
    assert (memory.lowest_peak, memory.highest_peak) == (170 * MB, 270 * MB)
    report = analyze(open_log(tmp_path / "run.arrow"), details=False)
    assert report.peak == PeakRange(0, 180 * MB, 170 * MB, 270 * MB)
    assert dict(summary.lines(report))["PEAK"].startswith("0.2 to 0.3 GiB allocated")
    fit = details.fit
    assert fit is not None and fit.by_chance == 90 * MB
    fit.left = 80 * MB
    assert fit.sentence().startswith("Fits in some runs only: rank 0")


def test_when_the_next_collective_frees_is_chance(tmp_path: Path) -> None:
    """A round at 60 ms lets go of a bucket of 100, which the enqueue at 70 frees: in reality that at 20 or at 130."""
    a = Allocator()
    for at in (20, 70, 130):
        a.enqueue(at * MS)
    a.take(1, 50)
    bucket = a.take(2, 100)
    early = a.take(30 * MS, 30)  # 180: 80 if the bucket is gone already
    a.free(40 * MS, early, 30)
    a.free(70 * MS, bucket, 100, kept=10 * MS)
    late = a.take(90 * MS, 120)  # 170: 270 if the bucket is still there
    a.free(95 * MS, late, 120)
    a.take(140 * MS, 110)  # 160: by now it is gone for certain
    (memory,) = a.details(tmp_path).memory
    assert memory.peak_allocated == 180 * MB
    assert (memory.lowest_peak, memory.highest_peak) == (170 * MB, 270 * MB)


def test_no_chance_without_a_watchdog(tmp_path: Path) -> None:
    (memory,) = data_parallel().details(tmp_path).memory
    assert memory.lowest_peak == memory.peak_allocated == memory.highest_peak


def test_out_of_memory_in_the_first_pass(tmp_path: Path) -> None:
    """No optimizer shows what the blocks contain; layers that repeat are no steps; the process's end frees all."""
    a = Allocator()
    gemm, sig = a.run.price("gemm", "measured", 1e9), a.run.signature("aten::mm", "bf16[8,8], bf16[8,8]")
    held = [(a.take(1, 100), 100)]
    for layer in range(6):
        t = 100 * (layer + 1)
        for k in range(3):
            start = (t + 10 * k) * 1000
            a.run.add(Kind.KERNEL, 0, start, start + 9000, "gemm", launch=start - 1000, price=gemm, sig=sig)
        a.mark("FSDP::all_gather_copy_out", t - 1, t + 1)
        held += [(a.take(t, 20), 20), (a.take(t + 2, 60), 60)]
    a.fail(800, asked=60)
    a.tell(801, "model.py:9")
    for block, size in held:
        a.free(900, block, size)
    report = analyze(open_log(a.run.write(tmp_path / "run.arrow")))
    assert report.step_source == "run" and report.details is not None
    (memory,) = report.details.memory
    assert {name: value // MB for name, value in memory.by_category.items()} == {
        "parameters": 100,
        "activations": 360,
        "communication": 120,
        "fragmentation": 20,
    }
    out = io.StringIO()
    render(report, Console(file=out, width=300))
    assert "rank 0 asked for 60.0 MiB at model.py:9" in out.getvalue()
    assert out.getvalue().count("try activation checkpointing") == 1
    assert report.details.fit is not None
    assert report.details.fit.holds == (
        "activations 360.0 MiB, communication 120.0 MiB, parameters 100.0 MiB, fragmentation 20.0 MiB"
    )
    assert "\nSteps" in out.getvalue()
    report.failure = "out of memory on rank 0 at model.py:9: 60.0 MiB asked, 0 B free"
    render(report, Console(file=(failed := io.StringIO()), width=300))  # its verdict and its memory
    assert "\nSteps" not in failed.getvalue() and "Kernels" not in failed.getvalue()
    assert "Memory when the allocation failed" in failed.getvalue()


def test_large_blocks_are_a_part_of_the_activations_without_what_did_not_fit(tmp_path: Path) -> None:
    (memory,) = data_parallel().details(tmp_path).memory
    memory.peak_allocated, memory.peak_reserved, memory.capacity = 30 * GIB, 31 * GIB, 40 * GIB
    memory.by_category = {"parameters": 8 * GIB, "activations": 16 * GIB, "checkpoints": 6 * GIB}
    loss = MemoryBlock(
        category="activations", operator="aten::_log_softmax", shape="", bytes=12 * GIB, count=1, site="train.py:9"
    )
    memory.largest, memory.out_of_memory = [loss], True
    memory.failed = FailedAllocation(time=10**9, bytes=6 * GIB, site="train.py:9")
    fit = fit_of([memory], 0, fatal=True)
    assert fit is not None and fit.remedy.startswith(
        "the largest part is activations (22.00 GiB), 12.00 GiB of it for the loss at train.py:9 and 6.00 GiB more "
        "that did not fit: try the loss in parts"
    )
    memory.by_category, memory.kept_by = {"activations": 6 * GIB, "kept": 24 * GIB}, "train.py:9 (losses)"
    fit = fit_of([memory], 0, fatal=True)
    assert fit is not None and "--gpu-memory" not in " ".join(fit.says)


def test_a_failure_that_the_script_survives(tmp_path: Path) -> None:
    a = data_parallel()
    a.fail(2900, asked=900)
    a.run.trailer["status"] = 0
    fit = a.details(tmp_path).fit
    assert fit is not None and fit.fits
    assert fit.sentence().startswith("An allocation of rank 0 failed, and the script went on without it. At the")


def test_a_leak_is_no_cause_of_a_slow_step(tmp_path: Path) -> None:
    report = analyze(open_log(leaking(6).run.write(tmp_path / "run.arrow")))
    said = dict(why.answer(report))
    assert said["GROWS"].startswith("40.0 MiB an iteration") and "Growing" not in said.get("WHY", "")
    assert said.get("WHY", "memory").startswith("memory")
