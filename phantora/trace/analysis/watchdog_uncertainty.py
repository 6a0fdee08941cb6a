"""The range of a peak of memory: when NCCL's watchdog lets go of what collectives held.

It looks every 100 ms, at moments that have nothing to do with the program's. So in reality it lets go of a block 0 to
100 ms after its collective; simulated ones go after 50 (``stub/rank/torch_hooks/watchdog.c``, docs/accuracy.md). A
block is freed then, or by the thread that enqueues the next collective. Either may come earlier or later."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
EITHER_WAY = 50_000_000  # ns


@dataclass(frozen=True)
class UncertainBlocks:
    """Blocks whose end a watchdog's poll decides."""

    made: Ints
    """Row of the allocation."""
    freed: Ints
    """Row of the free."""
    size: Ints
    earliest: Ints
    """Earliest time at which the block may be freed, ns."""
    latest: Ints


def uncertain_blocks(time: Ints, made: Ints, freed: Ints, size: Ints, kept: Ints, enqueued: Ints) -> UncertainBlocks:
    """Blocks that a watchdog frees (`kept` < 0), and those that a thread frees `kept` ns after the watchdog's poll,
    when it enqueues a collective. `time` of all rows and `enqueued` are ns, ascending; the others are of the blocks."""
    at, by_thread = time[freed], kept >= 0
    earliest, latest = at - EITHER_WAY, at + EITHER_WAY
    end = np.append(enqueued, time[-1:] if len(time) else 0)

    def next_enqueue(moment: Ints) -> Ints:
        found: Ints = end[np.minimum(np.searchsorted(enqueued, moment), len(enqueued))]
        return found

    of_round = at - kept
    earliest = np.where(by_thread, np.minimum(at, next_enqueue(of_round - EITHER_WAY)), earliest)
    latest = np.where(by_thread, np.maximum(at, next_enqueue(of_round + EITHER_WAY)), latest)
    return UncertainBlocks(made, freed, size, earliest, latest)


def peak_range(time: Ints, allocated: Ints, inside: npt.NDArray[np.bool_], blocks: UncertainBlocks) -> tuple[int, int]:
    """The lowest and the highest peak (bytes) of the rows `inside`. `time` (ns, ascending) and `allocated` are a rank's
    rows."""
    stays = np.maximum(np.searchsorted(time, blocks.latest, "left"), blocks.freed)
    goes = np.maximum(np.searchsorted(time, blocks.earliest, "right"), blocks.made + 1)
    late = allocated + _sums(len(time), blocks.freed, stays, blocks.size)
    early = allocated - _sums(len(time), np.minimum(goes, blocks.freed), blocks.freed, blocks.size)
    return int(early[inside].max(initial=0)), int(late[inside].max(initial=0))


def _sums(rows: int, begin: Ints, end: Ints, size: Ints) -> Ints:
    """Bytes in each row of blocks that are there from row `begin` to before row `end`."""
    change = np.zeros(rows + 1, np.int64)
    np.add.at(change, begin, size)
    np.subtract.at(change, end, size)
    return np.cumsum(change)[:-1]
