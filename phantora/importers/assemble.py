"""One log from the traces of all ranks."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from phantora.errors import PhantoraError
from phantora.hardware import gpu_names, load_gpu
from phantora.hardware.types import Gpu
from phantora.importers import skew
from phantora.importers.communication import complete_calls, join
from phantora.importers.linking import Links, link
from phantora.importers.matching import Matches, match
from phantora.importers.pricing import Pricer
from phantora.importers.rank import CODES, Group, RankTrace, Rows, Vocabulary, is_device
from phantora.importers.recording import Records, idle_recording, missing_for_replay, recording
from phantora.importers.schedule import Ints, Schedule
from phantora.importers.timeline import floors, timeline
from phantora.trace.schema import BATCH_ROWS, COMMUNICATION_KINDS, REAL, RunMetadata, Tables
from phantora.trace.writer import ROW, LogWriter

_PRODUCTS = "gemm"
_FORMATS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}
_NO_LAUNCH = -1


@dataclass(kw_only=True)
class Imported:
    """Result of an import, for the user to read."""

    log: str
    rows: int
    ranks: list[int]
    world_size: int
    gpu: str
    missing: dict[str, str] = field(default_factory=dict)
    """Facts that the traces do not contain -> the option of the profiler that adds them."""
    skews: dict[int, skew.Skew] = field(default_factory=dict)
    """Skews by rank, where collectives show them."""
    matched: int = 0
    """Collectives that several of the ranks took part in."""
    unmatched: int = 0
    """The others, of the rank that has most: a replay takes them for kernels of their recorded time."""
    notes: list[str] = field(default_factory=list)


def assemble(traces: Sequence[RankTrace], words: Vocabulary, output: str, version: str = "") -> Imported:
    """Writes the log of `traces` to `output`.

    Raises PhantoraError for two traces of one rank, and where all are empty."""
    by_rank = _by_rank(traces)
    links: dict[int, Links] = {}
    for rank, trace in by_rank.items():
        links[rank] = link(trace, words)
        complete_calls(trace, links[rank], words)
    matches = match(by_rank, words)
    scheduled = any(trace.schedule is not None for trace in traces)  # on one clock already
    skews = {} if scheduled else skew.estimate(matches, list(by_rank))
    for rank, trace in by_rank.items():
        trace.base -= skews[rank].removed if rank in skews else 0
    origin = min(_begin(trace) for trace in by_rank.values())
    pricer = Pricer(words)
    parts = {rank: _rows(trace, links[rank], pricer, trace.base - origin) for rank, trace in by_rank.items()}
    matched = _collectives(parts, links, matches)
    collectives = (
        int(np.isin(own["kind"], [CODES[kind] for kind in COMMUNICATION_KINDS]).sum()) for own in parts.values()
    )
    unmatched = max(0, max(collectives) - matched) if len(parts) > 1 else 0
    metadata = _metadata(by_rank, parts, words, pricer, skews)
    metadata.phantora = version
    tables = Tables(words.names.words, [], pricer.prices.words)
    tables.signatures += [(operator.signature.name, operator.text) for operator in words.signatures.words]
    groups = _communicators(by_rank, words, tables, parts)
    recordings: dict[int, Records] = {}
    refused = missing_for_replay(by_rank, links, metadata)
    if not refused:
        floor = floors(by_rank.values(), links.values())
        joints = join(by_rank, links, matches, words, metadata.ranks_per_host)
        for rank, trace in by_rank.items():
            plan = trace.schedule or Schedule(timeline(trace, links[rank], floor, words), joints[rank])
            recordings[rank] = recording(trace, links[rank], plan, words, trace.base - origin)
        absent = set(range(metadata.world_size)) - set(by_rank)  # others stand for them
        recordings |= {rank: idle_recording() for rank in absent}
        metadata.extra["imported"] |= {"cluster": metadata.cluster, "floors": asdict(floor)}
    metadata.extra["imported"] |= {"no_replay": refused, "unmatched": unmatched}
    _write(output, metadata, tables, [*parts.values(), groups], recordings)
    return Imported(
        log=output,
        rows=sum(len(part) for part in parts.values()) + len(groups),
        ranks=list(by_rank),
        world_size=metadata.world_size,
        gpu=metadata.gpu,
        missing=metadata.extra["imported"]["missing"],
        skews={rank: found for rank, found in skews.items() if len(by_rank) > 1},
        matched=matched,
        unmatched=unmatched,
        notes=[note for trace in traces for note in trace.notes],
    )


def _by_rank(traces: Sequence[RankTrace]) -> dict[int, RankTrace]:
    found: dict[int, RankTrace] = {}
    for trace in traces:
        if trace.rank in found:
            raise PhantoraError(
                f"{found[trace.rank].source} and {trace.source} are both of rank {trace.rank}; give one file per rank "
                "of one run"
            )
        found[trace.rank] = trace
    if not any(len(trace.rows) for trace in found.values()):
        raise PhantoraError(f"{traces[0].source}: the trace has no events of a rank; was the profiler started?")
    return dict(sorted(found.items()))


def _begin(trace: RankTrace) -> int:
    """Begin of the recording, on the clock that ranks share: the profiler's start, or the first row before that."""
    first = int(trace.rows["start"].min()) if len(trace.rows) else np.iinfo(np.int64).max // 2
    return trace.base + (min(first, trace.origin) if trace.origin is not None else first)


