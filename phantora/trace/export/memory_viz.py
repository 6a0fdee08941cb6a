"""torch's snapshot of the allocator's history, for pytorch.org/memory_viz: what ``torch.cuda.memory._snapshot()`` is.

A trace of each rank takes the place of a device's. The log has no addresses: blocks get one each, so that those alive
at a time never overlap; of the place where a block was made the one known frame is written (FILE:LINE of the innermost
code outside torch, for blocks from 1 MiB on).
"""

from __future__ import annotations

import pickle
from typing import Any

from phantora.trace.export.files import replacing
from phantora.trace.export.selection import Progress, Selection
from phantora.trace.export.selector import Selector
from phantora.trace.reader import Log
from phantora.wire import layout

_EVENTS = tuple(name.lower() for name in layout.Mem.names())
_FIRST_ADDRESS = 0x7F0000000000
_ALIGNED = 512


def write(log: Log, path: str, selection: Selection, progress: Progress | None = None) -> list[str]:
    """Writes the snapshot as a pickle."""
    selector = Selector(log, selection, progress)
    words = log.words("name")
    ranks = {rank: _Trace() for rank in selector.ranks}
    columns = ("rank", "end", "name", "value", "bytes", "id", "link", "stream", "seq")
    for batch in selector.batches(columns, ("memory",)):
        for row in zip(*(batch[c].tolist() for c in columns), strict=True):
            rank, time, name, *rest = row
            ranks[rank].add(time, words[name] if name >= 0 else "", *rest)
    snapshot = {
        "segments": [],
        "device_traces": [ranks[rank].entries for rank in selector.ranks],
        "allocator_settings": {},
        "external_annotations": [],
    }
    with replacing(path) as file:
        pickle.dump(snapshot, file, protocol=4)
    return [path]


class _Trace:
    """The history of a rank."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self._allocated = self._reserved = 0
        self._address = _FIRST_ADDRESS
        self._blocks: dict[int, tuple[int, int]] = {}  # by row: address, bytes
        self._last: dict[int, dict[str, Any]] = {}  # by thread: the entry of its last large block

    def add(
        self, time: int, name: str, allocated: int, reserved: int, row: int, link: int, thread: int, seq: int
    ) -> None:
        """A memory row, in order."""
        if name not in _EVENTS:  # the place of the thread's last block
            if thread in self._last:
                file, _, line = name.rpartition(":")
                frame = {"filename": file or name, "line": int(line) if line.isdigit() else 0, "name": ""}
                self._last.pop(thread)["frames"] = [frame]
            return
        size = abs(allocated - self._allocated)
        grown, self._allocated, self._reserved = reserved - self._reserved, allocated, reserved
        if name == "alloc":
            self._blocks[row] = self._address, size
            self._last[thread] = self._entry(time, "alloc", self._address, size)
            self._address += -(-size // _ALIGNED) * _ALIGNED
        elif name == "free" and link in self._blocks:
            address, size = self._blocks.pop(link)
            self._entry(time, "free_requested", address, size)
            self._entry(time, "free_completed", address, size)
        elif name in ("segment_alloc", "segment_free") and grown:
            self._entry(time, name, 0, abs(grown))
        elif name == "oom":
            self._entry(time, "oom", 0, max(0, seq))

    def _entry(self, time: int, action: str, address: int, size: int) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "action": action,
            "addr": address,
            "size": size,
            "stream": 0,
            "time_us": time // 1000,
            "frames": [],
        }
        if action == "oom":
            entry["device_free"] = 0
        self.entries.append(entry)
        return entry
