"""Each rank's memory over time, and what its peak is made of.

The log has a row for each block that the framework's allocator hands out or takes back; a free is linked
to its allocation. What a block contains follows from when it was allocated, by which thread, and how
long it lived (docs/analysis.md); nothing is guessed from sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from phantora.trace.analysis.annotations import MODULE, Annotations
from phantora.trace.analysis.memory_growth import growth
from phantora.trace.analysis.memory_rows import (
    NEVER,
    Blocks,
    MemoryRows,
    blocks_of,
    end_of_work,
    places_of,
    read_memory,
)
from phantora.trace.analysis.report import FailedAllocation, Growth, MemoryBlock, MemoryReport, PeakRange
from phantora.trace.analysis.steps import Step, Steps
from phantora.trace.analysis.watchdog_uncertainty import peak_range, uncertain_blocks
from phantora.trace.reader import Log
from phantora.trace.schema import OPTIMIZER_STEP
from phantora.wire.shared import (
    CHECKPOINTS,
    EVALUATED,
    EXPECTED,
    GRADIENTS,
    GRAPH,
    KEPT,
    NO_GRADIENTS,
    OWN_GRAPHS,
    USE_LEAST,
)

Ints = npt.NDArray[np.int64]
POINTS = 500  # of the timeline
_COMMUNICATION = ("FSDP::", "nccl:")
DDP = "DistributedDataParallel.forward"
_PRODUCTS = ("gemm", "attention", "convolution", "embedding")  # classes of kernels that a model's first layer runs
MOST_BLOCKS = 2_000  # whose operators are looked up
MOST_SITES = 8
_ROUNDED = 0.01  # of a model's parameters: the allocator rounds them up
CATEGORIES = (
    "parameters",
    "gradients",
    "optimizer",
    "activations",
    "checkpoints",
    "communication",
    "workspaces",
    "preconditioners",
    "buffers",
    "data",
    "kept",
    "other",
    "fragmentation",
)
_CODE = {name: code for code, name in enumerate(CATEGORIES)}


def memory(
    log: Log, ranks: Sequence[int], steps: Steps, annotations: Annotations, fatal: bool = False
) -> list[MemoryReport]:
    """One report per rank that has memory rows; the peak is that of the steps reported on. With `fatal` a failed
    allocation ended the run: of the ranks where one failed, what they held then takes the place of the peak."""
    read = read_memory(log, ranks)
    peaks = [_peak(rows, steps.of_rank[rank], fatal) for rank, rows in zip(ranks, read, strict=True)]
    blocks = [blocks_of(rows) for rows in read]
    words, products = log.words("name"), _first_products(log, ranks)
    moments = [
        np.append(_moments(rows, peak, own), products.get(rank, -1))
        for rank, rows, peak, own in zip(ranks, read, peaks, blocks, strict=True)
    ]
    operators = _operators_at(log, ranks, moments)
    enqueued = _enqueued(log, ranks, read)
    found = []
    for i, (rank, rows, peak) in enumerate(zip(ranks, read, peaks, strict=True)):
        if peak < 0:
            continue
        time = int(rows.time[peak])
        step = next((s.number for s in steps.of_rank[rank] if s.host[0] <= time <= s.host[1]), None)
        product = products.get(rank, NEVER)
        operator = operators[i].get(product)
        first_product = operator.start if operator is not None else product  # it makes room for its output first
        kind = _kinds(rows, blocks[i], i, annotations, first_product)
        _apply_uses(kind, rows, blocks[i], words, first_product, fatal)
        by_time = _by_category(rows, blocks[i], kind)
        by_category, alive = _at_peak(rows, peak, blocks[i], kind, operators[i].get(time))
        sites = places_of(rows, blocks[i])
        modules = _modules(annotations, i, blocks[i].start)
        lowest, highest = _range(rows, blocks[i], _inside(rows, steps.of_rank[rank]), enqueued[i])
        found.append(
            MemoryReport(
                rank=rank,
                peak_time=time,
                peak_step=step,
                peak_allocated=int(rows.allocated[peak]),
                peak_reserved=int(rows.reserved.max()),
                capacity=log.metadata.memory_of(rank),
                by_category=by_category,
                timeline=_timeline(rows),
                timeline_by_category=by_time,
                largest=_largest(blocks[i], kind, alive, operators[i], _Origin(words, sites, modules)),
                out_of_memory=bool(rows.oom.any()),
                failed=_failed(rows, words),
                lowest_peak=lowest,
                highest_peak=highest,
                retries=rows.retries,
                by_module=_by_module(blocks[i], alive, words, modules),
                kept_by=_kept_by(blocks[i], alive, words),
                passes=_passes(rows, blocks[i], alive, words),
                expected=_expected(rows, words),
            )
        )
    return found


def peak_and_growth(
    log: Log, ranks: Sequence[int], steps: Steps, annotations: Annotations
) -> tuple[PeakRange | None, Growth | None]:
    """Range of the rank whose peak may be highest, in the reported steps; the growth of the rank that grows most."""
    read = read_memory(log, ranks)
    enqueued = _enqueued(log, ranks, read)
    words, found = log.words("name"), []
    grown = []
    for i, (rank, rows) in enumerate(zip(ranks, read, strict=True)):
        ends = [s[1] for s in annotations.spans[i] if annotations.names[s[2]].startswith(OPTIMIZER_STEP)]
        grown.append(growth(rank, rows, ends or _ends(steps, rank), words, log.metadata.memory_of(rank)))
    for rank, rows, launches in zip(ranks, read, enqueued, strict=True):
        inside = _inside(rows, steps.of_rank[rank])
        if len(rows.time):
            peak = int(rows.allocated[inside].max())
            found.append(PeakRange(rank, peak, *_range(rows, blocks_of(rows), inside, launches)))
    growing = max(filter(None, grown), key=lambda g: (g.bytes, -g.rank), default=None)
    return max(found, key=lambda peak: (peak.highest, -peak.rank), default=None), growing


def _ends(steps: Steps, rank: int) -> list[int]:
    """Ends of a rank's steps on the host, ns; none where none were found."""
    return [] if steps.source == "run" else [step.host[1] for step in steps.of_rank[rank]]


