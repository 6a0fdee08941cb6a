"""Memory of this machine while ranks run: tensors on the CPU are real, and may take all of it.

The kernel's out-of-memory killer ends some process without a word, and a machine that is almost out of memory stalls
before. So the run ends before that, with the numbers and a remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from phantora import process
from phantora.units import GIB

SECONDS = 0.25
"""Between two looks: a process takes up to 4 GB/s of new memory."""
_RESERVE = 0.04  # of the machine, that is left when the run ends
_LEAST, _MOST = 1 * GIB, 4 * GIB  # of the reserve
_NOTED = 0.5  # of what was left at the start: once less is left, the user reads it
_WORTH = 0.25  # of what was left at the start, that the ranks take


def number_in(path: str) -> int | None:
    """The number in a file of the system; None without one."""
    try:
        text = Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def memory_information() -> dict[str, int]:
    """``/proc/meminfo`` in bytes: ``MemTotal``, ``MemAvailable``, ``SwapFree``."""
    found = {}
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        found[name] = int(value.split()[0]) << 10
    return found


def available() -> tuple[int, int]:
    """Bytes that this machine has, and that processes can take without swap; the control group's, where it has less."""
    found = memory_information()
    total, free = found.get("MemTotal", 0), found.get("MemAvailable", 0)
    limit, used = (number_in(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current"))
    if not limit or used is None or limit > total:
        return total, free
    return limit, min(free, limit - used + _cached())


def _cached() -> int:
    """Bytes of files that the control group's use counts and that the kernel gives back."""
    try:
        lines = Path("/sys/fs/cgroup/memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("inactive_file ", "active_file ")))


class MachineMemory:
    """Watches what is left of the machine's memory, and what ranks take of it."""

    def __init__(
        self, look: Callable[[], tuple[int, int]] = available, taken: Callable[[int], int] = process.proportional_bytes
    ) -> None:
        """`look` as :func:`available`; `taken`: bytes of a process."""
        self._look, self._taken = look, taken
        total, self._start = look()
        self._reserve = min(_MOST, max(_LEAST, int(_RESERVE * total)))
        self._below = int(_NOTED * self._start)  # bytes left from which on the ranks' memory is read
        self._noted = False

    def look(self, pids: Callable[[], Iterable[int]]) -> tuple[str, bool]:
        """A text for the user, and whether the run has to end; "" for nothing new. `pids`: processes of the run."""
        _, left = self._look()
        if left >= self._below and left >= self._reserve:
            return "", False
        taken = sum(map(self._taken, pids()))
        numbers = f"{taken / GIB:.1f} GiB of this machine's memory, {left / GIB:.1f} GiB is left"
        remedy = 'CPU tensors are real, GPU tensors take none; build the model under torch.device("cuda")'
        if left < self._reserve and taken > self._reserve:
            return f"this machine is almost out of memory: the ranks take {numbers}: {remedy}", True
        self._below = int(0.9 * left)
        if self._noted or taken < _WORTH * self._start:
            return "", False
        self._noted = True
        return f"the ranks take {numbers}: {remedy}; the run ends at {self._reserve / GIB:.1f} GiB left", False
