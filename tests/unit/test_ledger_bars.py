"""Error bars read again by the benchmarks: with other constants, and predictions at a measured host."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from math import hypot, sqrt
from pathlib import Path

import pytest

from phantora.trace.analysis.uncertainty import COMMON, TOGETHER, Prices
from tests.support.fakelog import FakeRun, Kind
from validation.compare import bar_halves, bar_parts, host_asked
from validation.compare import bars as ledger_bars

MS = 1_000_000
BY_HOST = {0.5: 90.0 * MS, 1.5: 130.0 * MS}
PARTS = bar_parts.Parts(100.0 * MS, 4, 0.3, 0.4, Prices((0.06, 0.07), (0.02, 0.03)), 0.0, BY_HOST, (0.9, 1.2))


def test_a_bar_is_made_again_as_it_was_printed(tmp_path: Path) -> None:
    made = FakeRun()
    for step in range(3):
        for place, op in enumerate(("aten::mm", "aten::bmm")):
            begin = (2 * step + place) * MS
            price = made.price("gemm", "interpolated", error=0.2 + place)
            sig = made.signature(op, "[8, 8]")
            made.add(Kind.KERNEL, 0, begin, begin + MS, op, launch=begin, price=price, sig=sig)
        made.add(Kind.ANNOTATION, 0, 2 * step * MS, 2 * (step + 1) * MS - 1, "Optimizer.step#AdamW.step")
    slower = {str(step): 2.4 * MS for step in (1, 2, 3)}
    made.trailer["host_sensitivity"] = {"steps_ns": {"1.5": slower}, "spread": [0.8, 1.3], "measured": True}
    parts = bar_parts.parts_of(made.write(tmp_path / "run.arrow"))
    assert parts.error_above > parts.error > COMMON
    assert parts.bar() == pytest.approx((parts.error, parts.error_above))


def test_constants_of_a_bar_can_be_exchanged() -> None:
    below, above = PARTS.bar(common=0.05, together=0.25, spread=(0.8, 1.3))
    assert below == pytest.approx(sqrt(0.05**2 + 0.25 * 0.06**2 + 0.75 * 0.02**2 + 0.04**2))
    assert above == pytest.approx(sqrt(0.05**2 + 0.25 * 0.07**2 + 0.75 * 0.03**2 + 0.18**2))
    assert PARTS.bar() == PARTS.bar(COMMON, TOGETHER, PARTS.spread)


def test_a_bar_without_other_hosts_stays_as_printed() -> None:
    unknown = bar_parts.Parts(100.0 * MS, 4, 0.3, 0.4, PARTS.prices, 0.0, {}, (1.0, 1.0))
    assert unknown.bar(common=0.5) == (0.3, 0.4)


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    early = {"step_ns": 5.0, "error": 0.1, "error_above": 0.2, "steps": 3}
    rows = [
        {"run": "a on H100", "host": "2.1", "parts": asdict(PARTS)},
        {"run": "a on H100", "host": "emerald-rapids-fast", "headline": early},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = ledger_bars.read(path)
    assert found["a on H100", "2.1"] == PARTS
    assert found["a on H100", "emerald-rapids-fast"].bar() == (0.1, 0.2)


def run_of(host: object, **predicted: object) -> ledger_bars.Run:
    entry = {"real": "2026-11-23-h100/varied"} | ({"measured": host} if host else {})
    return ledger_bars.Run(entry, {"run_id": "a", "median_iter_s": 0.15}, predicted)


PREDICTED = {
    "median_iter_s": 0.1,
    "by_host": {"0.5": 0.08, "1.0": 0.1, "2.0": 0.2, "3.0": 0.3},
    "error_below": hypot(0.05, 1 - 0.096 / 0.1),
    "error_above": 1.6,
}


def test_a_prediction_is_read_at_the_measured_host() -> None:
    run = run_of(2.0, **PREDICTED)
    (bar,) = ledger_bars.on_measured(run, {})
    assert bar.source == "as predicted" and bar.step == pytest.approx(0.2)
    assert bar.below == pytest.approx(hypot(0.05, 0.3)) and bar.above == pytest.approx(hypot(0.05, 0.5))
    assert not bar.covers(0.13) and bar.covers(0.15)


def test_what_counts_for_a_run() -> None:
    simulated = {("a on H100", "emerald-rapids-fast:2.0"): PARTS}
    run = run_of(2.0, **PREDICTED)
    counted = ledger_bars.on_measured(run, simulated)[0].parts
    assert counted == replace(PARTS, spread=(0.7, 1.5))  # of a factor
    assert ledger_bars.on_default(run, simulated)[0].source == "as predicted"
    unmeasured = run_of(None, **PREDICTED)
    assert unmeasured.host == "emerald-rapids-fast"
    assert ledger_bars.on_measured(unmeasured, {})[0].above == 1.6


def test_measured_hosts_of_the_ledger_exist() -> None:
    from phantora.hardware import load_host

    hosts = {run.host for run in ledger_bars.ledger()}
    assert len(hosts) > 5
    for host in hosts:
        assert load_host(host).factor > 0


def test_runs_of_the_readme_are_in_the_ledger() -> None:
    ours = [run for run in ledger_bars.ledger() if run.entry is ledger_bars.README]
    assert len(ours) == 18 and {run.gpu for run in ours} == {"H200"}


def test_constants_are_judged_on_runs_that_they_were_not_chosen_on() -> None:
    steps = [(0.1 * (1 + 0.001 * place), PARTS) for place in range(40)]  # up to 3.9 % slower
    tried = [(width / 1000,) for width in range(101)]
    found = bar_halves.judge(steps, tried, lambda parts, constants: (constants[0], constants[0]))
    assert 0.8 < found.inside < 1.0
    assert 0.03 < found.chosen[0] < 0.04
    assert found.width == pytest.approx(2 * found.chosen[0])


def test_a_step_waits_for_its_host_if_a_slower_one_makes_it_longer() -> None:
    assert bar_halves.waits(PARTS)
    busy = bar_parts.Parts(100.0 * MS, 4, 0.1, 0.1, PARTS.prices, 0.0, {1.5: 101.0 * MS}, (0.9, 1.1))
    assert not bar_halves.waits(busy)


def test_which_host_a_real_step_asks_for() -> None:
    by_host = {"0.5": 0.05, "1.0": 0.1, "2.0": 0.2, "3.0": 0.3}  # it waits for nothing else
    assert host_asked.asked(by_host, 2.0, 0.25) == pytest.approx(1.25, rel=0.002)
    assert host_asked.asked(by_host, 2.0, 0.4) == pytest.approx(2.0, rel=0.002)  # beyond the last one
    assert host_asked.asked(dict.fromkeys(by_host, 0.1), 2.0, 0.25) is None
    ratios = [1 + 0.01 * place for place in range(-20, 41)]
    low, high, inside = host_asked.judge_spread(ratios)
    assert 0.8 < low < 0.87 and 1.33 < high < 1.4 and 0.8 < inside < 0.95
    assert host_asked.within(ratios, (0.895, 1.105)) == pytest.approx(21 / 61)