def _range(rows: MemoryRows, blocks: Blocks, inside: npt.NDArray[np.bool_], enqueued: Ints) -> tuple[int, int]:
    """The lowest and the highest peak (bytes) of the rows `inside`."""
    kept = _kept_by_watchdog(rows, blocks)
    late = np.flatnonzero(_freed_by_watchdog(rows, blocks) | (kept >= 0))
    uncertain = uncertain_blocks(
        rows.time, blocks.row[late], blocks.freed[late], blocks.size[late], kept[late], enqueued
    )
    return peak_range(rows.time, rows.allocated, inside, uncertain)


def _moments(rows: MemoryRows, peak: int, blocks: Blocks) -> Ints:
    """Times at which the peak and its largest blocks were made."""
    if peak < 0:
        return np.zeros(0, np.int64)
    alive = np.flatnonzero((blocks.row <= peak) & ((blocks.freed < 0) | (blocks.freed > peak)))
    largest = alive[np.argsort(-blocks.size[alive], kind="stable")][:MOST_BLOCKS]
    moments: Ints = np.append(blocks.start[largest], rows.time[peak])
    return moments


def _peak(rows: MemoryRows, steps: Sequence[Step], fatal: bool) -> int:
    """The first row with the most bytes allocated in any of the steps, or that of the allocation whose failure was
    `fatal`; -1 without rows."""
    if not len(rows.time):
        return -1
    if fatal and rows.oom.any():
        return int(np.flatnonzero(rows.oom)[-1])
    return int(np.argmax(np.where(_inside(rows, steps), rows.allocated, -1)))


def _inside(rows: MemoryRows, steps: Sequence[Step]) -> npt.NDArray[np.bool_]:
    """True for rows in any of the steps; for all, if none is in a step."""
    inside = np.zeros(len(rows.time), bool)
    for step in steps:
        inside |= (rows.time >= step.host[0]) & (rows.time <= step.host[1])
    if not bool(inside.any()):
        inside[:] = True
    return inside


def _first_products(log: Log, ranks: Sequence[int]) -> dict[int, int]:
    """Start (ns) of each rank's first kernel that only a model's forward pass runs; ranks without one are left out."""
    product = np.array([word in _PRODUCTS for word in log.words("cls")] + [False])
    found: dict[int, int] = {}
    for batch in log.batches(("rank", "launch", "cls"), kinds=("kernel",), ranks=ranks):
        own = batch["rank"][product[batch["cls"]]]
        launch = batch["launch"][product[batch["cls"]]]
        for rank in set(np.unique(own).tolist()) - found.keys():
            found[rank] = int(launch[own == rank].min())
        if len(found) == len(ranks):
            break
    return found


