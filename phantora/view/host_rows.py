"""Activity of each host thread in a step, by phase: the lanes above a rank's streams."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from phantora.trace.analysis.annotations import Annotations
from phantora.trace.analysis.steps import BACKWARD as NAMES_BACKWARD
from phantora.trace.reader import Log
from phantora.trace.schema import KIND_CODE, OPTIMIZER_STEP

FORWARD, BACKWARD, OPTIMIZER, WAITS = PHASES = ("forward", "backward", "optimizer", "waits for the GPU")
_COLUMNS = ("kind", "rank", "stream", "start", "end", "name", "op", "shape")

Rows = dict[str, npt.NDArray[np.int64]]


def host_rows(log: Log, bounds: Mapping[int, tuple[int, int]]) -> Rows:
    """The outermost operators and waits of every host thread, cut at `bounds` (ns by rank).

    `stream` is -1 for thread 0, -2 for thread 1, and so on; `phase` is an index of PHASES. A thread whose operators
    include a backward one runs the backward pass. An operator that waits for the GPU counts as a wait."""
    ranks = sorted(bounds)
    parts: list[Rows] = []
    for batch in log.batches(_COLUMNS, ("operator", "sync"), ranks):
        begin, end = (np.array([bounds[r][side] for r in batch["rank"].tolist()], np.int64) for side in (0, 1))
        keep = (batch["end"] > begin) & (batch["start"] < end) & (batch["end"] > batch["start"])
        parts.append({column: batch[column][keep].astype(np.int64) for column in _COLUMNS})
    rows = {column: np.concatenate([part[column] for part in parts]) for column in _COLUMNS}
    lane = rows["rank"] * (int(rows["stream"].max(initial=0)) + 1) + rows["stream"]
    order = np.lexsort((-rows["end"], rows["start"], lane))
    rows, lane = {column: values[order] for column, values in rows.items()}, lane[order]
    outermost = _outermost(rows["start"], rows["end"], lane)
    kept, parent = np.flatnonzero(outermost), np.cumsum(outermost) - 1
    waits = np.zeros(len(kept), np.bool_)
    waits[parent[rows["kind"] == KIND_CODE["sync"]]] = True
    phase = _phases(log, ranks, {column: values[kept] for column, values in rows.items()}, lane[kept])
    rows = {column: values[kept] for column, values in rows.items() if column != "kind"}
    begin, end = (np.array([bounds[r][side] for r in rows["rank"].tolist()], np.int64) for side in (0, 1))
    rows["start"], rows["end"] = np.maximum(rows["start"], begin), np.minimum(rows["end"], end)
    return {**rows, "stream": -1 - rows["stream"], "phase": np.where(waits, PHASES.index(WAITS), phase)}


def thread_name(stream: int, backward: bool) -> str:
    """Name of the lane `stream` (negative)."""
    return "host, backward" if backward else "host" if stream == -1 else f"host, thread {-1 - stream}"


def _outermost(
    start: npt.NDArray[np.int64], end: npt.NDArray[np.int64], lane: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """True for rows that lie in no earlier one of their lane; rows are ordered by lane and start, longest first."""
    if not len(start):
        return np.zeros(0, np.bool_)
    origin, span = start.min(), end.max() - start.min() + 1
    reach = np.maximum.accumulate(end - origin + lane * span)
    outside: npt.NDArray[np.bool_] = start - origin + lane * span >= np.concatenate([[-1], reach[:-1]])
    return outside


def _phases(log: Log, ranks: list[int], rows: Rows, lane: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    words = np.array([bool(NAMES_BACKWARD.search(word)) for word in log.words("name")] + [False])
    backward = np.isin(lane, np.unique(lane[words[rows["name"]]]))
    position = np.searchsorted(ranks, rows["rank"])
    stepping = Annotations(log, ranks).within(OPTIMIZER_STEP, position, rows["start"])
    found = np.where(backward, PHASES.index(BACKWARD), PHASES.index(FORWARD))
    return np.where(stepping, PHASES.index(OPTIMIZER), found)
