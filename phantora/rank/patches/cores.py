"""The number of CPUs that a script sees: the simulated host's (``cores_per_gpu`` of the host model).

Scripts start ``os.cpu_count()`` workers, or share its cores among ranks. Threads of torch's own operators stay as many
as this machine has.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from phantora.rank.importhook import on_import
from phantora.rank.messages import tell
from phantora.rank.patch import Patch, Rank, When
from phantora.spec import rank_spec

_PACKAGES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))


class Cores:
    """`count` CPUs, numbered from 0, of which this process may use those that the script sets. The simulated host has
    `of_host`: if these are more, the script's first call prints a note where `notes` is true."""

    def __init__(self, count: int, of_host: int, notes: Callable[[], bool] = lambda: True) -> None:
        self._count, self._of_host, self._notes = count, of_host, notes
        self._noted = count >= of_host
        self._usable = set(range(count))
        self._get, self._set = os.sched_getaffinity, os.sched_setaffinity

    def count(self) -> int:
        """``os.cpu_count()``."""
        if not self._noted and not sys._getframe(1).f_code.co_filename.startswith(_PACKAGES):
            self._noted = True
            if self._notes():
                tell(
                    f"os.cpu_count() is {self._count}, and {self._of_host} on the simulated host: "
                    "this machine has no memory for as many workers"
                )
        return self._count

    def usable(self) -> int:
        """``os.process_cpu_count()``."""
        return len(self._usable)

    def affinity(self, pid: int, /) -> set[int]:
        """``os.sched_getaffinity()``; of another process, what this machine gives it."""
        return set(self._usable) if pid in (0, os.getpid()) else self._get(pid)

    def set_affinity(self, pid: int, mask: Iterable[int], /) -> None:
        """``os.sched_setaffinity()``. This process stays on this machine's CPUs."""
        if pid not in (0, os.getpid()):
            return self._set(pid, mask)
        wanted = {cpu for cpu in mask if 0 <= cpu < self._count}
        if not wanted:
            raise OSError(22, os.strerror(22))  # as the kernel does
        self._usable = wanted

    def psutil(self, module: ModuleType) -> None:
        """``psutil.cpu_count()``, without the physical cores."""
        physical = module.cpu_count

        def cpu_count(logical: bool = True) -> Any:
            return self._count if logical else physical(logical=False)

        module.cpu_count = cpu_count  # type: ignore[attr-defined]


def install(rank: Rank) -> None:
    """Replaces Python's functions, if a simulated host is known."""
    if not (count := rank_spec().cores):
        return
    cores = Cores(count, rank_spec().host_cores, lambda: bool(rank.runtime.ph_rank() == 0))
    os.cpu_count = cores.count
    if hasattr(os, "process_cpu_count"):
        os.process_cpu_count = cores.usable
    os.sched_getaffinity, os.sched_setaffinity = cores.affinity, cores.set_affinity
    on_import(("psutil",), cores.psutil)


PATCH = Patch("cores", When.AFTER_TORCH, install)