def _kinds(rows: MemoryRows, blocks: Blocks, position: int, annotations: Annotations, first_product: int) -> Ints:
    """The use of each block, as index of CATEGORIES; workspaces of single operators are not separated here."""
    start, end, backward = blocks.start, blocks.end, blocks.thread != 0
    words = annotations.names
    spans = annotations.spans[position]
    optimizers = [s for s in spans if words[s[2]].startswith(OPTIMIZER_STEP)]
    kind = np.full(len(start), _CODE["activations"])
    named = np.array([word.startswith(_COMMUNICATION) for word in words] + [False])
    communication = named[annotations.at(np.full(len(start), position), start)]
    if not optimizers:  # the run did not get so far, or only runs a model
        kind[communication] = _CODE["communication"]
        kind[start < first_product] = _CODE["other"]
        kept = end > end_of_work(rows)
        older = "parameters" if first_product < NEVER else "data"  # no model ran
        kind[~backward & (start < first_product) & kept] = _CODE[older]
        kind[backward & kept] = _CODE["gradients"]
        return kind
    begins = np.array([s[0] for s in optimizers], np.int64)
    stops = np.array([s[1] for s in optimizers], np.int64)
    following = np.searchsorted(begins, start, "right")
    next_one = np.append(begins, NEVER - 1)[following]
    survives = end > next_one  # is there when the optimizer begins
    last = int(stops[-1])
    first_backward = int(rows.time[rows.thread != 0].min(initial=last))
    # What a forward pass makes is gone when the optimizer has run, but for outputs that the script keeps.
    outlives = end > np.append(stops, NEVER)[following]
    kind[~backward & survives & outlives & (following < len(begins))] = _CODE["other"]
    kind[backward & survives & (following < len(begins))] = _CODE["gradients"]
    kind[(start < max(int(begins[0]), first_backward)) & ~backward & (end >= last)] = _CODE["parameters"]
    inside = (following > 0) & (start < np.append(stops, 0)[following - 1])
    stays = inside & (end > np.append(stops, 0)[following - 1])
    kind[stays] = _CODE["optimizer"]
    kind[inside & ~stays] = _CODE["workspaces"]
    settled = np.isin(kind, [_CODE[c] for c in ("parameters", "gradients", "optimizer")])
    kind[communication & ~settled] = _CODE["communication"]
    forwards = [s for s in spans if words[s[2]] == DDP]
    buckets = (
        _buckets(rows, blocks, forwards, begins) if len(forwards) > 1 else _first_bucket(rows, blocks, forwards, words)
    )
    kind[buckets] = _CODE["communication"]
    return kind


def _apply_uses(
    kind: Ints, rows: MemoryRows, blocks: Blocks, words: Sequence[str], first_product: int, fatal: bool
) -> None:
    """Changes `kind` by what the program has blocks for. What only lives as long as parameters is none of them, where
    these are known: data if it is older than the model's first product."""
    used = blocks.use >= 0
    codes = np.array([_use_code(word) for word in words] + [-1])
    code = codes[blocks.use]
    known = bool((used & (code != _CODE["workspaces"])).any())  # the program's objects were read
    if known:
        unnamed = ~used & (kind == _CODE["parameters"]) & (blocks.size >= USE_LEAST)
        old = blocks.start < first_product
        kind[unnamed & old], kind[unnamed & ~old] = _CODE["data"], _CODE["other"]
    if fatal and rows.oom.any() and known:  # with the gradients of parameters
        passing = ~used & (kind == _CODE[GRADIENTS]) & (blocks.end > end_of_work(rows)) & (blocks.size >= USE_LEAST)
        kind[passing] = _CODE["activations"]  # gradients of activations, on their way
    own = used & (code >= 0) & ~((code == _CODE[GRADIENTS]) & (kind == _CODE["communication"]))
    kind[own] = code[own]
    passing = np.array([word in (NO_GRADIENTS, EVALUATED) for word in words] + [False])[blocks.use]
    kind[used & passing & (blocks.start < first_product)] = _CODE["data"]  # no pass has begun
    kept = own & (code == _CODE["kept"])
    if not bool(kept.any()):
        return
    other = ~used & (kind == _CODE["other"])
    if any(words[use].endswith(GRAPH) for use in np.unique(blocks.use[kept]).tolist()):
        kind[other & (blocks.end > end_of_work(rows))] = _CODE["kept"]  # the graph's
    like = other & np.isin(blocks.size, blocks.size[kept])  # of later iterations, whose containers were not read
    kind[like & (blocks.start > blocks.start[kept].min())] = _CODE["kept"]


