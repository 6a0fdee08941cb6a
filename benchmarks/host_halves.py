"""What is wrong with the host's costs, what is the machines' noise, and whether a fit helps runs that it did not see.

    python benchmarks/host_halves.py

Reads the host-bound workloads of benchmarks/device/host_runs.py on several machines and days, and what the simulator
charges for each (results/host_charges.jsonl). The logarithm of real over charged time is taken apart: a factor of each
session, a bias of each workload, and the rest, which no model of the workload can know. Then groups of costs are fitted
to half of the workloads (40 random halves) and judged on both. At the end: the same by the scripts' own CPU time.
"""

from __future__ import annotations

import json
import random
import statistics
from pathlib import Path

import numpy as np
import numpy.typing as npt

from phantora.hardware import load_host
from phantora.profile.script import OWN
from phantora.wire.layout import Api

RESULTS = Path(__file__).parent / "device" / "results"
SESSIONS = {
    "H200": ("host_runs_h200.jsonl", "iter_times"),
    "H100": ("host_runs_h100.jsonl", "iter_times"),
    "another H100": ("host_runs_h100_again.jsonl", "iter_times"),
    "a fourth H100": ("host_detail_h100_first.jsonl", "iter_times"),
    "the same, minutes later": ("host_detail_h100.jsonl", "iter_times"),
    "the same, between probes": ("host_detail_h100.jsonl", "probed_times"),
    "a fifth H100, in rounds": ("host_rounds_h100.jsonl", "iter_times"),
    "the same, again": ("host_rounds_again_h100.jsonl", "iter_times"),
    "a sixth H100, in rounds": ("host_rounds_third_h100.jsonl", "iter_times"),
}
WITHOUT_CUDA = "host_rounds_null_h100.jsonl"
"""The rounds under stubs that do nothing, on the sixth H100's machine a minute before those with CUDA."""
LIKE_IT = "emerald-rapids-2.1ghz"  # whose CUDA calls stand for that machine's
# Costs that are fitted by one factor each; all others stay.
GROUPS = {
    "operators": ("OP_TOP", "OP_VIEW", "OP_ALLOC", "BLOCK_FREE", "GET_DEVICE"), "cold code": ("OP_COLD",),
    "Python": ("PY_CODE", "PY_FRAME"), "autograd nodes": ("OP_NODE", "OP_BACKWARD"), "noted operators": ("OP_GRAD",),
    "Python operators": ("OP_PYTHON", "OP_BACKWARD_PYTHON"), "launches": ("LAUNCH",),
    "libraries": ("GEMM", "GEMM_LT", "GEMM_HEURISTIC", "CUDNN_EXECUTE", "CUDNN_BUILD"),
}  # fmt: skip
HALVES = 40
UNITS = {"PY_CODE": 1e-6, "OP_COLD": 1e-3}
Floats = npt.NDArray[np.float64]


def rows(name: str) -> dict[str, dict[str, object]]:
    lines = [line for line in (RESULTS / name).read_text().splitlines() if line.startswith("{")]
    return {row["run_id"]: row for row in map(json.loads, lines) if "run_id" in row}


def charged() -> tuple[list[str], Floats]:
    """Workloads, and ns of each group by workload; the last column holds the other costs."""
    names, costs = Api.names(), load_host("default").api_ns
    column = {name: at for at, members in enumerate(GROUPS.values()) for name in members}
    found = rows("host_charges.jsonl")
    table = np.zeros((len(found), len(GROUPS) + 1))
    for line, row in enumerate(found.values()):
        for api, count in row["charges"].items():  # type: ignore[attr-defined]
            name = names[int(api)]
            table[line, column.get(name, len(GROUPS))] += count * costs[name] * UNITS.get(name, 1.0)
    return list(found), table


def measured(workloads: list[str]) -> Floats:
    """Logarithm of the median step in ns, by session and workload; NaN where there was none."""
    table = np.full((len(SESSIONS), len(workloads)), np.nan)
    for line, (file, key) in enumerate(SESSIONS.values()):
        for name, row in rows(file).items():
            if name in workloads and key in row:
                table[line, workloads.index(name)] = np.log(statistics.median(row[key]) * 1e9)  # type: ignore[call-overload]
    return table


def apart(real: Floats, model: Floats, known: list[int]) -> tuple[Floats, Floats]:
    """The workloads' biases, and what is left; the sessions' factors follow from the workloads that are `known`."""
    rest = real - np.log(model)
    rest = rest - np.nanmean(rest[:, known], axis=1, keepdims=True)
    bias = np.nanmean(rest, axis=0)
    return bias, rest - bias


