"""Host-bound steps next to real ones, with the host measured by `phantora profile host` at the same time.

    python -m validation.compare.host_paired [SESSION ...] [--gpu H100] [--only WORKLOAD ...] [--out FILE]
    python -m validation.compare.host_paired [SESSION ...] --estimate

SESSION is one of validation/probes/host_pairs.py, as DATE-MACHINE/LETTER: workloads and rows of the probe on a real
machine, with CUDA's
calls and without, in turns. Its rows make the host file that `phantora profile host -- SCRIPT`
would have written there for each workload: CUDA's calls as measured, the script's own work by its CPU time. The
workload is then simulated with it, and for comparison with the same host by counts (without a script). Steps are means
of the middle eight tenths of the rounds. `--estimate` simulates nothing: own work and
CUDA's calls are added up, for the workloads whose counts are in host_workload_charges.jsonl. Next to all rounds
together it compares round by round ("in turn"): a machine's speed changes between them. "By chance": the mean
error that both would have if the model had none, since the rounds differ (rounds drawn again, 400 times).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from phantora.hardware import HostProfile
from phantora.hardware.hosts import to_toml
from phantora.profile import host as measuring
from phantora.profile import script
from phantora.run_process import PHANTORA
from phantora.wire.layout import Api
from validation.data import MEASUREMENTS, rows

ROOT = Path(__file__).resolve().parents[2]
CHARGES = ROOT / "validation/fits/host_workload_charges.jsonl"

DRAWS = 400
REPLACES_LINEAR = "deepspeed_three"
"""DeepSpeed's third stage replaces torch's `linear` for its process: in such a session, for all workloads."""
TRACE = (*PHANTORA, "trace", "-q", "--no-summary", "--no-recording")


@dataclass(frozen=True)
class Session:
    name: str
    stubbed: measuring.Probe
    real: measuring.Probe
    steps: dict[str, float]
    """ms with CUDA's calls, by workload: the mean of the middle eight tenths."""
    own: dict[str, float]
    """ns of CPU time without."""
    rounds: dict[str, tuple[Sequence[float], Sequence[float]]]
    """ns with, and CPU time without, by round."""


def in_ns(seconds: Sequence[float]) -> list[float]:
    return [value * 1e9 for value in seconds]


def read(folder: str, session: str) -> Session:
    """A session of ``measurements/FOLDER/host_pairs.parquet``."""
    about, *found = (row for row in rows(f"{folder}/host_pairs.parquet") if row["session"] == session)
    machine = about["machine"]
    probe = [row for row in found if "kind" in row]
    stubbed = {row["name"]: measuring.Row(row["kind"], row["null_ns"], row["null_cpu_ns"]) for row in probe}
    real = {row["name"]: measuring.Row(row["kind"], row["ns"], row["ns"]) for row in probe}
    runs = {row["run_id"].removeprefix("host_"): row for row in found if "run_id" in row}
    return Session(
        f"{folder}/{session}",
        measuring.Probe(machine, stubbed),
        measuring.Probe(machine, real),
        {name: measuring.middle_mean(row["iter_times"]) * 1e3 for name, row in runs.items()},
        {name: measuring.middle_mean(row["null_cpu_times"]) * 1e9 for name, row in runs.items()},
        {name: (in_ns(row["iter_times"]), in_ns(row["null_cpu_times"])) for name, row in runs.items()},
    )


def simulate(session: Session, workload: str, gpu: str, host: HostProfile) -> tuple[float, float]:
    """ms of a step, and ns that Python and PyTorch are charged for it."""
    module, ranks = "validation.probes.host_detail", 1
    if "x2/" in session.name:
        module, ranks = "validation.workloads.two_ranks", 2
    elif REPLACES_LINEAR in session.steps and workload != REPLACES_LINEAR:
        workload = f"{REPLACES_LINEAR}+{workload}"
    with tempfile.TemporaryDirectory() as folder:
        out, described = Path(folder) / "steps.jsonl", Path(folder) / "host.toml"
        described.write_text(to_toml(host))
        options = ["--host", str(described), "-o", str(Path(folder) / "run.arrow"), "--cluster", f"1x{ranks}x{gpu}"]
        ran = subprocess.run(
            [*TRACE, *options, "-m", module, str(out), workload],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            cwd=ROOT,
        )
        if ran.returncode:
            raise SystemExit(f"{workload}: {ran.stderr[-500:]}")
        row = json.loads(out.read_text())
    charges = [row["charges"].get(str(number), 0) for number in range(len(Api.names()))]
    own = script.own_ns(script.Mark(0, [0] * len(charges)), script.Mark(0, charges), host)
    return row["median_iter_s"] * 1e3, own


