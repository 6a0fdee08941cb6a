"""A note on the script's own CPU time, where steps have much of it that the modelled host clock does not know.

The clock counts CUDA calls, operators and Python frames (docs/virtual-time.md). Code in C between them (NumPy, SciPy,
an environment's physics) and loops within one function cost nothing there, operators on CPU tensors the bytes that they
move.
``stub/rank/clock/unmodelled_cpu.c`` measures what they take on this machine.
"""

from __future__ import annotations

import bisect
import ctypes
import itertools
import statistics
from collections.abc import Sequence

from phantora.rank.messages import report_at_end, tell
from phantora.rank.patch import Patch, Rank, When

_WINDOWS = 5  # what happens once, as compiling, is in one of them
_NOTED = 0.1  # of a step


def spent_and_taken(steps: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """CPU time of a step that was not counted, and a step's virtual time, in ns; 0 of too few steps.

    `steps` has both for each step. The first is not looked at. Evenly many others lie in each of up to five windows;
    the median window counts.
    """
    steps = steps[1:]
    if len(steps) < 2:
        return 0.0, 0.0
    size = -(-len(steps) // _WINDOWS)
    windows = [steps[at : at + size] for at in range(0, len(steps), size)]
    spent = statistics.median_low(sum(cpu for cpu, _ in window) / len(window) for window in windows)
    takes = statistics.median(sum(time for _, time in window) / len(window) for window in windows)
    return spent, takes


def spent_and_taken_by_kernels(lapses: Sequence[tuple[int, int, int]], kernels: int, end: int) -> tuple[float, float]:
    """CPU time of a fifth of a run's kernels that was not counted, and its virtual time, in ns; 0 of too few kernels.

    `lapses` has, for each kernel behind such work, the CPU time, the virtual time since the one before and how many
    kernels came before. What is behind the first of them, up to the `end` (ns) of the run, has five windows of equally
    many kernels.
    """
    if len(lapses) <= _WINDOWS:
        return 0.0, 0.0
    times = [*itertools.accumulate(moved for _, moved, _ in lapses), end]
    counts = [*(count for _, _, count in lapses), kernels]
    size = (kernels - counts[0]) / _WINDOWS
    if size < 1:
        return 0.0, 0.0
    spent = [0] * _WINDOWS
    for cpu, _, count in lapses[1:]:
        spent[min(_WINDOWS - 1, int((count - counts[0]) / size))] += cpu
    edges = [_at(counts[0] + i * size, counts, times) for i in range(_WINDOWS + 1)]
    return statistics.median_low(spent), statistics.median(b - a for a, b in itertools.pairwise(edges))


def _at(count: float, counts: Sequence[int], times: Sequence[int]) -> float:
    """The time at which `count` kernels had been launched, between those of which it is known."""
    after = min(max(1, bisect.bisect_right(counts, count)), len(counts) - 1)
    before = after - 1
    part = (count - counts[before]) / max(1, counts[after] - counts[before])
    return times[before] + part * (times[after] - times[before])


def note(spent: float, takes: float, stepped: bool) -> str | None:
    """Note for the user about :func:`spent_and_taken`, None if the clock counted most of the time."""
    if spent <= takes * _NOTED:
        return None
    who = "code of the script that is no operator on a GPU (NumPy, simulators, operators on the CPU)"
    if not stepped:
        return (
            f"{who} takes {spent / takes:.3g} times the simulated time on this machine's CPU, which is not counted; "
            "--host-time measured counts it"
        )
    return (
        f"{who} takes {spent / 1e6:.3g} ms of this machine's CPU for each optimizer step, which is not counted: "
        f"the simulated host takes {takes / 1e6:.3g} ms for one; --host-time measured counts it"
    )


def install(rank: Rank) -> None:
    """Prints the note when the process ends, in the first rank, and gives the time of each rank."""
    library = rank.runtime

    def report() -> None:
        each, kernels = ctypes.POINTER(ctypes.c_int64)(), ctypes.c_int64()
        library.ph_unmodelled_steps.restype = ctypes.c_size_t
        count = library.ph_unmodelled_steps(ctypes.byref(each), ctypes.byref(kernels))
        lapses = [(each[3 * i], each[3 * i + 1], each[3 * i + 2]) for i in range(count)]
        spent, takes = spent_and_taken([lapse[:2] for lapse in lapses])
        if kernels:  # no optimizer
            library.ph_now.restype = ctypes.c_int64
            spent, takes = spent_and_taken_by_kernels(lapses, kernels.value, library.ph_now())
        if (text := note(spent, takes, not kernels)) is not None:
            if library.ph_rank() == 0:
                tell(text)
            library.ph_uncounted(ctypes.c_int64(round(1e6 * spent / takes)))

    report_at_end(library, report, every=True)


PATCH = Patch("unmodelled CPU time", When.IN_RANK, install)
