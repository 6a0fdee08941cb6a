"""Checks this machine before a run starts: memory, processes, open files, shared memory."""

from __future__ import annotations

import os
import resource

from phantora.errors import PhantoraError
from phantora.launch.machine_memory import memory_information, number_in

LEAST_OF_RANK = 6 << 20
"""Bytes of its own that a rank takes at least (a small model)."""
OF_RANK = 90 << 20
"""Memory of a rank with a model of some billion parameters under FSDP: 70 to 100 MB."""
THREADS_OF_RANK = 8
FILES, FILES_OF_RANK = 32, 2
"""Open files of this process: without ranks, and for each. With too few it fails, or ranks wait for ever."""
_LITTLE_SHARED = 64 << 20


def preflight(ranks: int) -> str:
    """Note for the user before `ranks` processes start, "" if none.

    Raises PhantoraError if they cannot run here."""
    memory, processes = free_memory(), _processes()
    remedy = (
        "fold them (--fold, docs/scale.md), simulate part of the cluster with --nnodes and --nproc-per-node, or record "
        "a smaller run and move it with `phantora replay`"
    )
    if memory and ranks * LEAST_OF_RANK > memory:
        raise PhantoraError(
            f"{ranks:,} ranks are {ranks:,} processes of at least {LEAST_OF_RANK >> 20} MiB each, and this machine has "
            f"{memory / 2**30:.1f} GiB of memory left; {remedy}"
        )
    if processes and ranks * THREADS_OF_RANK > processes:
        raise PhantoraError(
            f"{ranks:,} ranks need about {ranks * THREADS_OF_RANK:,} threads, and {processes:,} are allowed here "
            f"(ulimit -u, pids.max); {remedy}"
        )
    files, allowed = FILES + ranks * FILES_OF_RANK, resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if allowed != resource.RLIM_INFINITY and allowed < files:
        need = "rank needs" if ranks == 1 else "ranks need"
        raise PhantoraError(
            f"{ranks:,} {need} {files:,} open files, and {allowed:,} are allowed here; "
            "raise the limit (ulimit -Hn, LimitNOFILE=, --ulimit nofile=) or, with many ranks, fold them (--fold)"
        )
    if memory and ranks * OF_RANK > memory:
        return (
            f"{ranks:,} ranks of a large model take about {ranks * OF_RANK / 2**30:.0f} GiB, and {memory / 2**30:.1f} "
            "GiB are left here"
        )
    shared = _shared_memory()
    if shared is not None and shared < _LITTLE_SHARED:
        return (
            f"/dev/shm has {shared >> 20} MiB left, too little for torch's DataLoader workers (num_workers=0 needs "
            "none; in a container: --shm-size)"
        )
    return ""


def free_memory() -> int:
    """Bytes that processes can still take, swap included; the control group's limit where there is one."""
    found = memory_information()
    free = found.get("MemAvailable", 0) + found.get("SwapFree", 0)
    limit, used = (number_in(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current"))
    return min(free, limit - used) if limit and used is not None else free


def _processes() -> int:
    """Threads that this user may still start at most."""
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    known = [number_in("/sys/fs/cgroup/pids.max"), number_in("/proc/sys/kernel/threads-max")]
    known.append(None if limit == resource.RLIM_INFINITY else limit)
    return min((n for n in known if n), default=0)


def _shared_memory() -> int | None:
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return None
    return found.f_bavail * found.f_frsize
