"""phantora profile host: probes that are made up, with known factors."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from phantora.cli import profile as command
from phantora.errors import PhantoraError
from phantora.hardware import REFERENCE_HOST, load_host
from phantora.hardware.hosts import GIVEN_SPREAD, to_toml
from phantora.profile import host, host_probe, memory_probe, probing
from phantora.profile.script import SCRIPT_SPREAD
from phantora.trace.analysis.hosts import other_hosts
from phantora.units import MIB

REFERENCE = load_host(REFERENCE_HOST)
ABOUT = {"cpu": "A CPU", "mhz": [2000.0, 3100.0], "cores": 8, "torch": "2.11.0", "python": "3.12", "gpu": "H100"}
KINDS = {name: "step" if "blocks" in name else "cpu" for name in REFERENCE.probe_ns}
DRIVER_NS = {"event record": 900.0, "mm": 7000.0}
LAUNCH_NS = 3000.0  # in each of the operators that tell


def probe(factor: float, *, busy: float = 1.0, driver: bool = False, rounds: int = 9) -> host.Probe:
    """A host `factor` times as slow as the reference host, whose rounds wander by a tenth; `busy`: elapsed over CPU
    time; `driver`: with the real libraries."""
    lines: list[dict[str, object]] = [{"machine": ABOUT}]
    wander = [1 + 0.1 * (turn - rounds // 2) / rounds for turn in range(rounds)]
    rows = {name: ns * factor for name, ns in REFERENCE.probe_ns.items()}
    for name, watched in rows.items():
        ns = watched / host.WITHOUT_CUDA.get(name, 1.0) if driver else watched  # only stubs watch operators
        cpu = [ns * w + LAUNCH_NS * driver * (name in host.DRIVER_ROWS["LAUNCH"]) for w in wander]
        elapsed = [value * busy for value in cpu]
        lines.append({"name": name, "kind": KINDS.get(name, "cpu"), "ns": elapsed, "cpu_ns": cpu})
    for name, ns in DRIVER_NS.items():
        spent = [500.0 * factor + ns * driver] * rounds
        lines.append({"name": name, "kind": "driver", "ns": spent, "cpu_ns": spent})
    return host.read_probe("\n".join(map(json.dumps, lines)))


@pytest.mark.parametrize("factor", [0.8, 1.0, 2.0, 2.6])
def test_factor_from_the_cpu_alone(factor: float) -> None:
    found = host.compare(probe(factor), REFERENCE)
    assert found is not None and found.factor == pytest.approx(factor, rel=0.001)
    assert found.low < found.factor < found.high and found.high / found.low < 1.12
    assert found.by_kind == pytest.approx({"cpu": factor, "step": factor}, rel=0.001)
    mine = host.profile_of("mine", probe(factor), None)
    assert mine.measured and mine.factor == pytest.approx(factor, rel=0.001)
    assert mine.api_ns["OP_PYTHON"] == pytest.approx(factor * REFERENCE.api_ns["OP_PYTHON"], rel=0.001)
    assert mine.spread[0] <= GIVEN_SPREAD[0] < 1 < GIVEN_SPREAD[1] <= mine.spread[1]
    for_script = host.profile_of("mine", probe(factor), None, SCRIPT_SPREAD)
    assert mine.spread[0] < for_script.spread[0] <= 0.85 and 1.15 <= for_script.spread[1] < mine.spread[1]


def test_a_busy_machine_is_measured_by_its_quietest_rounds() -> None:
    quiet, busy = probe(2.0), probe(2.0, busy=2.5)
    assert not quiet.contended and busy.contended
    found = host.compare(busy, REFERENCE)
    assert found is not None and 1.85 < found.factor < 2.0  # elapsed time would say 5


def test_cuda_calls_are_what_the_real_libraries_add() -> None:
    mine = host.profile_of("mine", probe(2.0), probe(2.0, driver=True))
    found = mine.api_ns["LAUNCH"], mine.api_ns["EVENT_RECORD"], mine.api_ns["GEMM"]
    assert found == (LAUNCH_NS, 900, 7000)
    assert mine.api_ns["OP_TOP"] == round(2 * REFERENCE.api_ns["OP_TOP"] * host.COUNTED_NEXT_TO_CALLS)
    assert mine.api_ns["CUDNN_BUILD"] == round(2 * REFERENCE.api_ns["CUDNN_BUILD"] * host.CUDNN_IN_STEPS)


def test_a_machine_that_has_become_slower_meanwhile_is_described_between() -> None:
    usual = host.profile_of("mine", probe(2.0), probe(2.0, driver=True)).api_ns
    mine = host.profile_of("mine", probe(2.0), probe(2.6, driver=True))
    mean = math.sqrt(1.3)
    assert mine.factor == pytest.approx(2.0 * mean, rel=0.001)
    assert mine.api_ns["OP_PYTHON"] == pytest.approx(usual["OP_PYTHON"] * mean, rel=0.001)
    # Its calls took what `driver` adds on a CPU that was 1.3 times as slow.
    assert mine.api_ns["LAUNCH"] == pytest.approx(usual["LAUNCH"] / 1.3 * mean, rel=0.001)
    assert mine.api_ns["GEMM"] == pytest.approx(usual["GEMM"] / 1.3 * mean, rel=0.001)


def test_the_file_that_is_written_is_read(tmp_path: Path) -> None:
    mine = host.profile_of('with "quotes"', probe(1.5), None)
    path = tmp_path / "host.toml"
    path.write_text(to_toml(mine))
    assert load_host(str(path)) == mine


def test_a_file_of_an_earlier_version_knows_fewer_calls(tmp_path: Path) -> None:
    path, mine = tmp_path / "host.toml", host.profile_of("earlier", probe(1.5), None)
    lines = to_toml(mine).splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.startswith(("GEMM_SIZES", "CONV_PLAN"))))
    found = load_host(str(path))
    assert found.api_ns["GEMM_SIZES"] == pytest.approx(mine.factor * REFERENCE.api_ns["GEMM_SIZES"], rel=0.001)
    assert found.api_ns["LAUNCH"] == mine.api_ns["LAUNCH"]
    # Up to 0.2 the reference host had the name of today's default.
    path.write_text(path.read_text().replace('base = "emerald-rapids-fast"', 'base = "default"'))
    load_host.__globals__["_from_file"].cache_clear()
    assert load_host(str(path)) == found
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(path.read_text().replace("[api_ns]\n", "[api_ns]\nGEMM_SIZE = 5\n"))
    with pytest.raises(PhantoraError, match="GEMM_SIZE is not a known call"):
        load_host(str(wrong))


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def run_probes(rounds: int, keep: Path | None, gpu: bool) -> tuple[host.Probe, None]:
        asked.append((rounds, keep, gpu))
        return probe(2.0), None

    monkeypatch.setattr(probing, "run_probes", run_probes)
    rates = memory_probe.Rates(
        move=0.1,
        saturated=0.005,
        fault=0.2,
        fault_saturated=0.01,
        write=0.5,
        sums=0.25,
        replace=0.2,
        read=0.25,
        tensor=2e-4,
        disk=2.0,
    )
    monkeypatch.setattr(memory_probe, "measure_apart", lambda folder: rates)
    out = tmp_path / "mine.toml"
    done = CliRunner().invoke(command.profile, ["host", "--out", str(out), "--rounds", "5"], catch_exceptions=False)
    assert done.exit_code == 0 and asked == [(5, None, True)]
    assert "2.00 times as slow as emerald-rapids-fast" in done.output and "no GPU: CUDA calls are scaled" in done.output
    assert "A CPU, 3.10 GHz, 8 cores" in done.output and load_host(str(out)).factor == pytest.approx(2.0)
    assert load_host(str(out)).api_ns["HOST_MOVE_GIB"] == 100_000_000 and "--disk 537MB/s" in done.output
    with pytest.raises(PhantoraError, match=r"a host file ends in \.toml"):
        CliRunner().invoke(command.profile, ["host", "--out", "x.json"], catch_exceptions=False)
    assert "SOURCE" in CliRunner().invoke(command.profile, ["--help"]).output  # operators stay the default


def test_rates_of_memory_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_probe, "TENSOR", 4 * MIB)
    monkeypatch.setattr(memory_probe, "FILE", 4 * MIB)
    threads = torch.get_num_threads()
    try:
        rates = memory_probe.measure(tmp_path)
    finally:
        torch.set_num_threads(threads)
    assert rates.saturated >= 0 and min(rates.move, rates.write, rates.read, rates.tensor, rates.disk) > 0
    assert memory_probe.shared({1: 8.0, 2: 4.5, 4: 2.75}) == 1.0, "half a second more on two threads"


PROBE = """
import sys
from pathlib import Path
from phantora.profile.alternation import Turns
out, rounds, turns, stubbed = sys.argv[1:]
if stubbed == "0" and "{gpu}" != "0": print("no such thing", file=sys.stderr); sys.exit(int("{gpu}"))
if stubbed == "1" and "{stub}" != "0": sys.exit(int("{stub}"))
mine, seen = Turns(turns, int(stubbed)), []
for turn in range(3):
    mine.wait(); seen.append(turn); mine.done()
