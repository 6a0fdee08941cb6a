"""The calls of users: names, signatures, errors. Runs are in tests/integration."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

import phantora
from phantora import api
from phantora.errors import Reason
from phantora.result import RunReport, RunResult
from phantora.spec import AUTO, RunSpec
from phantora.sweeps import compare


def test_names_have_types_and_texts() -> None:
    assert dir(phantora) == sorted(phantora.__all__)
    assert phantora.__version__[0].isdigit()
    for name in set(phantora.__all__) - {"PhantoraError", "Run", "RunFailed", "__version__"}:
        call = getattr(phantora, name)
        assert call.__doc__ and "**" not in str(inspect.signature(call)), name


MEASURED = [("all_reduce", 4, 1 << 26, 323.4), ("all_gather", 4, 1 << 28, 658.5)]
WRONG = [("sum", None, "unknown collective 'sum'"), ("all_reduce", 9, "ranks 0 to 7")]


@pytest.mark.parametrize(("op", "ranks", "size", "us"), MEASURED)
def test_a_collective_takes_what_was_measured_on_h200(op: str, ranks: int, size: int, us: float) -> None:
    time = phantora.collective_time("1x8xH200", op, size, ranks)
    assert time / 1e3 == pytest.approx(us, rel=0.15)
    assert phantora.collective_time("1x8xH200", op, size, range(ranks)) == time


@pytest.mark.parametrize(("op", "ranks", "said"), WRONG)
def test_what_is_no_collective_is_refused(op: str, ranks: Any, said: str) -> None:
    with pytest.raises(phantora.PhantoraError, match=said):
        phantora.collective_time("1x8xH100", op, 1024, ranks)


def test_a_failed_run_raises_with_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[RunSpec] = []

    def run(spec: RunSpec, *, quiet: bool) -> RunResult:
        asked.append(spec)
        return RunResult(1, Reason.OUT_OF_MEMORY, "rank 0: no room", Path("a.arrow"), RunReport(1, 1))

    monkeypatch.setattr(api, "run_in_process", run)
    with pytest.raises(phantora.RunFailed, match="rank 0: no room") as failed:
        phantora.run("train.py", ["--lr", "3"], cluster="1x2xH100", fold="dp=2", straggler=["rank=1:2"])
    assert failed.value.result.reason == failed.value.reason == Reason.OUT_OF_MEMORY
    (spec,) = asked
    assert (spec.target, spec.arguments, spec.fold.axes, spec.what_if.straggler) == (
        "train.py",
        ("--lr", "3"),
        "dp=2",
        ("rank=1:2",),
    )
    assert (spec.launch.nnodes, spec.output.path) == (AUTO, "")


LOG = Path(__file__).parents[1] / "golden" / "small.arrow"


def test_a_job_is_estimated_from_a_log_or_its_run() -> None:
    found = phantora.goodput(LOG, steps=1e9, gpus=4096, price=2.0, checkpoint_cost=5.0, trials=50)
    again = phantora.goodput(phantora.open(LOG), steps=1e9, gpus=4096, price=4.0, checkpoint_cost=5.0, trials=50)
    assert found.job.machines.gpus == 4096 and found.dollars and again.dollars
    assert again.dollars[0] == pytest.approx(2 * found.dollars[0])


def test_equal_runs_do_not_differ() -> None:
    assert phantora.diff(LOG, phantora.open(LOG)).causes == []


def test_a_file_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(phantora.PhantoraError, match=r"x\.json"):
        phantora.import_trace(tmp_path / "x.json", tmp_path / "real.arrow")
    assert not (tmp_path / "real.arrow").exists()


def test_calibrating_needs_a_real_run(tmp_path: Path) -> None:
    with pytest.raises(phantora.PhantoraError, match="real"):
        phantora.calibrate(LOG, out=tmp_path / "mine.toml")


def test_a_spec_is_the_same_after_json() -> None:
    spec = RunSpec("train.py", ("--lr", "3"), gpu_memory=80.0)
    assert RunSpec.from_json(spec.to_json()) == spec
    assert RunSpec.from_json('{"target": "a.py"}') == RunSpec("a.py")
    for wrong in ('{"target": 3}', '{"target": "a", "sped": 1}', "[]", '{"target": "a", "ranks": {"seed": "x"}}', "{"):
        with pytest.raises(phantora.PhantoraError, match="this is no RunSpec"):
            RunSpec.from_json(wrong)


def test_numbers_are_texts_too_and_mistakes_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A list of words may not be one text, and a keyword of the command line's form has a hint."""
    asked: list[Any] = []
    monkeypatch.setattr(compare, "compare", lambda run, folder, question: asked.append(question))
    phantora.compare("train.py", gpus="H100, B200", counts=4, tokens="1T", deadline="1d", folder=tmp_path)
    (question,) = asked
    assert (question.gpus, question.counts) == (("H100", "B200"), (4,))
    assert (question.job.tokens, question.job.deadline) == (1e12, 86400.0)
    with pytest.raises(phantora.PhantoraError, match="rate fast: give a number such as 200k"):
        phantora.plan("train.py", rate="fast", folder=tmp_path)
    with pytest.raises(TypeError, match="give a list of words, as"):
        phantora.run("train.py", "--lr 3")
    with pytest.raises(TypeError, match="unknown options count; did you mean counts"):
        phantora.compare("train.py", gpus=["H100"], count=4)  # type: ignore[call-arg]