def _use_code(word: str) -> int:
    """Index of CATEGORIES of the use `word`; -1 if it is none."""
    name = "kept" if word.startswith(KEPT) else "activations" if word in (NO_GRADIENTS, EVALUATED) else word
    return _CODE.get(name, -1)


def _buckets(
    rows: MemoryRows, blocks: Blocks, forwards: Sequence[tuple[int, int, int]], optimizers: Ints
) -> npt.NDArray[np.bool_]:
    """Blocks of DistributedDataParallel's buckets: it makes them anew at the start of its second forward pass, where it
    lets go of those that it was built with, which NCCL's watchdog may keep for longer. All else that its forward passes
    allocate are activations."""
    (first, _, _), (begin, stop, _) = forwards[:2]
    let_go = (blocks.end <= stop) | _freed_by_watchdog(rows, blocks) | (_kept_by_watchdog(rows, blocks) >= 0)
    replaced = (blocks.start < first) & (blocks.end >= begin) & let_go
    second = int(np.searchsorted(optimizers, begin))
    later = int(optimizers[second + 1]) if second + 1 < len(optimizers) else NEVER - 1
    made = (blocks.start >= begin) & (blocks.start <= stop) & (blocks.end > later) & (blocks.thread == 0)
    found: npt.NDArray[np.bool_] = replaced | made
    return found


def _first_bucket(
    rows: MemoryRows, blocks: Blocks, forwards: Sequence[tuple[int, int, int]], words: Sequence[str]
) -> npt.NDArray[np.bool_]:
    """The bucket that DistributedDataParallel was built with, if the run ends before its second forward pass: it has
    room for the gradients of all parameters."""
    named = np.array([word == "parameters" for word in words] + [False])[blocks.use]
    gradients = int(blocks.size[named].sum()) if forwards else 0
    found: npt.NDArray[np.bool_] = (
        (blocks.use < 0)
        & (blocks.end > end_of_work(rows))
        & (np.abs(blocks.size - gradients) < _ROUNDED * gradients)
        & (blocks.start < min((begin for begin, _, _ in forwards), default=0))
    )
    return found


def _operators_at(log: Log, ranks: Sequence[int], moments: Sequence[Ints]) -> list[dict[int, _Operator]]:
    """By rank and moment the innermost operator that runs then, of the thread that runs it."""
    found: list[dict[int, _Operator]] = [{} for _ in ranks]
    position = {rank: i for i, rank in enumerate(ranks)}
    shapes, names = log.words("shape"), log.words("op")
    wanted = [np.unique(own) for own in moments]
    for batch in log.batches(("rank", "start", "end", "stream", "op", "shape"), kinds=("operator",), ranks=ranks):
        for rank in np.unique(batch["rank"]).tolist():
            own = wanted[position[rank]]
            rows = np.flatnonzero(batch["rank"] == rank)
            start, end = batch["start"][rows], batch["end"][rows]
            first, last = np.searchsorted(own, start, "left"), np.searchsorted(own, end, "right")
            for i in np.flatnonzero(last > first).tolist():
                row = rows[i]
                op, shape = int(batch["op"][row]), int(batch["shape"][row])
                text = names[op] if op >= 0 else "", shapes[shape] if shape >= 0 else ""
                operator = _Operator(int(start[i]), int(end[i]), int(batch["stream"][row]), *text)
                for moment in own[first[i] : last[i]].tolist():
                    before = found[position[rank]].get(moment)
                    if before is None or operator.start >= before.start:
                        found[position[rank]][moment] = operator
    return found


@dataclass(frozen=True)
class _Operator:
    start: int
    end: int
    thread: int
    name: str
    shape: str