def _rows(trace: RankTrace, links: Links, pricer: Pricer, shift: int) -> Rows:
    """Rows of the log, in the order of the trace."""
    given = trace.rows
    rows = np.zeros(len(given), ROW)
    for column in ("stream", "name", "sig", "comm", "bytes"):
        rows[column] = given[column]
    rows["rank"] = trace.rank
    rows["kind"], rows["id"], rows["link"], rows["value"] = links.kind, links.id, links.link, links.value
    rows["start"], rows["end"] = given["start"] + shift, given["end"] + shift
    rows["launch"] = np.where(links.launch >= 0, links.launch + shift, _NO_LAUNCH)
    for column in ("ready", "seq", "last_rank", "last_id"):
        rows[column] = -1
    rows["price"], rows["part"] = pricer.prices_of(trace, links)
    device = is_device(links.kind)
    has = device & (links.operator >= 0) & ~np.isin(links.kind, [CODES[kind] for kind in COMMUNICATION_KINDS])
    rows["sig"][has] = given["sig"][links.operator[has]]
    return rows


def _collectives(parts: dict[int, Rows], links: dict[int, Links], matches: Sequence[Matches]) -> int:
    """Fills in seq, and where all members are known, when the last arrived and which it was. How many were matched."""
    matched = 0
    for found in matches:
        for rank, sequence in found.sequences.items():
            parts[rank]["seq"][sequence.rows] = np.arange(len(sequence.rows)) + found.first.get(rank, 0)
        if len(found.first) < 2:
            continue
        begin = max(found.first.values())
        stop = min(found.first[rank] + len(found.sequences[rank].rows) for rank in found.first)
        if stop <= begin:
            continue
        matched += stop - begin
        places = {rank: found.sequences[rank].rows[begin - f : stop - f] for rank, f in found.first.items()}
        starts = np.stack([parts[rank]["start"][rows] for rank, rows in places.items()])
        numbers = np.stack([parts[rank]["id"][rows] for rank, rows in places.items()])
        last, every = starts.argmax(0), np.arange(stop - begin)
        ranks = np.array(list(places))
        for rank, rows in places.items():
            own = parts[rank]
            own["ready"][rows] = np.clip(starts.max(0), own["start"][rows], own["end"][rows])
            own["last_rank"][rows], own["last_id"][rows] = ranks[last], numbers[last, every]
    return matched


def _communicators(traces: dict[int, RankTrace], words: Vocabulary, tables: Tables, parts: dict[int, Rows]) -> Rows:
    """A row for each group that a rank uses, at the beginning of the log."""
    made: list[Rows] = []
    for rank, trace in traces.items():
        used = np.unique(trace.rows["comm"])
        for number in used[used >= 0].tolist():
            group: Group = words.groups.words[number]
            row = np.zeros(1, ROW)
            row["kind"], row["rank"], row["stream"], row["comm"] = CODES["communicator"], rank, -1, number
            row["name"], row["price"] = words.names.number(group.purpose or group.name), -1
            row["sig"] = len(tables.signatures)
            tables.signatures.append(("ranks", ",".join(map(str, group.ranks))))
            row["start"] = row["end"] = min(int(part["start"].min()) for part in parts.values() if len(part))
            row["id"] = -2 - number
            for column in ("launch", "ready", "link", "seq", "last_rank", "last_id"):
                row[column] = -1
            made.append(row)
    return np.concatenate(made) if made else np.empty(0, ROW)


def _write(
    output: str, metadata: RunMetadata, tables: Tables, parts: Sequence[Rows], recordings: Mapping[int, Records]
) -> None:
    """All rows in order of their end, then the recordings of the ranks."""
    ends = np.concatenate([part["end"] for part in parts])
    ranks = np.concatenate([part["rank"] for part in parts])
    begins = np.concatenate([part["start"] for part in parts])
    order = np.lexsort((begins, ranks, ends))
    offsets = np.cumsum([0, *(len(part) for part in parts)])
    with LogWriter(output, metadata, tables) as writer:
        for at in range(0, len(order), BATCH_ROWS):
            chosen = order[at : at + BATCH_ROWS]
            batch = np.empty(len(chosen), ROW)
            owner = np.searchsorted(offsets, chosen, "right") - 1
            for position, part in enumerate(parts):
                own = owner == position
                batch[own] = part[chosen[own] - offsets[position]]
            writer.append(batch)
        for rank, records in recordings.items():
            writer.record(rank, records)
        writer.close({"status": 0})


# ---------------------------------------------------------------------- what the run was