def fitted(real: Floats, costs: Floats, known: list[int], firm: float) -> Floats:
    """A factor of each group by damped least squares of the known workloads' biases; `firm` draws it to 1."""
    logs = np.zeros(costs.shape[1])
    for _ in range(60):
        scaled = costs * np.exp(logs)
        model = scaled.sum(axis=1)
        bias = apart(real, model, known)[0][known]
        slopes = scaled[known] / model[known, None]
        slopes = slopes - slopes.mean(axis=0)
        slopes[:, -1] = 0.0
        step = np.linalg.solve(slopes.T @ slopes + firm * np.eye(len(logs)), slopes.T @ bias - firm * logs)
        logs = np.clip(logs + 0.5 * step, -2.5, 2.5)
    return np.exp(logs)


def error(real: Floats, model: Floats, judged: list[int]) -> float:
    """Mean relative error of single runs; each session's factor from all of its runs."""
    bias, rest = apart(real, model, list(range(len(model))))
    return float(np.nanmean(np.abs(np.expm1(-(bias + rest)[:, judged]))))


def scripts_own(workloads: list[str]) -> Floats:
    """ns of each workload by its CPU time without CUDA, and CUDA's calls as counted on a host of this make."""
    names, costs = Api.names(), load_host(LIKE_IT).api_ns
    times, table = rows(WITHOUT_CUDA), np.full(len(workloads), np.nan)
    for at, row in enumerate(rows("host_charges.jsonl").values()):
        if workloads[at] in times:
            calls = {names[int(api)]: count for api, count in row["charges"].items()}  # type: ignore[attr-defined]
            cuda = sum(count * costs[name] for name, count in calls.items() if not name.startswith(OWN))
            table[at] = statistics.median(times[workloads[at]]["cpu_times"]) * 1e9 + cuda  # type: ignore[call-overload]
    return table


def compare_with_scripts_own(workloads: list[str], real: Floats, counted: Floats) -> None:
    """What `phantora profile host -- SCRIPT` makes of it. The CPU times are from the last session's machine."""
    own = scripts_own(workloads)
    print("\nby the script's own CPU time without CUDA, instead of by counts (a factor of each session known):")
    for name, steps in list(zip(SESSIONS, real, strict=True))[-3:]:
        both = ~np.isnan(own) & ~np.isnan(steps)
        errors = []
        for model in (own, counted):
            rest = np.log(model[both]) - steps[both]
            errors.append(float(np.mean(np.abs(np.expm1(rest - rest.mean())))))
        print(f"{name:24s} {errors[0]:.1%} in the mean; by counts {errors[1]:.1%}")
    rest = np.expm1((np.log(own) - real[-1])[~np.isnan(own) & ~np.isnan(real[-1])])
    print(f"the last one with no factor at all: {np.mean(np.abs(rest)):.1%} in the mean, {np.mean(rest):+.1%} signed")


def main() -> None:
    workloads, costs = charged()
    real, everyone = measured(workloads), list(range(len(workloads)))
    bias, rest = apart(real, costs.sum(axis=1), everyone)
    for at in np.argsort(bias):
        sessions = " ".join(f"{-x:+6.1%}" for x in rest[:, at])
        print(f"{workloads[at][5:]:18s} charged {np.exp(-bias[at]) - 1:+6.1%}   by session {sessions}")
    sizes = np.mean(np.abs(bias)), np.nanmean(np.abs(rest))
    print(f"\nmean size of a workload's bias {sizes[0]:.1%}, of what sessions add {sizes[1]:.1%}")
    print(f"mean error of a run, each session's factor known: {error(real, costs.sum(axis=1), everyone):.1%}")
    compare_with_scripts_own(workloads, real, costs.sum(axis=1))
    print()
    for firm in (0.01, 0.03, 0.1, 0.3):
        chance, results = random.Random(1), []
        for _ in range(HALVES):
            seen = chance.sample(everyone, len(everyone) // 2)
            hidden = [at for at in everyone if at not in seen]
            model = (costs * fitted(real, costs, seen, firm)).sum(axis=1)
            now = error(real, costs.sum(axis=1), hidden)
            results.append((error(real, model, seen), error(real, model, hidden), now))
        own, others, now = np.mean(results, axis=0)
        print(f"fitted to half, firm {firm:4}: its own half {own:.1%}, the hidden half {others:.1%}; as is {now:.1%}")


if __name__ == "__main__":
    main()
