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


def test_names_have_types_and_texts() -> None:
    assert dir(phantora) == sorted(phantora.__all__)
    assert phantora.__version__[0].isdigit()
    for name in ("run", "open", "fits", "plan", "sweep", "collective_time"):
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


def test_a_spec_is_the_same_after_json() -> None:
    spec = RunSpec("train.py", ("--lr", "3"), gpu_memory=80.0)
    assert RunSpec.from_json(spec.to_json()) == spec
    assert RunSpec.from_json('{"target": "a.py"}') == RunSpec("a.py")
    for wrong in ('{"target": 3}', '{"target": "a", "sped": 1}', "[]", '{"target": "a", "ranks": {"seed": "x"}}', "{"):
        with pytest.raises(phantora.PhantoraError, match="this is no RunSpec"):
            RunSpec.from_json(wrong)
