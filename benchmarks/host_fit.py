"""Fits the host profile to measured host times: python benchmarks/host_fit.py REAL.jsonl SIMULATED.jsonl [SCALE]

Both come from benchmarks/device/host_time.py, the first from a real machine, the second from `phantora trace` of the
same script, which also prints how often each cost was charged. Host time is linear in the costs, so this is a
least-squares fit of relative errors, bounded below by zero and drawn to the profile's present values. Training steps
count more than calls in tight loops, whose code is always in the caches. SCALE is what the host that the profile
describes takes, in parts of what the one measured takes: 0.88 for the profile that ships (data/hosts/default.toml).
How cold code is depends a little on the costs themselves: simulate again after a fit, and fit once more. Needs SciPy.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import orjson
from scipy.optimize import lsq_linear

from phantora.hardware.clusters import load_host
from phantora.wire.layout import Api

# By launch_overhead.cu and traces of whole steps: not fitted.
MEASURED_DIRECTLY = {"LAUNCH", "GET_DEVICE", "EVENT_RECORD", "STREAM_WAIT", "STREAM_SYNC", "OP_LIST_PYTHON"}
ONCE_NS = 1_000_000  # costs above are paid once a process, not in steps
WAITS = ("item", "to cpu", "synchronize", "topk", "empty_cache")  # their time is not the host's alone
STEPS = ("block", "bottleneck", "AdamW", "SGD", "clip")
PARALLEL = ("FSDP2", "tensor parallel", "checkpointed")
TIGHT = ("event record", "stream", "DTensor", "nn.", "custom")  # Python in tight loops
PRIOR = 0.15
# In most rows: the data decide.
LOOSE = {"PY_CODE", "PY_FRAME", "OP_PYTHON", "OP_TOP", "OP_NODE", "OP_GRAD", "BLOCK_FREE", "OP_COLD"}


def rows(path: str) -> dict[str, dict[str, object]]:
    lines = (line[line.index("{") :] for line in Path(path).read_text().splitlines() if "{" in line)
    return {row["name"]: row for row in map(orjson.loads, lines) if "us" in row}


def weight(name: str) -> float:
    if any(part in name for part in STEPS):
        return 12.0 if any(part in name for part in PARALLEL) else 6.0
    return 0.2 if any(part in name for part in TIGHT) else 1.0


def main() -> None:
    real, simulated = rows(sys.argv[1]), rows(sys.argv[2])
    names = [name for name in real if "charges" in simulated.get(name, {}) and name not in WAITS]
    apis = Api.names()
    profile = load_host("default").api_ns
    costs = np.array([profile[api] for api in apis], float)
    counts = np.zeros((len(names), len(apis)))
    for i, name in enumerate(names):
        for api, count in simulated[name]["charges"].items():  # type: ignore[attr-defined]
            counts[i, int(api)] = count
    counts[:, apis.index("PY_CODE")] /= 1_000_000
    counts[:, apis.index("OP_COLD")] /= 1000
    speed = float(sys.argv[3]) if len(sys.argv) > 3 else 1.0
    measured = np.array([real[name]["us"] for name in names], float) * 1e3 * speed
    candidates = (costs < ONCE_NS) & counts.any(axis=0)
    fitted = [j for j in np.flatnonzero(candidates) if apis[j] not in MEASURED_DIRECTLY]
    fixed = np.delete(counts, fitted, axis=1) @ np.delete(costs, fitted)
    weights = np.array([weight(name) for name in names]) / measured
    firm = np.array([0.05 if apis[j] in LOOSE else 1.0 for j in fitted])
    scale = PRIOR * firm / np.maximum(costs[fitted], 200)
    matrix = np.vstack([counts[:, fitted] * weights[:, None], np.diag(scale)])
    target = np.concatenate([(measured - fixed) * weights, scale * costs[fitted]])
    robust = np.ones(len(target))
    for _ in range(20):  # towards absolute rather than squared errors
        solution = lsq_linear(matrix * robust[:, None], target * robust, bounds=(0, np.inf)).x
        robust = 1 / np.sqrt(np.maximum(np.abs(matrix @ solution - target), 0.05) / 0.05)
    new = costs.copy()
    new[fitted] = solution
    for i, name in enumerate(names):
        before, after = counts[i] @ costs / measured[i], counts[i] @ new / measured[i]
        print(f"{name:44s} {measured[i] / 1e3:10.2f} us  {before:6.2f} -> {after:6.2f}")
    print()
    for j in fitted:
        print(f"{apis[j]} = {round(new[j])}  # was {round(costs[j])}; in {int((counts[:, j] > 0).sum())} rows")


if __name__ == "__main__":
    main()
