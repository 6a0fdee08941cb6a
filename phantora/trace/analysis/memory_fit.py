"""The fit of a run from the memory of its ranks: the fullest one, with what the framework does not count."""

from __future__ import annotations

from collections.abc import Sequence

from phantora.trace.analysis.communicators import ranges
from phantora.trace.analysis.fit import MARGIN, Fit
from phantora.trace.analysis.host_memory import HostMemory
from phantora.trace.analysis.report import Growth, MemoryReport
from phantora.trace.analysis.units import size
from phantora.wire.shared import CHECKPOINTS, EVALUATED, GRAPH, NO_GRADIENTS, OWN_GRAPHS

_IDENTICAL = 0.01  # of the GPU: ranks that differ by less are not distinguished
_MOST_SHOWN = 8
_MANY_PIECES = 0.05  # of the GPU


def fit_of(
    memory: Sequence[MemoryReport],
    device_peak: int,
    fatal: bool,
    *,
    shared: bool = False,
    growth: Growth | None = None,
    host: HostMemory | None = None,
) -> Fit | None:
    """The fit of a run from the memory of its ranks; None without any.

    `device_peak`: the most bytes of any GPU that were taken at a time (0 if unknown), which is the fullest rank's;
    what it is beyond the allocator's counts as driver, libraries and NCCL for all ranks. `fatal`: an allocation failed
    that the run did not survive. `shared`: several processes have a GPU; the rest of `device_peak` is theirs, too.
    `growth`: that of the rank whose memory grows most. `host`: the memory of the host with the least left."""
    if not memory:
        return None
    fullest = max(memory, key=lambda m: (m.peak_reserved - m.capacity, -m.rank))
    outside = max(0, device_peak - fullest.peak_reserved)
    failed = [m.rank for m in memory if m.out_of_memory]
    if failed and fatal:
        fullest = next(m for m in memory if m.rank == failed[0])
    cached = fullest.peak_reserved - fullest.peak_allocated
    if failed and fatal:  # the allocator had given back what it could
        cached = fullest.by_category.get("fragmentation", cached)
    taken = fullest.peak_allocated + cached + outside
    found = Fit(
        fits=not (failed and fatal) and not (host is not None and host.short),
        rank=fullest.rank,
        taken=taken,
        capacity=fullest.capacity,
        allocated=fullest.peak_allocated,
        cached=cached,
        outside=outside,
        shared=shared,
        left_by_rank={m.rank: m.capacity - (taken if shared else m.peak_reserved + outside) for m in memory},
        failed=failed,
        survived=not fatal,
        asked=fullest.failed.bytes if fullest.failed is not None else 0,
        site=fullest.failed.site if fullest.failed is not None else "",
        by_chance=max(0, fullest.highest_peak - fullest.peak_allocated),
        host=host,
    )
    if failed and fatal:
        found.remedy = (
            f"memory grows by {grows(growth)}: {keep_less(growth)}"
            if growth is not None
            else f"{_in_pieces(fullest, outside)}{_remedy(fullest, outside)}"
        )
        found.holds = _holds(fullest, found)
        more = [f"Memory: {found.holds}.", found.advice]
    else:
        more = [] if shared else [other_ranks(found)]
    says = [found.sentence(), *more]
    if host is not None:
        says.insert(0 if host.short else len(says), host.verdict())
    found.says = [text for text in says if text]
    return found


def other_ranks(found: Fit) -> str:
    """Free memory on the GPUs of all ranks, as a sentence; empty for one rank."""
    left = found.left_by_rank
    if len(left) < 2:
        return ""
    least, most = min(left.values()), max(left.values())
    if most - least < _IDENTICAL * found.capacity:
        text = size(least) if size(least) == size(most) else f"{size(least)} to {size(most)}"
        return f"Each of the {len(left)} ranks has {text} left."
    identical: dict[str, list[int]] = {}
    for rank, free in sorted(left.items(), key=lambda item: (item[1], item[0])):
        identical.setdefault(size(free), []).append(rank)
    shown = [f"{free} on {ranges(tuple(sorted(ranks)))}" for free, ranks in list(identical.items())[:_MOST_SHOWN]]
    more = f", at most {size(most)}" if len(identical) > _MOST_SHOWN else ""
    return f"Left by rank: {', '.join(shown)}{more}."


