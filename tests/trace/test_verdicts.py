"""Numbers that are printed twice, and first causes, of many logs (tests/support/verdicts.py); those of simulated runs
are checked where tests record them (tests/support/runs.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from phantora.cli.opening import log_of
from phantora.errors import PhantoraError
from phantora.importers import import_traces
from phantora.trace.analysis.analyze import Filters, analyze
from phantora.trace.analysis.why import answer
from phantora.trace.diff.between import between, sides_of
from phantora.trace.diff.render import headline
from phantora.trace.diff.verdict import Limit, judge
from phantora.trace.reader import open_log
from phantora.trace.schema import REAL
from tests.support.fakelog import METADATA, FakeRun, Kind, small_run
from tests.support.kineto_files import Trace
from tests.support.verdicts import agrees, names_its_cause
from tests.trace.test_diff import PAIRS, Model, training

US = 1000


@pytest.mark.parametrize("number", range(len(PAIRS)))
def test_pairs_of_runs(tmp_path: Path, number: int) -> None:
    before, after, _ = PAIRS[number]
    a, b = Model(**before).write(tmp_path / "a.arrow"), Model(**after).write(tmp_path / "b.arrow")
    agrees(b)
    for pair in ((a, b), (b, a)):
        names_its_cause(*pair)


def waiting(steps: int, every: int, first: int) -> FakeRun:
    """A real run; each step number `every` is five times as long for its host, the first one `first` times."""
    run = FakeRun(replace(METADATA, host_mode=REAL, world_size=1, ranks_per_host=1))
    gemm, t = run.price("gemm", "real", 1e9), 0
    for step in range(steps):
        begin = t
        t += 4000 * US * (step % every == 1)
        length = 1000 * US * (first if step == 0 else 1)
        run.add(Kind.KERNEL, 0, t + 10 * US, t + length, "gemm", launch=t + 5 * US, stream=0, price=gemm)
        t += length
        run.add(Kind.ANNOTATION, 0, begin, t, f"ProfilerStep#{step}")
    return run


RUNS: dict[str, Callable[[], FakeRun]] = {
    "one rank": lambda: small_run(ranks=1),
    "eight ranks": lambda: small_run(ranks=8),
    "one step": lambda: small_run(steps=1),
    "many steps": lambda: small_run(steps=40),
    "no profiler": lambda: small_run(profiler=False),
    "no optimizer": lambda: small_run(optimizer=False),
    "no steps": lambda: small_run(profiler=False, optimizer=False),
    "training": training,
    "steps that wait": lambda: waiting(20, 2, 1),
    "a long first step": lambda: waiting(20, 30, 60),
    "one step waits": lambda: waiting(9, 8, 1),
}


@pytest.mark.parametrize("kind", RUNS)
def test_runs(tmp_path: Path, kind: str) -> None:
    agrees(RUNS[kind]().write(tmp_path / "run.arrow"))


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("late", [0, 150])
def test_imports(tmp_path: Path, ranks: int, late: int) -> None:
    files = []
    for rank in range(ranks):
        trace = Trace(rank, ranks)
        for step in range(6):
            t = 1000 * step
            own = 300 + late * (rank == ranks - 1)
            mm = trace.operator("aten::mm", t, 8, [512, 512], [512, 512])
            trace.kernel("nvjet_tst", t + 2, t + 20, own, external=mm)
            if ranks > 1:
                trace.all_reduce(t + 10, t + 20 + own, 100 + late * (rank != ranks - 1))
            trace.slice("user_annotation", f"ProfilerStep#{step}", t, 999)
        files.append(str(trace.write(tmp_path / f"rank{rank}.json")))
    import_traces(files, str(tmp_path / "real.arrow"))
    agrees(tmp_path / "real.arrow")


def test_a_trace_imported_on_the_way_keeps_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    trace = Trace(0, 1)
    for step in range(3):
        mm = trace.operator("aten::mm", 1000 * step, 8, [512, 512], [512, 512])
        trace.kernel("nvjet_tst", 1000 * step + 2, 1000 * step + 20, 300, external=mm)
    path = str(trace.write(tmp_path / "rank0.json"))
    assert analyze(log_of(path)).path == path


def recording(folder: Path, name: str, gap: int, kernels: int) -> Path:
    """A trace of kernels of 100 us without steps, each `gap` us after the one before; only the first has
    flops."""
    trace = Trace(0, 2)
    for number in range(kernels):
        at = (100 + gap) * number
        mm = trace.operator(f"my::mm{number}" if number else "aten::mm", at, 8, *[[512, 512]] * 2)
        trace.kernel(f"nvjet_tst_{number}", at + gap / 2, at + gap, 100, external=mm)
    import_traces([str(trace.write(folder / f"{name}.json"))], str(folder / f"{name}.arrow"))
    return folder / f"{name}.arrow"


def test_recordings_of_equal_length_are_compared_by_their_pace(tmp_path: Path) -> None:
    a, b = recording(tmp_path, "a", 20, 60), recording(tmp_path, "b", 80, 40)
    (difference,) = between(sides_of([open_log(a), open_log(b)], Filters()))
    assert difference.recorded and difference.pace == pytest.approx(2 / 3, rel=0.01)
    first = headline(difference)
    assert first.startswith("Neither trace has steps. In a second b runs 33.") and "% fewer operators than a" in first
    assert ": host: GPUs wait" in first
    with pytest.raises(PhantoraError, match="neither trace has steps"):
        judge(difference, Limit("step", 0.02))


def test_a_trace_that_lacks_flops_or_ranks_has_no_mfu_and_no_replay(tmp_path: Path) -> None:
    report = analyze(open_log(recording(tmp_path, "a", 20, 60)))
    assert report.headline.mfu is None and report.headline.energy is None
    assert "replay" not in dict(answer(report))["NEXT"]


def test_a_trace_cut_short_before_its_kernels_says_so(tmp_path: Path) -> None:
    trace = Trace(0, 1)
    for step in range(40):
        mm = trace.operator("aten::mm", 1000 * step, 8, [512, 512], [512, 512])
        trace.kernel("nvjet_tst", 1000 * step + 2, 1000 * step + 20, 300, external=mm)
    trace.events.sort(key=lambda event: event["cat"] == "kernel")
    path = trace.write(tmp_path / "rank0.json")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])
    import_traces([str(path)], str(tmp_path / "real.arrow"))
    found = dict(answer(analyze(open_log(tmp_path / "real.arrow"))))
    assert "cut short before any kernel" in found["STEP"] and "lists the operators" in found["NEXT"]
    with pytest.raises(PhantoraError, match=r"real\.arrow: nothing to compare, step none: the file is cut short"):
        sides_of([open_log(tmp_path / "real.arrow")] * 2, Filters())
