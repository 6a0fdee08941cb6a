"""Times of the kernels that operators launch, by torch.profiler (CUPTI), as they run in training.

Each operator runs several times in pairs: *cold*, after other data went through L2, and *warm*, right
again on the same operands. Pauses between long runs keep the GPU below its power cap, so that times
are those of the highest clock. Kernels count for the operator that launched them itself; operators
below it have signatures of their own.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from phantora.cost.parse import parse_signature
from phantora.cost.wanted import Wanted
from phantora.profile.arena import Arena, Unbuildable
from phantora.profile.rebuild import Call, rebuild

FLUSH_BYTES = 128 << 20  # more than any GPU's L2
BURN_NS = 30_000_000  # of products before each chunk: clocks rise within it
# (longest call in ns, cold runs, warm runs)
REPETITIONS = ((60_000, 5, 5), (300_000, 4, 3), (2_000_000, 3, 1), (1 << 62, 3, 0))
LONG_NS = 300_000  # runs longer than this are followed by a pause of
PAUSE = 2.0  # times their duration
TOO_LONG_NS = 400_000_000
_MARK = "phantora"
_KINDS = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}


@dataclass(frozen=True, kw_only=True)
class KernelTime:
    """One kernel of an operator. Times in ns are medians; `spread` is the cold times' interquartile
    range over their median. Without warm runs, `warm` is `cold`."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    kind: str
    cold: int
    warm: int
    spread: float


@dataclass(frozen=True)
class Measurement:
    """Result of measuring one operator: kernels in launch order, or the reason for their absence."""

    signature: str
    compute: str
    kernels: tuple[KernelTime, ...] = ()
    error: str = ""
    clock_mhz: int = 0