Path(out).write_text('{"machine": {}}' + chr(10) + f'{{"name": "x", "kind": "cpu", "ns": {seen}, "cpu_ns": {seen}}}')
"""


def test_probes_take_turns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "probe.py"
    monkeypatch.setattr(host_probe, "__file__", str(script))
    before = os.sched_getaffinity(0)
    script.write_text(PROBE.replace("{gpu}", "0").replace("{stub}", "0"))
    stubbed, real = probing.run_probes(3, tmp_path / "kept")
    assert real is not None and list(real.rows["x"].elapsed) == list(stubbed.rows["x"].elapsed) == [0, 1, 2]
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {"host_probe_gpu.jsonl", "host_probe_stubs.jsonl"}
    script.write_text(PROBE.replace("{gpu}", "5").replace("{stub}", "0"))
    with pytest.raises(PhantoraError, match=r"failed on this machine's GPU \(status 5\): no such thing"):
        probing.run_probes(3)
    script.write_text(PROBE.replace("{gpu}", "0").replace("{stub}", str(host_probe.NO_GPU)))  # stubs always have one
    with pytest.raises(PhantoraError, match=r"failed under the stub libraries"):
        probing.run_probes(3)
    script.write_text(PROBE.replace("{gpu}", str(host_probe.NO_GPU)).replace("{stub}", "0"))  # the other goes on alone
    assert probing.run_probes(3)[1] is None
    assert probing.run_probes(3, gpu=False)[1] is None
    assert os.sched_getaffinity(0) == before


def test_steps_on_other_hosts() -> None:
    times = (("0.6667", 80), ("1.5", 120), ("2", 200))
    steps = {factor: {"1": 999.0, "2": t - 1, "3": t + 1} for factor, t in times}
    reported = {"spread": [0.9, 2.0], "measured": False, "steps_ns": steps}
    found = other_hosts({"host_sensitivity": reported}, {2, 3}, 100.0)
    assert found is not None
    assert (found.faster, found.slower, found.high) == pytest.approx((80, 120, 200), rel=0.001)
    assert found.low == pytest.approx(94, rel=0.001)  # between the points at 0.667 and 1
    assert found.relative(100.0) == pytest.approx((0.06, 1.0), rel=0.001)
    assert other_hosts({"host_sensitivity": {"spread": [1, 1], "measured": True, "skipped": "long"}}, {1}, 1.0) is None
    assert other_hosts({}, {1}, 1.0) is None
