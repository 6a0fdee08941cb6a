"""The device's rows of one step and the critical path through them, as an Arrow stream for the browser.

Columns are the log's, cut at the step's bounds and ordered by rank, stream and start: a track's rows lie together. What
has no text has the word ""; `module` is the nn.Module that launched the row. Host threads have the streams -1, -2, ...;
the class of their rows is a phase (``host_rows.py``). The schema's metadata contains, as JSON under
``phantora.step``, the step's number, its `origin` and `length` (ns), the names of its `streams` by ``RANK:STREAM``, and
its `path`: (rank, stream, start, end) of each piece on a GPU.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from phantora.errors import PhantoraError
from phantora.trace.analysis.annotations import MODULE, Annotations
from phantora.trace.analysis.report import Report
from phantora.trace.analysis.stream_names import stream_names
from phantora.trace.export.plan import track_key
from phantora.trace.reader import Log
from phantora.trace.schema import DEVICE_KINDS
from phantora.view.host_rows import BACKWARD, PHASES, host_rows, thread_name

METADATA_KEY = "phantora.step"
_TEXTS = ("name", "op", "cls", "shape", "provenance")
MOST_HOSTS = 16  # ranks whose host threads are shown: of more, the first
_COLUMNS = ("rank", "stream", "start", "end", "ready", "launch", "error", "flops", "bytes", *_TEXTS)


def step_rows(log: Log, report: Report, number: int, ranks: Collection[int] = ()) -> bytes:
    """Rows of `ranks`, or of all of `report`'s, that lie in step `number` at least in part.

    Raises PhantoraError for a step that the report does not have."""
    bounds = {rank.rank: (s.start, s.end) for rank in report.ranks for s in rank.steps if s.number == number}
    if not bounds:
        raise PhantoraError(f"{report.path}: no step {number}")
    if ranks:
        bounds = {rank: own for rank, own in bounds.items() if rank in ranks}
        if not bounds:
            raise PhantoraError(f"{report.path}: no such ranks in step {number}")
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
        parts.append({column: batch[column][keep] for column in _COLUMNS})
    if not any(len(part["end"]) for part in parts):
        raise PhantoraError(f"{report.path}: no GPU did anything in step {number}")
    rows = {column: np.concatenate([part[column] for part in parts]) for column in _COLUMNS}
    order = np.lexsort((rows["start"], track_key(rows["rank"], rows["stream"])))
    rows = {column: values[order] for column, values in rows.items()}
    for column in ("start", "end"):
        rows[column] = rows[column].clip(begin[rows["rank"]], end[rows["rank"]])
    rows["ready"] = rows["ready"].clip(rows["start"], rows["end"])  # -1: waits for nobody
    paths = report.details.critical_paths if report.details else []
    segments = [segment for path in paths if path.step == number for segment in path.segments if segment.stream >= 0]
    rows["module"], words = _modules(log, sorted(bounds), rows)
    streams = {f"{r}:{s}": name for (r, s), name in stream_names(log, bounds).items()}
    streams |= _add_hosts(log, dict(sorted(bounds.items())[:MOST_HOSTS]), rows)
    about = {
        "streams": streams,
        "step": number,
        "origin": origin,
        "length": whole - origin,
        "path": [(s.rank, s.stream, s.start, s.end) for s in segments],
    }
    return _stream(log, rows, about, words)


def _add_hosts(log: Log, bounds: dict[int, tuple[int, int]], rows: dict[str, npt.NDArray[Any]]) -> dict[str, str]:
    """Puts the host threads' rows before each rank's streams; gives the names of their tracks."""
    own: dict[str, npt.NDArray[Any]] = dict(host_rows(log, bounds))
    size = len(own["start"])
    unknown = {"error": np.full(size, np.nan), "launch": np.full(size, -1), "provenance": np.full(size, -1)}
    own |= {**unknown, "ready": own["start"], "cls": own["phase"] + len(log.words("cls"))}
    for column, values in rows.items():
        rows[column] = np.concatenate([values, own.get(column, np.zeros(size)).astype(values.dtype)])
    first = np.where(rows["stream"] < 0, -rows["stream"] - np.int64(1 << 31), rows["stream"])
    order = np.lexsort((rows["start"], first, rows["rank"]))
    for column, values in rows.items():
        rows[column] = values[order]
    phases: dict[tuple[int, int], set[int]] = {}
    for rank, stream, phase in zip(own["rank"].tolist(), own["stream"].tolist(), own["phase"].tolist(), strict=True):
        phases.setdefault((rank, stream), set()).add(phase)
    return {f"{r}:{s}": thread_name(s, PHASES.index(BACKWARD) in own) for (r, s), own in phases.items()}


def _modules(log: Log, ranks: list[int], rows: dict[str, npt.NDArray[Any]]) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Module that launched each row, as index of the words that are given too; 0 is none."""
    none = np.zeros(len(rows["rank"]), np.int64)
    if not any(word.startswith(MODULE) for word in log.words("name")):
        return none, [""]
    annotations = Annotations(log, ranks)
    words = ["", *(word.removeprefix(MODULE) if word.startswith(MODULE) else "" for word in annotations.names)]
    position = np.searchsorted(ranks, rows["rank"])
    order = np.lexsort((rows["launch"], position))
    none[order] = annotations.at(position[order], rows["launch"][order]) + 1
    return none, words


def _stream(log: Log, rows: dict[str, npt.NDArray[Any]], about: dict[str, Any], modules: list[str]) -> bytes:
    indices = pa.array(rows.pop("module").astype(np.int32))
    arrays = {column: pa.array(values) for column, values in rows.items() if column not in _TEXTS}
    for column in _TEXTS:
        known = [*(log.words(column) or [""]), *(PHASES if column == "cls" else ())]
        words = pa.array(known, pa.utf8())  # the first is "": what -1, no text, becomes
        arrays[column] = pa.DictionaryArray.from_arrays(pa.array(np.maximum(rows[column], 0)), words)
    arrays["module"] = pa.DictionaryArray.from_arrays(indices, pa.array(modules, pa.utf8()))
    fields = [(column, array.type) for column, array in arrays.items()]
    schema = pa.schema(fields, {METADATA_KEY: orjson.dumps(about)})
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, schema) as stream:
        stream.write_batch(pa.record_batch(list(arrays.values()), schema=schema))
    content: bytes = out.getvalue().to_pybytes()
    return content
