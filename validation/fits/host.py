"""Fits the reference host's costs to measured host times: python -m validation.fits.host [--show]

Two kinds of measurements, both linear in the costs:

- calls and steps of validation/probes/host_time.py on the machine that the reference host describes (its times
  count `SCALE`), and what the same script is charged for (`host_time_charges.jsonl`,
  by `phantora trace --cluster 1x4xH200` of it);
- the CPU time of 25 workloads without CUDA calls (four sessions of 2026-11-25 in `host_pairs.parquet`), each session
  divided by its factor of the probe, and what a step of each is charged for at `--host emerald-rapids-fast:2`
  (`host_workload_charges.jsonl`: the mean of four steps after four, counted as host_detail.py does).

The fit minimises logarithms of ratios over logarithms of costs, drawn to `PRIOR`: about what operators took in torch's
profiler under stubs that do nothing. Prints costs, what each workload comes out at when left out, and the steps of
host_time.py. How cold code is depends a little on the costs themselves: simulate again after a fit. Needs SciPy.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from phantora.hardware.hosts import REFERENCE_HOST, load_host
from phantora.profile import host as measuring
from phantora.profile import script
from phantora.wire.layout import Api
from validation.compare.host_paired import read
from validation.data import rows

HERE = Path(__file__).parent
SESSIONS = "abcd"
SCALE = 0.88
"""Time of the host that the profile describes over that of the one measured by host_time.py."""
PRIOR = {
    "OP_COLD": 6000,
    "OP_GRAD": 1500,
    "OP_NODE": 2000,
    "OP_TOP": 1500,
    "OP_NESTED": 700,
    "OP_VIEW": 400,
    "OP_VIEW_NESTED": 200,
    "OP_ALLOC": 500,
    "OP_ALLOC_NESTED": 300,
    "OP_BACKWARD": 1200,
    "OP_ACCUMULATE": 2500,
    "BLOCK_FREE": 400,
    "OPTIMIZER_PARAM": 1000,
    "OP_LIST": 79,
    "OP_LIST_OUT": 140,
    "OP_LIST_PYTHON": 1500,
    "PY_FRAME": 300,
    "PY_CODE": 40000,
    "PY_LOOP": 1000,
    "OP_PYTHON": 9000,
    "OP_BACKWARD_PYTHON": 8000,
    "BACKWARD_CALL": 15000,
    "ANNOTATION": 5000,
    "GET_DEVICE": 30,
    "CUDNN_EXECUTE": 9809,
    "CUDNN_BUILD": 817,
    "GEMM_HEURISTIC": 2700,
}
FIRM = {
    "OP_ACCUMULATE": 4.0,
    "GET_DEVICE": 3.0,
    "OP_LIST": 2.0,
    "OP_LIST_OUT": 3.0,
    "OP_LIST_PYTHON": 2.0,
    "BACKWARD_CALL": 2.0,
    "ANNOTATION": 2.0,
    "CUDNN_EXECUTE": 1.5,
    "CUDNN_BUILD": 1.5,
    "GEMM_HEURISTIC": 1.5,
}
"""Costs that few measurements decide, or that could take the place of others: how firmly they are drawn."""
DRAWN = 0.05
CALLS = 0.8  # weight of host_time.py's rows next to a workload
ONCE_NS = 1_000_000  # costs above are paid once a process, not in steps
WAITS = ("item", "to cpu", "synchronize", "topk", "empty_cache")  # their time is not the host's alone
STEPS = ("block", "bottleneck", "AdamW", "SGD", "clip")
WHOLE = ("FSDP2", "checkpointed", "foreach", "forward")
TIGHT = ("event record", "stream", "DTensor", "nn.", "custom")  # Python in tight loops, whose code stays in the caches
NAMES = Api.names()
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    """Times in ns, what each was charged for, and weights."""

    names: list[str]
    ns: Floats
    counts: Floats
    """A row for each time, a column for each cost."""
    weights: Floats


def jsonl(name: str) -> list[dict[str, object]]:
    return rows(HERE / name)


def counts_of(rows: list[dict[str, object]]) -> Floats:
    counts = np.zeros((len(rows), len(NAMES)))
    for i, row in enumerate(rows):
        for api, count in row["charges"].items():  # type: ignore[attr-defined]
            counts[i, int(api)] = count * script.UNITS.get(NAMES[int(api)], 1.0)
    return counts


def weight(name: str) -> float:
    if "tensor parallel" in name:
        return 8.0  # training steps on that host that wait for it are of this kind
    if any(part in name for part in STEPS):
        return 2.0 if any(part in name for part in WHOLE) else 0.7
    return 0.1 if any(part in name for part in TIGHT) else 0.3


def calls() -> Measured:
    real = {str(row["name"]): row for row in rows("2026-11-21-h200x4/host_time.jsonl") if "us" in row}
    charged = {str(row["name"]): row for row in jsonl("host_time_charges.jsonl") if "charges" in row}
    names = [name for name in real if name in charged and name not in WAITS]
    ns = np.array([float(real[name]["us"]) * 1e3 * SCALE for name in names])
    weights = CALLS * np.array([weight(name) for name in names])
    return Measured(names, ns, counts_of([charged[name] for name in names]), weights)


def workloads() -> Measured:
    """Without CUDA's calls, so what they are charged for is left out."""
    charged = {str(row["run_id"]).removeprefix("host_"): row for row in jsonl("host_workload_charges.jsonl")}
    sessions = [read("2026-11-25-h100", name) for name in SESSIONS]
    factors = [measuring.profile_of(s.name, s.stubbed, s.real, script.SCRIPT_SPREAD).factor for s in sessions]
    names = [name for name in sessions[0].own if name in charged]
    each = [[np.log(s.own[name] / factor) for name in names] for s, factor in zip(sessions, factors, strict=True)]
    ns = np.exp(np.mean(each, axis=0))
    counts = counts_of([charged[name] for name in names])
    counts[:, [not name.startswith(measuring.OWN) for name in NAMES]] = 0
    return Measured(names, ns, counts, np.ones(len(names)))


