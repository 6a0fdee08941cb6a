"""phantora calibrate: real traces that are made up, of hosts with known factors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from phantora.calibrate import calibrate
from phantora.calibrate.exclusive import exclusive_times
from phantora.calibrate.fit import OPERATORS
from phantora.calibrate.profiled import EVENT_NS, LAUNCH_NS
from phantora.cli.calibrate import calibrate as command
from phantora.errors import PhantoraError
from phantora.hardware import DEFAULT_HOST, load_host
from phantora.importers import import_traces
from phantora.runs.replay import whole_recording
from phantora.trace.reader import Log, open_log
from tests.support.fakelog import small_run
from tests.support.kineto_files import Trace

DEFAULT = load_host(DEFAULT_HOST)
CALLS = 40


def real_log(folder: Path, step_us: float) -> Log:
    """Three steps of a host that works all the time, `CALLS` operators with a launch each."""
    trace = Trace()
    for number in range(3):
        begin = number * step_us
        trace.slice("user_annotation", f"ProfilerStep#{number}", begin, step_us)
        for at in range(CALLS):
            start = begin + step_us * at / CALLS
            trace.operator("aten::add", start, 0.6 * step_us / CALLS, [8, 8])
            trace.kernel("add", start + 0.1 * step_us / CALLS, start + 10, 1.0)
    path = trace.write(folder / "rank0.json")
    import_traces([str(path)], str(folder / "real.arrow"))
    return open_log(folder / "real.arrow")


def simulated_log(folder: Path, host: dict[str, object]) -> Log:
    run = small_run(ranks=1, steps=5)
    run.metadata.extra["host"] = host
    return open_log(run.write(folder / "simulated.arrow"))


def test_a_script_on_a_host_twice_as_slow(tmp_path: Path) -> None:
    facts = {"name": DEFAULT_HOST, "factor": DEFAULT.factor}
    simulated = simulated_log(tmp_path, facts)
    modelled = calibrate(real_log(tmp_path, 1000.0), simulated, "any").simulated
    assert modelled is not None
    launch = 4000.0 / LAUNCH_NS  # how long the trace's launches take
    profiler = DEFAULT.factor * CALLS * (EVENT_NS["operator"] + EVENT_NS["call"]) * launch
    found = calibrate(real_log(tmp_path, 2 * (modelled.work_ns + profiler) / 1e3), simulated, "mine")
    assert found.ratio == pytest.approx(2.0, rel=0.02)
    assert found.host.factor == pytest.approx(2 * DEFAULT.factor, rel=0.02)
    assert found.host.api_ns["LAUNCH"] == pytest.approx(2 * DEFAULT.api_ns["LAUNCH"], rel=0.02)
    out = tmp_path / "mine.toml"
    words = [str(tmp_path / "real.arrow"), str(tmp_path / "simulated.arrow"), "--out", str(out), "--name", "mine"]
    done = CliRunner().invoke(command, words, catch_exceptions=False)
    assert done.exit_code == 0 and "2.00 times as slow as default" in done.output
    written = load_host(str(out))
    assert written.api_ns == pytest.approx(found.host.api_ns, abs=1) and written.measured


def test_a_machine_by_its_operators(tmp_path: Path) -> None:
    """Operators of a trace that all take 1.5 times as long as on the machine that is known."""
    known = json.loads(OPERATORS.read_text())
    trace, at = Trace(), 0.0
    for _ in range(2):
        for name, ns in known["own_ns"].items():
            trace.operator(name, at, 1.5 * ns / 1e3)
            at += 2 * ns / 1e3
    trace.kernel("any", at, at + 5, 1.0)
    import_traces([str(trace.write(tmp_path / "rank0.json"))], str(tmp_path / "real.arrow"))
    found = calibrate(open_log(tmp_path / "real.arrow"), None, "mine")
    assert found.host.factor == pytest.approx(1.5 * known["factor"], rel=0.01) and found.operators > 20


def test_logs_that_do_not_tell(tmp_path: Path) -> None:
    simulated = simulated_log(tmp_path, {"name": "mine", "factor": 1.0})
    real = real_log(tmp_path, 1000.0)
    with pytest.raises(PhantoraError, match="a real run's log has no recording to replay"):
        whole_recording(real)
    with pytest.raises(PhantoraError, match="is a simulated log"):
        calibrate(simulated, None, "mine")
    with pytest.raises(PhantoraError, match="its host 'mine' is not built-in"):
        calibrate(real, simulated, "mine")
    with pytest.raises(PhantoraError, match="1 operators to compare the machine by"):
        calibrate(real, None, "mine")


def test_exclusive_times_of_nested_events() -> None:
    start, end = np.array([0, 10, 15, 40, 5]), np.array([100, 30, 20, 50, 8])
    thread = np.array([1, 1, 1, 1, 2])
    assert exclusive_times(start, end, thread).tolist() == [70, 15, 5, 10, 3]