def compare(session: Session, gpu: str, only: Sequence[str]) -> list[dict[str, object]]:
    host = measuring.profile_of(session.name, session.stubbed, session.real, script.SCRIPT_SPREAD)
    between = measuring.between(session.stubbed, session.real)
    print(f"\n{session.name}: {host.cpu}, {host.factor:.2f} times the reference host", flush=True)
    found = []
    for name, real in session.steps.items():
        if only and name not in only:
            continue
        by_counts, counted = simulate(session, name, gpu, host)
        own = script.Script(session.own[name], counted / between)
        by_script, _ = simulate(session, name, gpu, script.calibrated(host, own))
        print(
            f"{name:16s} real {real:7.2f} ms   by script {by_script:7.2f} ({by_script / real - 1:+6.1%})   "
            f"by counts {by_counts:7.2f} ({by_counts / real - 1:+6.1%})",
            flush=True,
        )
        found.append(
            {
                "session": session.name,
                "workload": name,
                "real_ms": real,
                "by_script_ms": by_script,
                "by_counts_ms": by_counts,
                "ratio": own.ratio,
            }
        )
    for kind in ("by_script_ms", "by_counts_ms"):
        errors = [row[kind] / row["real_ms"] - 1 for row in found]  # type: ignore[operator]
        mean, signed, most = statistics.mean(map(abs, errors)), statistics.mean(errors), max(errors, key=abs)
        print(f"{kind}: {len(errors)} runs, {mean:.1%} on average, {signed:+.1%} signed, {most:+.1%} at most")
    return found


def estimate(session: Session, charges: dict[str, dict[str, float]]) -> None:
    """`charges`: how often each cost is charged in a step, by workload."""
    host = measuring.profile_of(session.name, session.stubbed, session.real, script.SCRIPT_SPREAD)
    between = measuring.between(session.stubbed, session.real)
    errors: dict[str, list[float]] = {"by script": [], "in turn": [], "by counts": []}
    between *= script.NEXT_TO_CALLS
    cuda: dict[str, float] = {}
    for name, counts in charges.items():
        costs = {api: count * host.api_ns[api] for api, count in counts.items()}
        own = sum(ns for api, ns in costs.items() if api.startswith(measuring.OWN))
        calls = cuda[name] = sum(costs.values()) - own
        real = session.steps[name] * 1e6
        errors["by script"].append((session.own[name] * between + calls) / real - 1)
        each = [(ours * between + calls) / theirs for theirs, ours in zip(*session.rounds[name], strict=True)]
        errors["in turn"].append(measuring.middle_mean(each) - 1)
        errors["by counts"].append((own + calls) / real - 1)
    parts = [
        f"{kind} {statistics.mean(map(abs, found)):.1%} ({statistics.mean(found):+.1%}; {max(found, key=abs):+.1%})"
        for kind, found in errors.items()
    ]
    chance = [f"{by_chance(session, cuda, between, in_turn):.1%}" for in_turn in (False, True)]
    print(f"{session.name}: {len(charges)} workloads; {'; '.join(parts)}; by chance {chance[0]}, in turn {chance[1]}")


def middle(values: npt.NDArray[np.float64], drawn: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """:func:`measuring.middle_mean` of each row of places."""
    return np.array([measuring.middle_mean(row) for row in values[drawn].tolist()])


def by_chance(session: Session, calls: Mapping[str, float], between: float, in_turn: bool) -> float:
    """Mean error over rounds that are drawn again, as if those of the session were the truth. `calls`: ns of CUDA's
    calls, by workload."""
    drawn = np.random.default_rng(0)
    errors = []
    for name, ns in calls.items():
        real, own = (np.asarray(times) for times in session.rounds[name])
        simulated = own * between + ns
        first, second = drawn.integers(0, len(real), (2, DRAWS, len(real)))
        apart = middle(simulated, second) / middle(real, first)
        ratios = middle(simulated / real, first) if in_turn else apart
        errors.append(np.abs(ratios / np.median(ratios) - 1).mean())
    return float(np.mean(errors))


def counted() -> dict[str, dict[str, float]]:
    names = Api.names()
    return {
        row["run_id"].removeprefix("host_"): {
            names[int(api)]: count * script.UNITS.get(names[int(api)], 1.0) for api, count in row["charges"].items()
        }
        for row in rows(CHARGES)
    }


def every_session() -> list[str]:
    """Sessions of all dates and machines, as ``DATE-MACHINE/SESSION``."""
    found = []
    for path in sorted(MEASUREMENTS.glob("*/host_pairs.parquet")):
        found += [f"{path.parent.name}/{name}" for name in dict.fromkeys(row["session"] for row in rows(path))]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sessions", nargs="*", help="DATE-MACHINE/SESSION", default=every_session())
    parser.add_argument("--gpu", help="instead of that in a session's name", default="")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--estimate", action="store_true")
    args = parser.parse_args()
    if args.estimate:
        for name in args.sessions:
            estimate(read(*name.split("/")), counted())
        return
    found = []
    for name in args.sessions:
        folder, session = name.split("/")
        gpu = args.gpu or ("H200" if "h200" in folder else "H100")
        found += compare(read(folder, session), gpu, args.only)
    if args.out:
        args.out.write_text("".join(json.dumps(row) + "\n" for row in found))


if __name__ == "__main__":
    main()