class Bench:
    """The GPU, ready to measure: operands' memory, a buffer to flush L2 with, warm clocks."""

    def __init__(self, memory: int | None = None) -> None:
        """`memory` in bytes for operands; without, three fifths of what is free."""
        torch.set_grad_enabled(False)
        free, _ = torch.cuda.mem_get_info()
        self.arena = Arena(memory or free * 3 // 5)
        self._flush = torch.zeros(2, FLUSH_BYTES // 2, dtype=torch.uint8, device="cuda")
        self._burn = torch.randn(4096, 4096, device="cuda").to(torch.bfloat16)

    def measure(self, wanted: Sequence[Wanted], at: Callable[[int], None] | None = None) -> list[Measurement]:
        """Measures `wanted`, in order, under one profile: some hundred at a time are best.

        `at` is called with the index of each entry before the GPU gets to see it. What makes the device
        unusable is raised.
        """
        notify = at or (lambda index: None)
        results: dict[int, Measurement] = {}
        ready: dict[int, tuple[str, int]] = {}  # the operator's name and how long a call takes, ns
        for index, entry in enumerate(wanted):
            notify(index)
            try:
                ready[index] = self._prepare(entry)
            except Unbuildable as error:
                results[index] = Measurement(entry.signature, entry.compute, error=str(error))
                torch.cuda.synchronize()
            except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
                # What operators raise for operands they do not take. It is named with its type and reported
                # for each operator, since a fault of the rebuilding would look the same.
                first = (str(error).splitlines() or [""])[0][:200]
                reason = f"the call ended in {type(error).__name__}: {first}"
                results[index] = Measurement(entry.signature, entry.compute, error=reason)
                torch.cuda.synchronize()  # raises what makes the device unusable
        torch.cuda.empty_cache()
        events = self._run(ready, wanted, notify)
        clock = _clock_mhz()
        times = _times(events, {index: name for index, (name, _) in ready.items()})
        for index in ready:
            entry = wanted[index]
            kernels = times.get(index, ())
            reason = "" if kernels else "it launched nothing itself"
            results[index] = Measurement(entry.signature, entry.compute, kernels, reason, clock)
        return [results[index] for index in range(len(wanted))]

    def _rebuild(self, entry: Wanted) -> Call:
        """A warmed-up call."""
        call = rebuild(parse_signature(entry.signature), self.arena, entry.kernel)
        _set_tf32(entry.compute == "tf32")
        call.run()
        return call

    def _prepare(self, entry: Wanted) -> tuple[str, int]:
        """The operator's name and the duration of a call in ns. Raises what the call raises."""
        call = self._rebuild(entry)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        call.run()
        end.record()
        end.synchronize()
        ns = round(start.elapsed_time(end) * 1e6)
        if ns > TOO_LONG_NS:
            raise Unbuildable(f"one call takes {ns / 1e6:.0f} ms")
        return call.name, ns

    def _run(
        self, ready: Mapping[int, tuple[str, int]], wanted: Sequence[Wanted], notify: Callable[[int], None]
    ) -> list[dict[str, Any]]:
        """Runs each operator as often as its length allows, with fresh operands; the profile's events."""
        began = time.perf_counter_ns()
        while time.perf_counter_ns() - began < BURN_NS:
            torch.mm(self._burn, self._burn)
            torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as prof:
            for index, (_, ns) in ready.items():
                notify(index)
                call = self._rebuild(wanted[index])
                _, cold, warm = next(row for row in REPETITIONS if ns < row[0])
                for repetition in range(cold):
                    self._flush[0].copy_(self._flush[1])
                    torch.add(self._flush[1], 1, out=self._flush[0])
                    with record_function(f"{_MARK} {index} cold {repetition}"):
                        call.run()
                    if repetition < warm:
                        with record_function(f"{_MARK} {index} warm {repetition}"):
                            call.run()
                    if ns > LONG_NS:
                        torch.cuda.synchronize()
                        time.sleep(PAUSE * ns * 1e-9)
                torch.cuda.synchronize()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            prof.export_chrome_trace(str(path))
            events: list[dict[str, Any]] = orjson.loads(path.read_bytes())["traceEvents"]
        return events


def _times(events: Sequence[dict[str, Any]], names: dict[int, str]) -> dict[int, tuple[KernelTime, ...]]:
    """Kernels of each marked call; `names` contains each call's operator ("" for a copy)."""
    marks = sorted(
        (float(e["ts"]), float(e["ts"]) + float(e["dur"]), e["name"].split(" "))
        for e in events
        if e.get("cat") == "user_annotation" and str(e.get("name", "")).startswith(_MARK + " ")
    )
    operators: dict[int, str] = {}
    launches: dict[int, float] = {}
    for e in events:
        category = e.get("cat")
        if category == "cpu_op":
            operators[e["args"].get("External id", -1)] = e["name"]
        elif category in ("cuda_runtime", "cuda_driver") and "correlation" in e.get("args", {}):
            launches[e["args"]["correlation"]] = float(e["ts"])
    runs: dict[tuple[int, str, int], list[tuple[float, dict[str, Any]]]] = {}
    starts = [start for start, _, _ in marks]
    for e in events:
        if e.get("cat") not in _KINDS:
            continue
        at = launches.get(e["args"].get("correlation", -1))
        if at is None:
            continue
        slot = bisect_right(starts, at) - 1
        if slot < 0 or at > marks[slot][1]:
            continue
        _, which, state, repetition = marks[slot][2]
        expected = names.get(int(which))
        if expected and operators.get(e["args"].get("External id", -1)) != expected:
            continue
        runs.setdefault((int(which), state, int(repetition)), []).append((at, e))
    result: dict[int, tuple[KernelTime, ...]] = {}
    for index in names:
        cold = [run for key, run in runs.items() if key[:2] == (index, "cold")]
        warm = [run for key, run in runs.items() if key[:2] == (index, "warm")]
        if cold:
            result[index] = _kernels(cold, warm)
    return result


def _kernels(
    cold: list[list[tuple[float, dict[str, Any]]]], warm: list[list[tuple[float, dict[str, Any]]]]
) -> tuple[KernelTime, ...]:
    """Medians over repetitions, kernel by kernel; repetitions of another length are left out. Kernels that run next to
    each other have their share of the time that all take: cuDNN convolves some groups on streams of its own."""
    count = round(statistics.median(len(run) for run in cold))
    cold = [sorted(run, key=lambda item: item[0]) for run in cold if len(run) == count]
    warm = [sorted(run, key=lambda item: item[0]) for run in warm if len(run) == count]
    kernels = []
    shares, shares_again = ([alone([event for _, event in run]) for run in runs] for runs in (cold, warm))
    for position in range(count if cold else 0):
        event = cold[0][position][1]
        times = sorted(float(run[position][1]["dur"]) * share * 1e3 for run, share in zip(cold, shares, strict=True))
        again = [float(run[position][1]["dur"]) * s * 1e3 for run, s in zip(warm, shares_again, strict=True)] or times
        middle = statistics.median(times)
        spread = (times[(3 * len(times)) // 4] - times[len(times) // 4]) / max(middle, 1.0)
        grid, block = event["args"].get("grid", (1, 1, 1)), event["args"].get("block", (1, 1, 1))
        kernels.append(
            KernelTime(
                name=event["name"],
                grid=(grid[0], grid[1], grid[2]),
                block=(block[0], block[1], block[2]),
                kind=_KINDS[event["cat"]],
                cold=round(middle),
                warm=round(statistics.median(again)),
                spread=round(spread, 4),
            )
        )
    return tuple(kernels)


def alone(events: Sequence[dict[str, Any]]) -> float:
    """The time in which any of the events runs, over the sum of their durations."""
    whole, covered, until = 0.0, 0.0, 0.0
    for start, length in sorted((float(event["ts"]), float(event["dur"])) for event in events):
        whole += length
        covered += max(0.0, start + length - max(start, until))
        until = max(until, start + length)
    return covered / whole if whole else 1.0


def _set_tf32(on: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = on
    torch.backends.cudnn.allow_tf32 = on


def _clock_mhz() -> int:
    """The SM clock, or 0 where NVML's Python package is missing."""
    try:
        return int(torch.cuda.clock_rate())
    except (RuntimeError, ModuleNotFoundError, AttributeError):
        return 0


def environment() -> dict[str, str]:
    """Tags of a table of measurements."""
    properties = torch.cuda.get_device_properties(0)
    driver = "unknown"
    try:
        import pynvml  # type: ignore[import-not-found,import-untyped,unused-ignore]

        pynvml.nvmlInit()
        driver = str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # NVML is optional, and its errors are of no common type
        pass
    return {
        "gpu": properties.name,
        "driver": driver,
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
        "sms": str(properties.multi_processor_count),
    }
