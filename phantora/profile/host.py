"""Speed of this machine's host: the probe's rows, the factor to other hosts, a host file."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from phantora.hardware import REFERENCE_HOST, HostProfile, load_host
from phantora.hardware.hosts import GIVEN_SPREAD

T = TypeVar("T")

CONTENDED = 1.15  # elapsed over CPU time in one thread: others take the processor away
# Rows of the probe whose time on the GPU's machine less that under the stubs is a CUDA call's; of several the median.
# Launches are those of operators, whose kernels have more arguments than `torch.cuda._sleep`'s (row "launch").
DRIVER_ROWS = {
    "LAUNCH": ("add", "add_", "mul scalar", "softmax", "cat"),
    "EVENT_RECORD": ("event record",),
    "EVENT_QUERY": ("event query",),
    "STREAM_WAIT": ("stream wait_event",),
    "MEMSET": ("zero_",),
    "MEMCPY_ASYNC": ("h2d pinned",),
    "GEMM": ("mm",),
}
WITHOUT_CUDA = {
    "python": 1.0,
    "nn.Identity": 1.0,
    "view": 1.348,
    "slice": 1.23,
    "split": 1.471,
    "empty": 1.179,
    "20x view": 1.346,
}
"""Rows without CUDA's calls, and how many times as long they take under stubs, which watch operators: CPU times with
watching and without, in turns, 15 rounds (the second was a build of the
tracer that gave its observers back under ``--null``, on two cores of an AMD EPYC)."""
COUNTED_NEXT_TO_CALLS = 1.03
"""Factor on the time of Python and PyTorch between CUDA's calls, which push them out of the caches;
`script.BESIDE_CALLS` is the factor without these calls. `CUDNN_IN_STEPS`: cuDNN's calls in a step, relative to those in
a loop. All from 75 steps on three machines (sessions of 2026-11-26 in validation/measurements, host_pairs.parquet)."""
CUDNN_IN_STEPS = 1.14
CUDNN_CALLS = ("CUDNN_EXECUTE", "CUDNN_BUILD", "CUDNN_CONVERT")
OWN = ("OP_", "PY_", "ANNOTATION", "BACKWARD_CALL", "OPTIMIZER_PARAM", "BLOCK_FREE", "GET_DEVICE", "OTHER")
"""Prefixes of the costs of the script itself: Python's and PyTorch's. The others are CUDA's libraries'."""
ONE_THREAD = ("python", "nn.Identity", "view", "add")


def middle_mean(values: Sequence[float]) -> float:
    """Mean without the least and the largest tenth. Cores of shared machines change between a slow and a fast state, so
    that a median lies in one of the two: over 100 steps on four machines, measured 16 to 44 times with CUDA's calls and
    without, means are known to 3 to 5 %, medians to 4 to 8 % (validation/holdout.md)."""
    return statistics.fmean(middle_tenths(sorted(values)))


def middle_tenths(ordered: Sequence[T]) -> Sequence[T]:
    """Without the first and the last tenth."""
    cut = len(ordered) // 10
    return ordered[cut : len(ordered) - cut]


@dataclass(frozen=True)
class Row:
    """One row of the probe."""

    kind: str
    elapsed: Sequence[float]
    """ns per call, by round."""
    cpu: Sequence[float]


@dataclass(frozen=True)
class Probe:
    """Results of host_probe.py."""

    machine: Mapping[str, Any]
    rows: Mapping[str, Row]

    @property
    def contended(self) -> bool:
        """Others ran on its processors at the same time."""
        shares = [
            statistics.median(self.rows[name].elapsed) / statistics.median(self.rows[name].cpu)
            for name in ONE_THREAD
            if name in self.rows
        ]
        return bool(shares) and statistics.median(shares) > CONTENDED

    def typical(self) -> dict[str, float]:
        """ns per call, see :func:`middle_mean`; where others disturb, the CPU time of the quietest round."""
        if self.contended:
            return {name: min(row.cpu) for name, row in self.rows.items()}
        return {name: middle_mean(row.elapsed) for name, row in self.rows.items()}

    def times(self, name: str) -> Sequence[float]:
        """ns per call of a row, round by round: of CPU time where others disturb."""
        return self.rows[name].cpu if self.contended else self.rows[name].elapsed

    def rounds(self) -> list[dict[str, float]]:
        """ns per call, round by round."""
        times = {name: self.times(name) for name in self.rows}
        return [dict(zip(times, turn, strict=True)) for turn in zip(*times.values(), strict=True)]


@dataclass(frozen=True)
class Comparison:
    """A probe next to a host's."""

    host: str
    factor: float
    """Time here over time there."""
    by_kind: Mapping[str, float]
    """Factors of calls (``cpu``) and of training steps (``step``)."""
    low: float
    high: float
    """The factor's 10th and 90th percentile of the rounds."""


def read_probe(text: str) -> Probe:
    """Reads the probe's output, JSON lines."""
    lines = [json.loads(line) for line in text.splitlines()]
    machine = next(line["machine"] for line in lines if "machine" in line)
    return Probe(machine, {row["name"]: Row(row["kind"], row["ns"], row["cpu_ns"]) for row in lines if "ns" in row})


