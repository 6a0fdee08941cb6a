"""The device's rows of one step and the critical path through them, packed for the canvas.

Little-endian: uint32 length of the header; the header as JSON, padded with blanks to a multiple of 4; then
uint32 arrays `start`, `end`, `ready` and `name`, and uint8 `cls`, each as long as the header's `rows`.
Rows are ordered by track and start. Their times are in the header's `unit` (ns) from its `origin` (ns); those of
its `path` (rank, stream, start, end) in ns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from phantora.errors import PhantoraError
from phantora.trace.analysis.report import Report
from phantora.trace.export.plan import track_key
from phantora.trace.reader import Log
from phantora.trace.schema import COMMUNICATION_KINDS, DEVICE_KINDS, KINDS

_COLUMNS = ("kind", "rank", "stream", "start", "end", "ready", "name", "op", "cls")
_IS_COMMUNICATION = np.array([kind in COMMUNICATION_KINDS for kind in KINDS])


def step_rows(log: Log, report: Report, number: int) -> bytes:
    """Rows of `report`'s ranks that lie in step `number` at least in part, cut at its bounds.

    Raises PhantoraError for a step that the report does not have."""
    bounds = {rank.rank: (s.start, s.end) for rank in report.ranks for s in rank.steps if s.number == number}
    if not bounds:
        raise PhantoraError(f"{report.path}: no step {number}")
    begin, end = (np.zeros(max(bounds) + 1, np.int64) for _ in range(2))
    for rank, (first, last) in bounds.items():
        begin[rank], end[rank] = first, last
    origin, whole = min(b for b, _ in bounds.values()), max(e for _, e in bounds.values())
    parts: list[dict[str, npt.NDArray[Any]]] = []
    for index in range(log.num_batches):
        if int(log.batch(index, ("end",))["end"][-1]) <= origin:  # rows are in order of end
            continue
        batch = log.batch(index, _COLUMNS, DEVICE_KINDS, set(bounds))
        of = batch["rank"]
        keep = np.flatnonzero((batch["end"] > begin[of]) & (batch["start"] < end[of]))
        part = {column: batch[column][keep] for column in _COLUMNS}
        part["start"] = np.maximum(part["start"], begin[part["rank"]])
        part["end"] = np.minimum(part["end"], end[part["rank"]])
        parts.append(part)
    if not any(len(part["end"]) for part in parts):
        raise PhantoraError(f"{report.path}: no GPU did anything in step {number}")
    rows = {column: np.concatenate([part[column] for part in parts]) for column in _COLUMNS}
    paths = report.details.critical_paths if report.details else []
    segments = [segment for path in paths if path.step == number for segment in path.segments if segment.stream >= 0]
    header = {
        "step": number,
        "origin": origin,
        "length": whole - origin,
        "path": [(s.rank, s.stream, s.start, s.end) for s in segments],
    }
    return _pack(log, rows, header, bounds)


def _pack(
    log: Log,
    rows: dict[str, npt.NDArray[Any]],
    header: dict[str, Any],
    bounds: dict[int, tuple[int, int]],
) -> bytes:
    origin, unit = header["origin"], 1 + (header["length"] >> 32)  # times shall fit 32 bits
    key = track_key(rows["rank"], rows["stream"])
    order = np.lexsort((rows["start"], key))
    rows = {column: values[order] for column, values in rows.items()}
    present, first = np.unique(key[order], return_index=True)
    communication = _IS_COMMUNICATION[rows["kind"]]
    words = {column: np.array([*log.words(column), ""], dtype=object) for column in ("name", "op", "cls")}
    # A kernel is known by its operator too: the words of a row are the pair.
    pair = (rows["name"].astype(np.int64) + 1 << 32) | (rows["op"].astype(np.int64) + 1)
    pairs, name = np.unique(pair, return_inverse=True)
    classes, cls = np.unique(words["cls"][rows["cls"]].astype(str), return_inverse=True)
    header |= {
        "unit": unit,
        "rows": len(order),
        "tracks": [
            {
                "rank": track >> 32,
                "stream": track & 0xFFFFFFFF,
                "first": at,
                "communication": bool(communication[at]),
                "bounds": bounds[track >> 32],
            }
            for track, at in zip(present.tolist(), first.tolist(), strict=True)
        ],
        "names": [[words["name"][(p >> 32) - 1], words["op"][(p & 0xFFFFFFFF) - 1]] for p in pairs.tolist()],
        "classes": classes.tolist(),
    }
    text = orjson.dumps(header)
    text += b" " * (-len(text) % 4)
    ready = np.where(communication & (rows["ready"] >= 0), rows["ready"], rows["start"])
    ready = ready.clip(rows["start"], rows["end"])
    times = [(column - origin) // unit for column in (rows["start"], rows["end"], ready)]
    arrays = [column.astype("<u4").tobytes() for column in (*times, name)]
    return b"".join((len(text).to_bytes(4, "little"), text, *arrays, cls.astype(np.uint8).tobytes()))
