"""Small traces in Kineto's form, made as torch.profiler writes them."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

Event = dict[str, Any]
HOST, MAIN, BACKWARD = 4000, 4000, 4001


class Trace:
    """The events of one rank; times in us, as Kineto's."""

    def __init__(self, rank: int = 0, world: int = 1, skew: float = 0.0, gpu: str = "NVIDIA H100 80GB HBM3") -> None:
        self.gpu = gpu
        self.rank, self.world, self.skew = rank, world, skew
        self.events: list[Event] = []
        self._correlation = 100
        self._operators = 0

    def slice(self, category: str, name: str, start: float, length: float, tid: int = MAIN, **args: Any) -> Event:
        event = {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": HOST,
            "tid": tid,
            "ts": start + self.skew,
            "dur": length,
            "args": args,
        }
        self.events.append(event)
        return event

    def operator(self, name: str, start: float, length: float, *tensors: list[int], tid: int = MAIN) -> int:
        self._operators += 1
        shapes = {"Input Dims": [list(t) for t in tensors], "Input type": ["c10::BFloat16"] * len(tensors)}
        args = {"External id": self._operators} | (shapes if tensors else {})
        self.slice("cpu_op", name, start, length, tid, **args)
        return self._operators

    def kernel(
        self,
        name: str,
        launched: float,
        start: float,
        length: float,
        stream: int = 7,
        external: int | None = None,
        tid: int = MAIN,
        **args: Any,
    ) -> None:
        self._correlation += 1
        link = {"correlation": self._correlation} | ({"External id": external} if external else {})
        self.slice("cuda_runtime", "cudaLaunchKernel", launched, 4.0, tid, **link)
        event = self.slice("kernel", name, start, length, stream, **link, device=self.rank, stream=stream, **args)
        event["pid"] = self.rank

    def all_reduce(self, launched: float, start: float, length: float, elements: int = 1 << 20) -> None:
        group: dict[str, Any] = {
            "Collective name": "allreduce",
            "In msg nelems": elements,
            "Out msg nelems": elements,
            "Group size": self.world,
            "dtype": "BFloat16",
            "Process Group Name": "0",
            "Process Group Description": "default_pg",
            "Process Group Ranks": str(list(range(self.world))),
        }
        self.kernel(
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            launched,
            start,
            length,
            20,
            **group,
        )

    def data(self) -> dict[str, Any]:
        job = {"backend": "nccl", "rank": self.rank, "world_size": self.world}
        device = {"id": self.rank, "name": self.gpu, "totalGlobalMem": 85_017_493_504}
        return {
            "schemaVersion": 1,
            "deviceProperties": [device],
            "distributedInfo": job,
            "displayTimeUnit": "ms",
            "traceEvents": self.events,
            "traceName": "rank.json",
        }

    def write(self, path: Path) -> Path:
        text = json.dumps(self.data(), indent=1).encode()
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
        return path


def as_a_profiler_writes(data: dict[str, Any], slower: str = "", factor: float = 1.0) -> None:
    """Changes an exported trace to what torch.profiler writes: operators without overloads, no ProfilerStep.

    Kernels whose name matches `slower` take `factor` times as long, and what follows on the GPU is later."""
    for event in data["traceEvents"]:
        if event.get("cat") == "cpu_op":
            event["name"] = re.sub(r"(::\w+)\..*", r"\1", event["name"])
            event["args"].pop("shape", None)
    events = [event for event in data["traceEvents"] if not event["name"].startswith("ProfilerStep")]
    data["traceEvents"] = events
    longer = [e for e in events if e.get("cat") == "kernel" and slower and re.search(slower, e["name"])]
    longer.sort(key=lambda event: float(event["ts"]))
    ends = [event["ts"] + event["dur"] for event in longer]
    late = np.concatenate([[0.0], np.cumsum([(factor - 1) * event["dur"] for event in longer])])

    def moved(time: float) -> float:
        return time + float(late[np.searchsorted(ends, time + 1e-6, "right")])

    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            begin, end = moved(event["ts"]), moved(event["ts"] + event["dur"])
            event["ts"], event["dur"] = begin, end - begin
        elif "Synchronize" in event["name"]:
            event["dur"] = moved(event["ts"] + event["dur"]) - event["ts"]
