"""phantora profile host with a script: what its own work makes of a host's costs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phantora.errors import PhantoraError, Reason
from phantora.hardware import load_host
from phantora.profile import host, script
from phantora.result import RunReport, RunResult
from phantora.spec import RunSpec
from phantora.wire.layout import Api

NAMES = Api.names()


def marks(steps: int, cpu_ms: float, operators: int, launches: int) -> list[str]:
    """As host_script.py writes them: equal steps after a first one of ten times the time."""
    lines = []
    for step in range(steps):
        done = step + 10  # the first step loads code
        charges = [0] * len(NAMES)
        charges[NAMES.index("OP_TOP")], charges[NAMES.index("LAUNCH")] = operators * done, launches * done
        lines.append(json.dumps({"cpu_ns": round(cpu_ms * 1e6 * done), "charges": charges}))
    return lines


def runs(monkeypatch: pytest.MonkeyPatch, lines: list[str], status: int = 0) -> list[RunSpec]:
    """Instead of both runs: a process that writes `lines`. Returns their specs."""
    seen: list[RunSpec] = []

    def run(spec: RunSpec) -> RunResult:
        seen.append(spec)
        assert spec.target.endswith("host_script.py")
        Path(spec.arguments[0]).write_text("\n".join(lines) + "\n")
        message = "rank 0 at train.py:3: Boom: no such thing" if status else ""
        reason = Reason.SCRIPT_FAILED if status else Reason.OK
        return RunResult(status, reason, message, None, RunReport(status, 1))

    monkeypatch.setattr(script, "run_in_process", run)
    return seen


def test_costs_of_pytorch_follow_the_scripts_cpu_time_and_those_of_cuda_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = runs(monkeypatch, marks(8, 3.0, 1000, 500))
    here = load_host("default").slower(2.0)
    found = script.measure(["train.py", "--steps", "8"], "1x1xH100", here)
    assert found.cpu_ns == pytest.approx(3e6)
    assert found.counted_ns == pytest.approx(1000 * here.api_ns["OP_TOP"])
    assert (found.steps, found.uncertainty) == (6, 0.0)  # all equal
    assert [spec.null for spec in seen] == [True, False]
    assert [spec.host is not None for spec in seen] == [False, True]  # counts are those on this machine
    host = script.calibrated(here, found)
    by = 3e6 * script.NEXT_TO_CALLS / (1000 * here.api_ns["OP_TOP"])
    assert host.api_ns["OP_NODE"] == pytest.approx(here.api_ns["OP_NODE"] * by, abs=1)
    assert host.api_ns["PY_CODE"] == pytest.approx(here.api_ns["PY_CODE"] * by, abs=1)
    for name in ("LAUNCH", "GEMM", "CUDNN_EXECUTE", "NCCL_ENQUEUE"):
        assert host.api_ns[name] == here.api_ns[name]


def test_steps_that_differ_are_known_less_well(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, done = [json.loads(line) for line in marks(41, 3.0, 1000, 500)], 0.0
    for number, line in enumerate(lines):
        done += (2.7e6, 3.0e6, 3.3e6)[number % 3]
        line["cpu_ns"] = round(done)
    runs(monkeypatch, [json.dumps(line) for line in lines])
    found = script.measure(["train.py"], "1x1xH100", load_host("default"))
    assert found.steps == 39 and found.cpu_ns == pytest.approx(3e6)
    assert found.uncertainty == pytest.approx(0.2 / script.NORMAL_QUARTILES / 39**0.5, rel=0.01)


def test_each_optimizer_of_a_script_is_compared_with_what_is_counted_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A generator's step takes three times a critic's, and there are more of one than of the other."""
    lines, cpu, operators = [], 0.0, 0
    for number in range(25):
        times = 3 if number % 2 else 1
        cpu, operators = cpu + times * 1e6, operators + times * 1000
        charges = [0] * len(NAMES)
        charges[NAMES.index("OP_TOP")] = operators
        lines.append(json.dumps({"cpu_ns": round(cpu), "charges": charges}))
    runs(monkeypatch, lines)
    here = load_host("default")
    found = script.measure(["train.py"], "1x1xH100", here)
    assert found.ratio == pytest.approx(1000 / here.api_ns["OP_TOP"] * script.NEXT_TO_CALLS)
    assert found.uncertainty == pytest.approx(0, abs=1e-9)


def test_a_core_that_is_slow_half_of_the_time_is_described_by_the_mean() -> None:
    assert host.middle_mean([2.0, 4.0] * 10) == pytest.approx(3.0)
    assert host.middle_mean([3.0] * 18 + [0.0, 900.0]) == 3.0  # not by single steps
    assert host.middle_mean([1.0, 2.0, 6.0]) == 3.0


def test_a_script_with_few_steps_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    runs(monkeypatch, marks(4, 3.0, 1000, 500))
    with pytest.raises(PhantoraError, match=r"train.py took 4 optimizer steps without CUDA; at least 5 are needed"):
        script.measure(["train.py"], "1x1xH100", load_host("default"))


def test_a_script_that_fails_says_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    runs(monkeypatch, [], status=3)
    with pytest.raises(PhantoraError, match=r"train.py failed without CUDA: rank 0 at train.py:3: Boom: no such thing"):
        script.measure(["train.py"], "1x1xH100", load_host("default"))