def _at_peak(
    rows: MemoryRows, peak: int, blocks: Blocks, kind: Ints, running: _Operator | None
) -> tuple[dict[str, int], Ints]:
    """Bytes alive at row `peak` by category, and the blocks."""
    alive = np.flatnonzero((blocks.row <= peak) & ((blocks.freed < 0) | (blocks.freed > peak)))
    if running is not None:  # what it allocated and frees again is its workspace
        inside = (blocks.start[alive] >= running.start) & (blocks.end[alive] <= running.end)
        kind[alive[inside & (blocks.thread[alive] == running.thread)]] = _CODE["workspaces"]
    sums = np.bincount(kind[alive], blocks.size[alive], len(CATEGORIES)).astype(np.int64)
    found = {name: int(value) for name, value in zip(CATEGORIES, sums, strict=True)}
    allocated = int(rows.allocated[peak])
    found["other"] += allocated - int(sums.sum())  # blocks from before the log's first memory row
    found["fragmentation"] = int(rows.reserved[peak]) - allocated
    return {name: value for name, value in found.items() if value}, alive


@dataclass
class _Origin:
    """Place of the program at the creation of each block: indices of words, -1 unknown."""

    words: list[str]
    site: Ints
    module: Ints

    def of(self, block: int) -> tuple[str, str]:
        site, module = int(self.site[block]), int(self.module[block])
        return (self.words[site] if site >= 0 else "", _module_name(self.words[module]) if module >= 0 else "")


def _module_name(word: str) -> str:
    return word.removeprefix(MODULE)


def _modules(annotations: Annotations, position: int, start: Ints) -> Ints:
    """The nn.Module that ran when each block was made, as index of words; -1 for none."""
    known = np.array([word.startswith(MODULE) for word in annotations.names] + [False])
    if not known.any():
        return np.full(len(start), -1, np.int64)
    name = annotations.at(np.full(len(start), position), start)
    return np.where(known[name], name, -1)


def _by_module(blocks: Blocks, alive: Ints, words: list[str], modules: Ints) -> dict[str, int]:
    """Bytes of the blocks `alive` by module, the most first; "" for what none allocated."""
    if not (modules >= 0).any():
        return {}
    sums = np.bincount(modules[alive] + 1, blocks.size[alive], len(words) + 1)
    order = sorted(np.flatnonzero(sums).tolist(), key=lambda i: (-sums[i], i))
    return {_module_name(words[i - 1]) if i else "": int(sums[i]) for i in order}


def _kept_by(blocks: Blocks, alive: Ints, words: list[str]) -> str:
    """What keeps most bytes of the blocks `alive`; "" where nothing is kept."""
    kept = alive[np.array([word.startswith(KEPT) for word in words] + [False])[blocks.use[alive]]]
    return words[int(np.bincount(blocks.use[kept], blocks.size[kept]).argmax())].removeprefix(KEPT) if len(kept) else ""


def _passes(rows: MemoryRows, blocks: Blocks, alive: Ints, words: list[str]) -> str:
    """:attr:`MemoryReport.passes` from the uses of the blocks `alive`."""
    uses = {words[use] for use in np.unique(blocks.use[alive]).tolist() if use >= 0}
    uses |= {OWN_GRAPHS} & {words[use] for use in np.unique(rows.use[rows.use >= 0]).tolist()}
    return next((use for use in (NO_GRADIENTS, EVALUATED, OWN_GRAPHS, CHECKPOINTS) if use in uses), "")


def _expected(rows: MemoryRows, words: list[str]) -> int:
    """:attr:`MemoryReport.expected`."""
    named = [words[use] for use in np.unique(rows.use[rows.use >= 0]).tolist()]
    return max((int(word.removeprefix(EXPECTED)) for word in named if word.startswith(EXPECTED)), default=0)


def _enqueued(log: Log, ranks: Sequence[int], read: Sequence[MemoryRows]) -> list[Ints]:
    """Host times at which each rank enqueued communication, ns, ascending; none where no thread freed what a watchdog
    had let go of."""
    if not any((rows.free & (rows.asked >= 0)).any() for rows in read):
        return [np.zeros(0, np.int64)] * len(ranks)
    found: list[list[npt.NDArray[np.generic]]] = [[] for _ in ranks]
    for batch in log.batches(("rank", "launch"), kinds=("collective", "sendrecv"), ranks=ranks):
        for own, rank in zip(found, ranks, strict=True):
            own.append(batch["launch"][batch["rank"] == rank])
    return [np.sort(np.concatenate(own).astype(np.int64)) if own else np.zeros(0, np.int64) for own in found]


