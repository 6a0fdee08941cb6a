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
TENSOR, FILE = 256 * MIB, 512 * MIB


@dataclass(frozen=True)
class Rates:
    """Seconds per GiB."""

    move: float
    """Read or written by an operator on one thread."""
    saturated: float
    """The same on the number of threads that is fastest."""
    fault: float
    """New memory that an operator writes, on top of `move`."""
    write: float
    """`torch.save` of a tensor, into the host's memory."""
    read: float
    """`torch.load` of this file."""
    disk: float
    """Of a file that is synchronised, once it is in the host's memory."""

    def costs(self) -> dict[str, int]:
        """ns by name of ``wire.layout.Api``."""
        found = {
            "HOST_MOVE_GIB": self.move, "HOST_SATURATED_GIB": self.saturated, "HOST_FAULT_GIB": self.fault,
            "FILE_WRITE_GIB": self.write, "FILE_READ_GIB": self.read,
        }  # fmt: skip
        return {name: round(seconds * 1e9) for name, seconds in found.items()}

    def disk_option(self) -> str:
        """For ``trace --disk``."""
        return f"{GIB / self.disk / 1e6:.0f}MB/s"


def measure_apart(folder: Path) -> Rates:
    """What the script finds in a process of its own, with a file in `folder`. Raises PhantoraError."""
    done = subprocess.run(
        [sys.executable, __file__, str(folder)], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        last = (done.stderr.strip() or "no output").splitlines()[-1]
        raise PhantoraError(f"the rates of the host's memory cannot be measured: {last[:300]}")
    return Rates(**json.loads(done.stdout.splitlines()[-1]))


def seconds(call: Callable[[], object], rounds: int = ROUNDS) -> float:
    """The median of `rounds` calls, after one in advance."""
    times = []
    for turn in range(rounds + 1):
        began = time.perf_counter()
        call()
        if turn:
            times.append(time.perf_counter() - began)
    return statistics.median(times)


def measure(folder: Path) -> Rates:
    """The rates of this machine; files are in `folder`."""
    import torch

    x = torch.zeros(TENSOR // 4)
    moved = 2 * TENSOR / GIB
    by_threads: dict[int, float] = {}
    threads, cores = 1, len(os.sched_getaffinity(0))
    while threads <= cores:
        torch.set_num_threads(threads)
        by_threads[threads] = seconds(lambda: x.mul_(1.0)) / moved
        threads *= 2
    torch.set_num_threads(1)
    fault = (seconds(lambda: x + 1.0) / moved - by_threads[1]) * 2
    saved = torch.zeros(FILE // 4).random_(0, 1000)
    path = folder / "tensor.pt"

    def save() -> None:
        with open(path, "wb") as file:
            torch.save(saved, file)

    write, read = seconds(save, 3), seconds(lambda: torch.load(path), 3)
    save()
    began = time.perf_counter()
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
    disk = time.perf_counter() - began
    size = FILE / GIB
    return Rates(by_threads[1], min(by_threads.values()), max(fault, 0.0), write / size, read / size, disk / size)


def main() -> None:
    """Prints the rates."""
    with tempfile.TemporaryDirectory(dir=sys.argv[1]) as folder:
        print(json.dumps(asdict(measure(Path(folder)))))


if __name__ == "__main__":
    main()