@dataclass(frozen=True)
class Fit:
    costs: Floats
    scale: float
    """Scale of workloads against calls."""


def fit(parts: tuple[Measured, Measured], kept: npt.NDArray[np.bool_]) -> Fit:
    """`kept`: of the workloads."""
    own, called = parts
    at = np.array([NAMES.index(name) for name in PRIOR])
    prior, firm = np.array(list(PRIOR.values()), float), np.array([FIRM.get(name, 1.0) for name in PRIOR])
    present = np.array([load_host(REFERENCE_HOST).api_ns[name] for name in NAMES], float)
    present[present >= ONCE_NS] = 0

    def costs(x: Floats) -> Floats:
        found: Floats = present.copy()
        found[at] = prior * np.exp(x[:-1])
        return found

    def residuals(x: Floats) -> Floats:
        c = costs(x)
        workload = (np.log(own.counts @ c / own.ns) - x[-1])[kept]
        call = np.log(called.counts @ c / called.ns)
        call /= np.sqrt(np.maximum(np.abs(call), 0.05) / 0.05)  # towards absolute rather than squared errors
        return np.concatenate([workload, call * called.weights, DRAWN * firm * x[:-1], [2 * x[-1]]])

    solution = least_squares(residuals, np.zeros(len(at) + 1)).x
    return Fit(costs(solution), float(np.exp(solution[-1])))


def main() -> None:
    own, called = parts = workloads(), calls()
    present = np.array([load_host(REFERENCE_HOST).api_ns[name] for name in NAMES], float)
    present[present >= ONCE_NS] = 0
    found = fit(parts, np.ones(len(own.names), bool))
    errors = []
    for i, name in enumerate(own.names):
        without = fit(parts, np.arange(len(own.names)) != i)
        before, after = own.counts[i] @ present / own.ns[i], own.counts[i] @ found.costs / own.ns[i] / found.scale
        left_out = own.counts[i] @ without.costs / own.ns[i] / without.scale
        errors.append(abs(np.log(left_out)))
        print(f"{name:44s} {own.ns[i] / 1e6:8.2f} ms  {before:6.2f} -> {after:6.2f}, left out {left_out:6.2f}")
    print(f"left out, {np.mean(errors):.1%} on average; workloads against calls {found.scale:.3f}\n")
    for i, name in enumerate(called.names):
        if "--show" in sys.argv or any(part in name for part in STEPS):
            before, after = called.counts[i] @ present / called.ns[i], called.counts[i] @ found.costs / called.ns[i]
            print(f"{name:44s} {called.ns[i] / 1e3:8.1f} us  {before:6.2f} -> {after:6.2f}")
    print()
    for name in PRIOR:
        print(f"{name} = {round(found.costs[NAMES.index(name)])}  # was {round(present[NAMES.index(name)])}")


if __name__ == "__main__":
    main()