def _metadata(
    traces: dict[int, RankTrace], parts: dict[int, Rows], words: Vocabulary, pricer: Pricer, skews: dict[int, skew.Skew]
) -> RunMetadata:
    device = next((trace.device for trace in traces.values() if trace.device.name), next(iter(traces.values())).device)
    world = max(max(traces) + 1, *(trace.world_size for trace in traces.values()))
    per_host = max(1, min(device.per_host or world, world))
    hosts = -(-world // per_host)
    gap, latency = _gaps(traces, parts)
    missing: dict[str, str] = {}
    versions: dict[str, str] = {}
    for trace in traces.values():
        missing |= trace.missing
        versions |= trace.versions
    imported: dict[str, Any] = {
        "files": [os.path.basename(trace.source) for trace in traces.values()],
        "ranks": list(traces),
        "missing": missing,
        "cut_short": any(trace.cut_short for trace in traces.values()),
        "versions": versions,
        "clock_skew_ns": {str(rank): found.ns for rank, found in skews.items() if len(traces) > 1},
        "clock_skew_removed_ns": {str(rank): found.removed for rank, found in skews.items() if found.removed},
    }
    metadata = RunMetadata(
        cluster=f"{hosts}x{per_host}x{device.name or 'unknown GPU'}",
        gpu=device.name,
        world_size=world,
        ranks_per_host=per_host,
        memory_bytes=device.memory_bytes,
        torch=versions.get("torch", ""),
        host_mode=REAL,
        launch_latency_ns=latency,
        kernel_gap_ns=gap,
        crowded_gap_ns=gap,
        mfu_dtype=_product_dtype(parts, words, pricer),
        extra={"imported": imported},
    )
    gpu = _known_gpu(device.name, device.memory_bytes)
    if gpu is None:
        return metadata
    metadata.gpu, metadata.peak_flops = gpu.name, dict(gpu.peak_flops)
    metadata.cluster = f"{hosts}x{per_host}x{gpu.name}"
    return metadata


def _known_gpu(name: str, memory_bytes: int) -> Gpu | None:
    """The GPU that a driver calls `name`; boards have names of their own, ``NVIDIA A100-PG509-200``, but the model is a
    part of them."""
    try:
        return load_gpu(name)
    except PhantoraError:
        words = set(re.split(r"[\s-]+", name.upper()))
        candidates = [load_gpu(known) for known in gpu_names() if _model(known) <= words]
        return min(candidates, key=lambda gpu: abs(gpu.memory_bytes - memory_bytes), default=None)


def _model(name: str) -> set[str]:
    """The words of a GPU's name up to the first with a number: H100, or RTX, PRO and 6000."""
    words = name.upper().split("-")
    last = next((place for place, word in enumerate(words) if re.search(r"\d", word)), len(words) - 1)
    return set(words[: last + 1])


def _product_dtype(parts: dict[int, Rows], words: Vocabulary, pricer: Pricer) -> str:
    """The dtype of most flops of products."""
    totals: dict[str, float] = {}
    for rows in parts.values():
        main = (rows["price"] >= 0) & (rows["part"] == 0) & (rows["sig"] >= 0)
        keys, counts = np.unique(np.stack([rows["price"][main], rows["sig"][main]]), axis=1, return_counts=True)
        for price, sig, count in zip(*keys.tolist(), counts.tolist(), strict=True):
            row = pricer.prices.words[price]
            if row.flops and row.cls == _PRODUCTS:
                form = re.match(r"\w+", words.signatures.words[sig].text)
                dtype = _FORMATS.get(form[0] if form else "", "bfloat16")
                totals[dtype] = totals.get(dtype, 0.0) + row.flops * count
    return max(totals, key=totals.__getitem__, default="bfloat16")


def _gaps(traces: dict[int, RankTrace], parts: dict[int, Rows]) -> tuple[int, int]:
    """Medians over all ranks, in ns: between kernels back to back on a stream, and from a launch to its start where the
    stream is idle."""
    between: list[Ints] = []
    after: list[Ints] = []
    for rows in parts.values():
        device = np.flatnonzero(is_device(rows["kind"]) & (rows["launch"] >= 0))
        if len(device) < 2:
            continue
        order = device[np.lexsort((rows["start"][device], rows["stream"][device]))]
        same = rows["stream"][order][1:] == rows["stream"][order][:-1]
        start, end, launch = rows["start"][order][1:], rows["end"][order][:-1], rows["launch"][order][1:]
        gap, delay = start - end, start - launch
        waiting = same & (launch < end) & (gap >= 0)
        idle = same & (launch > end) & (delay > 0)
        between.append(gap[waiting & (delay > np.maximum(2 * gap, 1))])
        after.append(delay[idle])
    gaps, delays = (np.concatenate(found) if found else np.zeros(0, np.int64) for found in (between, after))
    return int(np.median(gaps)) if len(gaps) else 0, int(np.median(delays)) if len(delays) else 0