_SHOWN = 0.001  # of the memory that is taken
_LARGE = 0.04  # of the GPU: blocks that a remedy may be for
_NOT_REPEATED = 3  # blocks of one operator that are not one for each layer
_LOSS = ("log_softmax", "nll_loss", "cross_entropy")
_SMALLER = "a smaller batch or shorter sequences, or tensor or context parallelism"
_OF_CHECKPOINTS = f"torch.autograd.graph.save_on_cpu around the forward pass, {_SMALLER}"
_OF_PASSES = {
    NO_GRADIENTS: "a smaller batch or shorter sequences, or tensor parallelism (nothing is kept for a backward pass)",
    EVALUATED: "torch.no_grad(), as a model in evaluation keeps them for a backward pass",
    OWN_GRAPHS: "torch.no_grad(), or a backward pass after each forward pass, or `.detach()` for what is kept",
}
_LASTING = ("parameters", "gradients", "optimizer", "preconditioners")
_REMEDIES = {
    "activations": f"activation checkpointing, {_SMALLER}",
    "optimizer": "sharding (FSDP, ZeRO) over more ranks, or an optimizer with less state",
    "parameters": "sharding (FSDP, ZeRO) over more ranks, or tensor or pipeline parallelism",
    "gradients": "sharding of gradients (FSDP, ZeRO-2), or accumulating them in fewer bits",
    "communication": "smaller buckets, or fewer layers gathered ahead",
    "fragmentation": "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
}


_TRY = ": try "
_KEEP_DATA = "the data on the CPU (`.cpu()`), with a copy of what a step needs on the GPU, or a smaller type"


def without_split(remedy: str) -> str:
    """`remedy` without the split of the memory where the allocation failed, for a run whose whole need is known."""
    split, found, change = remedy.rpartition(_TRY)
    return f"try {change}" if found and "the largest part is" in split else remedy


def grows(growth: Growth) -> str:
    """``2.2 GiB an iteration, kept by leak.py:27 (outs)``; ``2.2 GiB every 5 iterations``."""
    how = f", {'kept by' if growth.kept else 'allocated at'} {growth.place}" if growth.place else ""
    per = "an iteration" if growth.every == 1 else f"every {growth.every} iterations"
    return f"{size(growth.bytes)} {per}{how}"


def keep_less(growth: Growth) -> str:
    """What makes the memory grow less, by what keeps it."""
    if growth.larger:
        return "fewer or shorter sequences at a time, or a cache of a fixed size"
    return _keep_less(growth.place) if growth.kept else f"{_keep_less(GRAPH)}, or move it to the CPU (`.cpu()`)"


def _keep_less(place: str) -> str:
    if place.endswith(GRAPH):
        return "keep what has no graph (`.detach()`, `.item()`), or run under `torch.no_grad()`"
    if ":" not in place:  # no line adds to it
        return "keep it on the CPU (`.cpu()`) and copy what a step needs, or take a smaller type"
    return "keep it on the CPU (`.cpu()`), or only what is needed of it (`.item()`)"


def _holds(memory: MemoryReport, found: Fit) -> str:
    """What fills a GPU, the largest part first: ``activations 58.00 GiB, parameters 8.00 GiB, driver and NCCL ...``."""
    outside = "driver, NCCL and other processes" if found.shared else "driver and NCCL"
    parts = {**memory.by_category, outside: found.outside}
    shown = sorted(((taken, name) for name, taken in parts.items() if taken >= _SHOWN * found.taken), reverse=True)
    return ", ".join(f"{name} {size(taken)}" for taken, name in shown)


