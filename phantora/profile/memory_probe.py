"""Rates of a host's memory and files. A script of its own: python memory_probe.py FOLDER. It needs 2 GiB of memory and
of the disk. Plain torch, on all processors, without CUDA. It prints one line of JSON: :class:`Rates`.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from phantora.errors import PhantoraError
from phantora.units import GIB, MIB

ROUNDS = 5
FILE_ROUNDS = 3
TENSOR, FILE, PIECE = 256 * MIB, 512 * MIB, 64 * MIB
TENSORS = 256
THREADS = 32  # more do not make memory faster


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Seconds per GiB."""

    move: float
    """Read or written by an operator on one thread."""
    saturated: float
    """Rate that many threads share (:func:`shared`)."""
    fault: float
    """New memory that an operator writes on one thread, on top of `move`."""
    fault_saturated: float
    """Rate of new memory that many threads share."""
    write: float
    """A new file, into the host's memory."""
    sums: float
    """`torch.save` to a new file, on top of `write`."""
    replace: float
    """`torch.save` over this file, on top of both."""
    read: float
    """This file, into memory that is not new."""
    tensor: float
    """Seconds of Python for a tensor of a distributed checkpoint."""
    disk: float
    """Rate of a file that is synchronised, once it is in the host's memory."""

    def costs(self) -> dict[str, int]:
        """ns by name of ``wire.layout.Api``."""
        found = {
            "HOST_MOVE_GIB": self.move,
            "HOST_SATURATED_GIB": self.saturated,
            "HOST_FAULT_GIB": self.fault,
            "HOST_FAULT_SATURATED_GIB": self.fault_saturated,
            "FILE_WRITE_GIB": self.write,
            "FILE_SUM_GIB": self.sums,
            "FILE_REPLACE_GIB": self.replace,
            "FILE_READ_GIB": self.read,
            "FILE_TENSOR": self.tensor,
        }
        return {name: round(seconds * 1e9) for name, seconds in found.items()}

    def disk_option(self) -> str:
        """For ``trace --disk``."""
        return f"{GIB / self.disk / 1e6:.0f}MB/s"


def measure_apart(folder: Path) -> Rates:
    """Runs the script in a process of its own, with a file in `folder`. Raises PhantoraError."""
    done = subprocess.run(
        [sys.executable, __file__, str(folder)], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        last = (done.stderr.strip() or "no output").splitlines()[-1]
        raise PhantoraError(f"the rates of the host's memory cannot be measured: {last[:300]}")
    return Rates(**json.loads(done.stdout.splitlines()[-1]))


def timed(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def seconds(call: Callable[[], object], rounds: int = ROUNDS) -> float:
    """The median of `rounds` calls, after one in advance."""
    return statistics.median([timed(call) for _ in range(rounds + 1)][1:])


def shared(by_threads: dict[int, float]) -> float:
    """The limit of many threads: n take ``alone / n + (1 - 1 / n) * limit``, as the ranks' clocks count them
    (``stub/rank/clock/costs.c``). The median over n, from times by number of threads."""
    alone = by_threads[1]
    limits = [(time - alone / n) / (1 - 1 / n) for n, time in by_threads.items() if n > 1]
    return max(statistics.median(limits), 0.0) if limits else alone


def python_of_checkpoints(folder: Path) -> float:
    """Seconds of this thread's CPU per sharded tensor of a distributed checkpoint; all are tiny."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    state = {f"weight{i}": distribute_tensor(torch.zeros(64, 4), mesh, [Shard(0)]) for i in range(TENSORS)}
    times = []
    for i in range(1 + FILE_ROUNDS):
        began = time.thread_time()
        dcp.save(state, checkpoint_id=folder / f"checkpoint{i}")
        times.append(time.thread_time() - began)
    dist.destroy_process_group()
    return statistics.median(times[1:]) / TENSORS


def measure(folder: Path) -> Rates:
    """The rates of this machine; files are in `folder`."""
    import torch

    x, y = torch.zeros(TENSOR // 4), torch.zeros(TENSOR // 4)
    gib = TENSOR / GIB
    by_threads: dict[int, float] = {}
    faults: dict[int, float] = {}
    threads, cores = 1, min(len(os.sched_getaffinity(0)), THREADS)
    while threads <= cores:
        torch.set_num_threads(threads)
        by_threads[threads] = seconds(lambda: y.copy_(x)) / (3 * gib)  # the caches read y, too
        faults[threads] = max(seconds(lambda: x + 1.0) / gib - 2 * by_threads[threads], 0.0)
        threads *= 2
    torch.set_num_threads(1)
    saved = torch.zeros(FILE // 4).random_(0, 1000)
    data = memoryview(saved.numpy().data).cast("B")
    plain, path = folder / "plain", folder / "tensor.pt"

    def write() -> None:
        with open(plain, "wb", 0) as file:
            for at in range(0, FILE, PIECE):
                file.write(data[at : at + PIECE])

    def read() -> None:
        with open(path, "rb", 0) as file:
            while file.readinto(piece):
                pass

    piece = bytearray(PIECE)
    written = timed(write)
    began = time.perf_counter()
    with open(plain, "rb+") as file:
        os.fsync(file.fileno())
    disk = time.perf_counter() - began
    saves = [timed(lambda: torch.save(saved, path)) for _ in range(1 + FILE_ROUNDS)]
    size = FILE / GIB
    return Rates(
        move=by_threads[1],
        saturated=shared(by_threads),
        fault=faults[1],
        fault_saturated=shared(faults),
        write=written / size,
        sums=max(saves[0] - written, 0.0) / size,
        replace=max(statistics.median(saves[1:]) - saves[0], 0.0) / size,
        read=seconds(read, FILE_ROUNDS) / size,
        tensor=python_of_checkpoints(folder),
        disk=disk / size,
    )


def main() -> None:
    """Prints the rates."""
    with tempfile.TemporaryDirectory(dir=sys.argv[1]) as folder:
        print(json.dumps(asdict(measure(Path(folder)))))


if __name__ == "__main__":
    main()
