"""What `phantora profile host --for` transfers from this machine, beside steps on real hosts.

    python benchmarks/host_scripts.py [OUT.jsonl]

Runs the workloads of benchmarks/device/host_runs.py that train, each once without CUDA and once simulated, on this
machine, which needs no GPU: ten minutes on two cores. What the ratio of CPU time to counts says of each is compared
with the rounds on real hosts (results/host_rounds*_h100.jsonl): how far steps are off by counts, and with the ratio; a
factor of each session is known.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from host_halves import OWN, SESSIONS, charged, measured, rows

from phantora.errors import PhantoraError
from phantora.hardware import load_host
from phantora.profile import script
from phantora.wire.layout import Api

RUNS = Path(__file__).parent / "device" / "host_runs.py"
ROUNDS = 3  # the last sessions of host_halves.py
LIKE_THEM = "emerald-rapids-2.1ghz"


def main() -> None:
    workloads, _ = charged()
    names, slow, fast = Api.names(), load_host(LIKE_THEM), load_host("default")
    charges = rows("host_charges.jsonl")
    found: dict[str, float] = {}
    for name in workloads:
        try:
            command = [str(RUNS), "--which", name.removeprefix("host_"), "--iters", "6"]
            found[name] = script.measure(command, "1x1xH100", fast).ratio
        except PhantoraError as error:
            print(error, file=sys.stderr)
            continue
        print(f"{name} {found[name]:.2f}", flush=True)
    own, cuda = {}, {}
    for name in found:
        calls = {names[int(api)]: count for api, count in charges[name]["charges"].items()}  # type: ignore[attr-defined]
        own[name] = slow.factor * sum(
            count * fast.api_ns[api] * script.UNITS.get(api, 1.0) for api, count in calls.items() if api.startswith(OWN)
        )
        cuda[name] = sum(count * slow.api_ns[api] for api, count in calls.items() if not api.startswith(OWN))
    at = [workloads.index(name) for name in found]
    usual = np.exp(np.mean(np.log(list(found.values()))))  # this machine's factor
    models = {
        "by counts": np.array([own[name] + cuda[name] for name in found]),
        "by CPU time here": np.array([own[name] * found[name] / usual + cuda[name] for name in found]),
    }
    out = []
    for session, steps in list(zip(SESSIONS, measured(workloads), strict=True))[-ROUNDS:]:
        for kind, model in models.items():
            rest = np.log(model) - steps[at]
            errors = np.abs(np.expm1(rest - np.nanmean(rest)))
            mean, most = np.nanmean(errors), np.nanmax(errors)
            print(f"{session:24s} {kind:18s} {mean:.1%} in the mean, {most:.1%} at most, {len(at)} workloads")
            out.append({"session": session, "model": kind, "mean": float(np.nanmean(errors)), "ratios": found})
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text("".join(json.dumps(row) + "\n" for row in out))


if __name__ == "__main__":
    main()