def _in_pieces(memory: MemoryReport, outside: int) -> str:
    """The remedy for cached memory that has room for the failed allocation and a margin, in pieces; "" without."""
    pieces, failed = memory.by_category.get("fragmentation", 0), memory.failed
    if failed is None or not failed.bytes or pieces < _MANY_PIECES * memory.capacity:
        return ""
    if memory.peak_allocated + failed.bytes + outside > (1 - MARGIN) * memory.capacity:
        return ""
    return f"{_REMEDIES['fragmentation']} ({size(pieces)} are cached in pieces); then "


def _mostly_kept(memory: MemoryReport) -> bool:
    """True if most of the memory is of earlier iterations, and what keeps it is known."""
    return bool(memory.kept_by) and memory.by_category.get("kept", 0) > 0.5 * memory.peak_allocated


def _remedy(memory: MemoryReport, outside: int) -> str:
    """Remedy that would make the rank fit, by the largest part of its memory."""
    failed = memory.failed
    lasting = sum(memory.by_category.get(name, 0) for name in _LASTING) + memory.expected
    if lasting + outside > memory.capacity:
        parts = f"parameters, gradients and optimizer alone need {size(lasting)}"
        return f"{parts}: try sharding (FSDP, ZeRO) over more ranks, fewer parameters, or a GPU with more memory"
    if _mostly_kept(memory):
        kept = size(memory.by_category["kept"])
        return f"the largest part is kept ({kept}), most by {memory.kept_by}: {_keep_less(memory.kept_by)}"
    if failed is not None and failed.bytes > memory.peak_allocated:
        at = f" at {failed.site}" if failed.site else ""
        return f"a smaller allocation{at}: it asks for more than all others take"
    known = {name: taken for name, taken in memory.by_category.items() if name in _REMEDIES}
    if checkpoints := memory.by_category.get(CHECKPOINTS, 0):
        known["activations"] = known.get("activations", 0) + checkpoints
    data = memory.by_category.get("data", 0)
    if data > max(known.values(), default=0):
        site = next((f", most at {b.site}" for b in memory.largest if b.category == "data" and b.site), "")
        return f"the largest part is data ({size(data)}{site}), no parameter of a model{_TRY}{_KEEP_DATA}"
    if not known or sum(known.values()) < 0.5 * memory.peak_allocated:
        return "a smaller part of what is allocated before the model runs (phantora analyze lists the largest blocks)"
    most = max(known, key=lambda name: (known[name], name))
    part = f"the largest part is {most} ({size(known[most])})"
    return f"{part}{_of_activations(memory)}" if most == "activations" else f"{part}{_TRY}{_REMEDIES[most]}"


def _of_activations(memory: MemoryReport) -> str:
    """What would make the activations smaller: by how the forward pass ran, and by blocks that layers do not repeat."""
    if memory.passes in _OF_PASSES:
        return f"{_TRY}{_OF_PASSES[memory.passes]}"
    own, checkpoints = (memory.by_category.get(name, 0) for name in ("activations", CHECKPOINTS))
    if checkpoints > own:
        return f", most of them inputs of checkpointed layers ({size(checkpoints)}): try {_OF_CHECKPOINTS}"
    least = _LARGE * memory.capacity
    activations = [block for block in memory.largest if block.category == "activations"]
    alone = [block for block in activations if block.count <= _NOT_REPEATED and block.bytes >= least * block.count]
    failed = memory.failed
    asked = failed.bytes if failed is not None and failed.bytes >= least else 0
    taken = sum(block.bytes for block in alone)
    more = _SMALLER if memory.passes else _REMEDIES["activations"]
    if taken + asked < 0.5 * (own + asked):
        return f"{_TRY}{more}"
    sites = [(block.bytes, block.site) for block in alone if ":" in block.site]
    _, site = max(sites, default=(0, failed.site if failed is not None else ""))
    at = f" at {site}" if site else ""
    failing = f" and {size(asked)} more that did not fit" if asked else ""
    if any(word in block.operator for block in alone for word in _LOSS):
        return f", {size(taken)} of it for the loss{at}{failing}: try the loss in parts, {_SMALLER}"
    return f", {size(taken)} of it in a few large blocks{at}{failing}: try these in parts, {more}"
