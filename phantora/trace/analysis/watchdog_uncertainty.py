"""How much of a peak of memory is chance: when NCCL's watchdog lets go of what collectives held.

It looks every 100 ms, at moments that have nothing to do with the program's, so in reality a block goes 0 to 100 ms
after its collective; simulated ones go after 50 (``stub/rank/torch_hooks/watchdog.c``,
docs/accuracy.md). So each such block may be there 50 ms longer than the log says, or be gone 50 ms earlier. Threads
that free blocks and never make any are watchdogs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
EITHER_WAY = 50_000_000  # ns


def peak_range(
    time: Ints, allocated: Ints, inside: npt.NDArray[np.bool_], made: Ints, freed: Ints, size: Ints
) -> tuple[int, int]:
    """The lowest and the highest peak (bytes) of the rows `inside`.

    `time` (ns, ascending) and `allocated` are a rank's rows; `made` and `freed` the rows of the blocks that a watchdog
    freed, `size` their bytes."""
    plain = int(allocated[inside].max(initial=0))
    if not len(freed):
        return plain, plain
    order = np.argsort(freed, kind="stable")
    gone, bytes_gone = freed[order], np.append(0, np.cumsum(size[order]))
    rows = np.arange(len(time))
    done = bytes_gone[np.searchsorted(gone, rows, "right")]  # freed so far
    long_done = bytes_gone[np.searchsorted(time[gone], time - EITHER_WAY, "left")]
    soon_done = bytes_gone[np.searchsorted(time[gone], time + EITHER_WAY, "left")]
    born = np.zeros(len(time) + 1, np.int64)  # of those freed soon, what is not made yet
    early = np.searchsorted(time, time[freed] - EITHER_WAY, "right")
    np.add.at(born, np.minimum(early, made), size)
    np.subtract.at(born, made, size)
    unborn = np.maximum(0, np.cumsum(born)[:-1])
    late = allocated + np.maximum(0, done - long_done)
    early_level = allocated - np.maximum(0, soon_done - done - unborn)
    return int(early_level[inside].max(initial=0)), int(late[inside].max(initial=0))