def _kept_by_watchdog(rows: MemoryRows, blocks: Blocks) -> Ints:
    """ns from the watchdog's poll that let go of a block to its free by another thread; -1 of other blocks."""
    return np.where(blocks.freed >= 0, rows.asked[np.maximum(blocks.freed, 0)], -1)


def _freed_by_watchdog(rows: MemoryRows, blocks: Blocks) -> npt.NDArray[np.bool_]:
    """Blocks that a thread freed which never made any."""
    found: npt.NDArray[np.bool_] = (blocks.freed >= 0) & ~np.isin(
        rows.thread[np.maximum(blocks.freed, 0)], np.unique(blocks.thread)
    )
    return found


def _failed(rows: MemoryRows, words: list[str]) -> FailedAllocation | None:
    """The last allocation that failed and was not met by freeing what was cached."""
    failed = np.flatnonzero(rows.oom)
    if not len(failed):
        return None
    last = int(failed[-1])
    later = np.flatnonzero((rows.site >= 0) & (rows.thread == rows.thread[last]))
    place = int(np.searchsorted(later, last))
    site = words[int(rows.site[later[place]])] if place < len(later) else ""
    return FailedAllocation(int(rows.time[last]), max(0, int(rows.asked[last])), site)


def _largest(
    blocks: Blocks, kind: Ints, alive: Ints, operators: dict[int, _Operator], origin: _Origin
) -> list[MemoryBlock]:
    """Largest of the blocks `alive`, equal ones together."""
    sums: dict[tuple[int, str, str, str, str], list[int]] = {}
    for i in alive[np.argsort(-blocks.size[alive], kind="stable")][:MOST_BLOCKS].tolist():
        operator = operators.get(int(blocks.start[i]))
        made = (operator.name, operator.shape) if operator else ("", "")
        total = sums.setdefault((int(kind[i]), *made, *origin.of(i)), [0, 0])
        total[0] += int(blocks.size[i])
        total[1] += 1
    order = sorted(sums.items(), key=lambda item: (-item[1][0], item[0]))
    return [
        MemoryBlock(
            category=CATEGORIES[code], operator=operator, shape=shape, bytes=size, count=count, site=site, module=module
        )
        for (code, operator, shape, site, module), (size, count) in order[:MOST_SITES]
    ]


def _by_category(rows: MemoryRows, blocks: Blocks, kind: Ints) -> dict[str, list[int]]:
    """Bytes by category at the moments of the timeline: at the highest level of each stretch."""
    at = _highest(rows)
    found: dict[str, list[int]] = {}
    for code, name in enumerate(CATEGORIES[:-1]):
        own = kind == code
        change = np.zeros(len(rows.time), np.int64)
        np.add.at(change, blocks.row[own], blocks.size[own])
        freed = own & (blocks.freed >= 0)
        np.subtract.at(change, blocks.freed[freed], blocks.size[freed])
        level = np.cumsum(change)[at]
        if level.any():
            found[name] = level.tolist()
    return found


def _slots(rows: MemoryRows) -> tuple[Ints, int, int]:
    begin, end = int(rows.time[0]), int(rows.time[-1])
    width = max(1, -(-(end - begin + 1) // POINTS))
    return (rows.time - begin) // width, begin, width


def _highest(rows: MemoryRows) -> Ints:
    """The row of the highest level of each stretch of the timeline."""
    slot, _, _ = _slots(rows)
    order = np.lexsort((np.arange(len(slot)), -rows.allocated, slot))
    found: Ints = order[np.flatnonzero(np.append(True, slot[order][1:] != slot[order][:-1]))]
    return found


def _timeline(rows: MemoryRows) -> list[tuple[int, int, int]]:
    """Highest level of each of at most POINTS stretches of equal length."""
    slot, begin, width = _slots(rows)
    first = np.flatnonzero(np.append(True, slot[1:] != slot[:-1]))
    allocated = np.maximum.reduceat(rows.allocated, first)
    reserved = np.maximum.reduceat(rows.reserved, first)
    times = begin + slot[first] * width
    return list(zip(times.tolist(), allocated.tolist(), reserved.tolist(), strict=True))
