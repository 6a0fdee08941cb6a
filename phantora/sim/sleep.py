"""Is a rank asleep outside CUDA? Read from /proc, without touching the process."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Activity:
    """What a process was doing: equal snapshots of sleepers mean that nothing happened between."""

    asleep: bool
    switches: tuple[str, ...]


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                found += [int(child) for child in file.read().split()]
    except OSError:
        pass
    return found


def _moves_clock(task: str, pid: int, name: str) -> bool:
    return task == str(pid) or name.startswith("pt_autograd")


def snapshot(pid: int, only_clock_threads: bool = True) -> Activity | None:
    """The activity of `pid`'s main and autograd threads and of all its children; None if it is gone.

    Watchdog and heartbeat threads of torch wake several times a second and decide nothing, so
    they don't count. A child (a DataLoader worker) that computes keeps its parent awake.
    """
    asleep = True
    switches: list[str] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/stat", "rb") as file:
                text = file.read()
            name = text[text.index(b"(") + 1 : text.rindex(b")")].decode("ascii", "replace")
            if only_clock_threads and not _moves_clock(task, pid, name):
                continue
            fields = text[text.rindex(b")") + 2 :].split()
            asleep = asleep and fields[0] == b"S"
            with open(f"/proc/{pid}/task/{task}/status") as status:
                switches.append("".join(line for line in status if "ctxt_switches" in line))
    except OSError:
        return None
    for child in _children(pid):
        activity = snapshot(child, only_clock_threads=False)
        if activity is not None:
            asleep = asleep and activity.asleep
            switches += activity.switches
    return Activity(asleep, tuple(switches))
