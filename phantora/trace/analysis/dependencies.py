"""Dependencies of each row of a window, from the log's columns (docs/log.md, docs/analysis.md).

A row on a stream follows the row before it there, its launch on the host, and, if it is a stream wait, the
record that its `link` names. A collective's transfer follows its last arrival. The host runs on from the end
of its last wait, which ended with the device row that it waited for.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from phantora.trace.analysis.windows import Window, code, kind_mask
from phantora.trace.schema import COMMUNICATION_KINDS, DEVICE_KINDS, RunMetadata

Ints = npt.NDArray[np.int64]

ON_STREAM = kind_mask((*DEVICE_KINDS, "record", "wait", "host_func"))
COMMUNICATION = kind_mask(COMMUNICATION_KINDS)
WORK = kind_mask((*DEVICE_KINDS, "host_func"))
SPACED = kind_mask(("kernel", "memcpy", "memset"))  # kinds between which streams leave gaps
UNSPACED = kind_mask((*COMMUNICATION_KINDS, "host_func"))  # whose ends leave none
_DELAYED = kind_mask(DEVICE_KINDS)  # kinds whose launch takes the launch latency
WAIT, SYNC, COLLECTIVE = code("wait"), code("sync"), code("collective")
NEVER = np.iinfo(np.int64).min // 2


class Dependencies:
    """Indices into a window's rows; -1 where there is none (any more: it may lie before the window)."""

    def __init__(self, window: Window, meta: RunMetadata) -> None:
        self.window = window
        rows = window.columns
        self.kind, self.rank, self.start, self.end = (rows[c] for c in ("kind", "rank", "start", "end"))
        self.rank = self.rank.astype(np.int64)
        self.stream = rows["stream"].astype(np.int64)
        count = len(self.kind)
        device = np.flatnonzero(ON_STREAM[self.kind])
        key = self.rank[device] * (int(self.stream.max(initial=0)) + 2) + self.stream[device] + 1
        self.queue = device[np.argsort(key, kind="stable")]
        """Rows on streams, by (rank, stream, completion)."""
        lane = np.sort(key, kind="stable")
        same = np.zeros(len(lane), bool)
        same[1:] = lane[1:] == lane[:-1]
        self.previous: Ints = np.full(count, -1, np.int64)
        self.previous[self.queue[same]] = self.queue[np.flatnonzero(same) - 1]

        launch = rows["launch"]
        self.launched: Ints = np.where(
            launch >= 0, launch + np.where(_DELAYED[self.kind], meta.launch_latency_ns, 0), NEVER
        )
        """Time at which the launch reached the GPU."""
        before = self.previous
        since = self.start - self.end[before]
        spaced = SPACED[self.kind] & ~UNSPACED[self.kind[before]] & (since >= meta.kernel_gap_ns)
        crowded = (since > meta.kernel_gap_ns) & (since <= meta.crowded_gap_ns) & (self.launched < self.start)
        gap = np.where(spaced, np.where(crowded, since, meta.kernel_gap_ns), 0)
        self.freed: Ints = np.where(before >= 0, self.end[before] + gap, NEVER)
        """Time at which the row before on the stream was done."""
        self.record: Ints = np.full(count, -1, np.int64)
        """For waits and syncs: the row that they wait for."""
        linked = np.flatnonzero(((self.kind == WAIT) | (self.kind == SYNC)) & (rows["link"] >= 0))
        self.record[linked] = self._find(self.rank[linked], rows["link"][linked], device)

        communication = np.flatnonzero(COMMUNICATION[self.kind])
        self.ready: Ints = np.clip(rows["ready"], self.start, self.end)
        self.partner: Ints = np.full(count, -1, np.int64)
        """For communication that waited: the row whose arrival let it begin."""
        late = communication[self.ready[communication] > self.start[communication]]
        self.partner[late] = self._arrivals(late, communication)

        waited = np.flatnonzero((self.kind == SYNC) & (self.end > self.start))
        self.syncs = waited
        """Host waits that took time, by (rank, end)."""
        self.sync_ends = self.end[waited]
        self.sync_bounds = np.searchsorted(self.rank[waited], np.arange(len(window.bounds)))
        self.release = self._releases(device)
        """For `syncs`: the device row that ended the wait."""

    def _find(self, rank: Ints, row_id: Ints, among: Ints) -> Ints:
        """The rows of `among` that have these ids."""
        ids = self.window["id"]
        if not len(among) or not len(rank):
            return np.full(len(rank), -1, np.int64)
        width = int(max(ids[among].max(), row_id.max(initial=0))) + 1
        keys = self.rank[among] * width + ids[among]
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        wanted = rank * width + row_id
        place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return np.where(keys[place] == wanted, among[order[place]], -1)

    def _arrivals(self, late: Ints, communication: Ints) -> Ints:
        """For rows that waited, a row of the same communicator that arrived at the moment of `ready`."""
        if not len(late):
            return np.zeros(0, np.int64)
        comm = self.window["comm"].astype(np.int64)
        low = int(self.start[communication].min(initial=0))
        width = int(self.end[communication].max(initial=0)) - low + 2
        keys = (comm[communication] + 1) * width + (self.start[communication] - low)
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        wanted = (comm[late] + 1) * width + (self.ready[late] - low)
        place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return np.where(keys[place] == wanted, communication[order[place]], -1)

    def _releases(self, device: Ints) -> Ints:
        """The linked row if it ended then; else the row of the rank that ended last before the host went on
        (a device-wide wait names the row launched last, not the one that ended last)."""
        found = self.record[self.syncs]
        exact = (found >= 0) & (self.end[found] == self.sync_ends)
        bounds = np.searchsorted(device, self.window.bounds)
        ends = self.end[device]
        for i in np.flatnonzero(~exact).tolist():
            sync = int(self.syncs[i])
            low, high = bounds[self.rank[sync] : self.rank[sync] + 2]
            last = int(np.searchsorted(ends[low:high], self.end[sync], "right")) - 1  # a rank's rows are ordered by end
            found[i] = device[low + last] if last >= 0 and ends[low + last] > self.start[sync] else -1
        return found

    def sync_before(self, rank: int, time: int) -> int:
        """Position in `syncs` of the rank's last host wait that ended by `time`, -1 for none."""
        low, high = int(self.sync_bounds[rank]), int(self.sync_bounds[rank + 1])
        place = low + int(np.searchsorted(self.sync_ends[low:high], time, "right")) - 1
        return place if place >= low else -1