def compare(probe: Probe, host: HostProfile) -> Comparison | None:
    """None where the host file has no rows of the probe."""
    kinds = {name: row.kind for name, row in probe.rows.items()}
    found = _factor(probe.typical(), host.probe_ns, kinds)
    if found is None:
        return None
    each = sorted(pair[0] for turn in probe.rounds() if (pair := _factor(turn, host.probe_ns, kinds)))
    middle = statistics.median(each)
    low, high = (_quantile(each, q) / middle * found[0] for q in (0.1, 0.9))
    return Comparison(host.name, found[0], found[1], low, high)


def _factor(
    here: Mapping[str, float], there: Mapping[str, float], kinds: Mapping[str, str]
) -> tuple[float, dict[str, float]] | None:
    """Calls and steps have equal weight; of each the median row."""
    by_kind: dict[str, list[float]] = {}
    for name, ns in here.items():
        if name in there and kinds[name] != "driver":
            by_kind.setdefault(kinds[name], []).append(ns / there[name])
    if not by_kind:
        return None
    medians = {kind: statistics.median(ratios) for kind, ratios in by_kind.items()}
    return math.exp(statistics.mean(math.log(ratio) for ratio in medians.values())), medians


def _quantile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[round(share * (len(ordered) - 1))]


def profile_of(name: str, stubbed: Probe, real: Probe | None, least: tuple[float, float] = GIVEN_SPREAD) -> HostProfile:
    """The host that the probes describe: the reference host times the factor, and what CUDA calls cost where there is
    a GPU. Its spread is `least`, or more where the rounds of the probe differ by more."""
    base = load_host(REFERENCE_HOST)
    found = compare(stubbed, base)
    assert found is not None, "the reference host has every row"
    factor = round(found.factor * between(stubbed, real), 4)
    costs = dict(base.slower(factor).api_ns)
    about = stubbed.machine
    sources = [f"phantora profile host: torch {about['torch']}, Python {about['python']}, stub libraries"]
    if real is not None:
        costs = {api: round(ns * _in_steps(api)) for api, ns in costs.items()} | driver_costs(stubbed, real)
        sources.append(f"CUDA calls on {real.machine['gpu']}")
    spread = (round(min(found.low / found.factor, least[0]), 3), round(max(found.high / found.factor, least[1]), 3))
    rows = {row: round(ns, 1) for row, ns in stubbed.typical().items()}
    return HostProfile(
        name=name,
        api_ns=costs,
        factor=factor,
        spread=spread,
        cpu=cpu_of(about),
        sources=tuple(sources),
        probe_ns=rows,
        measured=True,
        cores_per_gpu=_cores_per_gpu(real.machine) if real is not None else HostProfile.cores_per_gpu,
    )


def _cores_per_gpu(machine: Mapping[str, Any]) -> int:
    return max(1, int(machine["cores"]) // int(machine["gpus"])) if "gpus" in machine else HostProfile.cores_per_gpu


def _in_steps(api: str) -> float:
    if api.startswith(OWN):
        return COUNTED_NEXT_TO_CALLS
    return CUDNN_IN_STEPS if api in CUDNN_CALLS else 1.0


def slower(stubbed: Probe, real: Probe) -> float:
    """Time of the machine for the same work without CUDA's calls, in the probe with the real libraries over the one
    with stubs: a shared machine's speed changes within minutes, by 0.7 to 1.3 times in six pairs of probes."""
    rows = [row for row in WITHOUT_CUDA if row in stubbed.rows and row in real.rows]
    ratios = [
        WITHOUT_CUDA[row] * statistics.median(theirs / ours for theirs, ours in _pairs(stubbed, real, row))
        for row in rows
    ]
    return statistics.median(ratios) if ratios else 1.0


def _pairs(stubbed: Probe, real: Probe, row: str) -> Iterator[tuple[float, float]]:
    """ns per call with the real libraries and under the stubs, round by round: of one moment, if the two took turns."""
    return zip(real.times(row), stubbed.times(row), strict=False)


def between(stubbed: Probe, real: Probe | None) -> float:
    """The host that is described, next to what it was under the stubs: the mean of both measurements."""
    return math.sqrt(slower(stubbed, real)) if real is not None else 1.0


def driver_costs(stubbed: Probe, real: Probe) -> dict[str, int]:
    """ns of CUDA calls: a row's time with the real libraries less that under the stubs."""
    speed, middle = slower(stubbed, real), between(stubbed, real)

    def cost(row: str) -> float:
        return statistics.median(theirs / speed - ours for theirs, ours in _pairs(stubbed, real, row))

    return {
        api: max(round(middle * statistics.median(map(cost, rows))), 0)
        for api, rows in DRIVER_ROWS.items()
        if all(row in stubbed.rows and row in real.rows for row in rows)
    }


def cpu_of(machine: Mapping[str, Any]) -> str:
    """Model, clock and cores of a machine that the probe describes."""
    clock = f", {machine['mhz'][-1] / 1e3:.2f} GHz" if machine.get("mhz") else ""
    return f"{machine['cpu']}{clock}, {machine['cores']} cores"
