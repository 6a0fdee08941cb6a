"""The cause of an out-of-memory error, or of a peak, from a snapshot of the allocator."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from phantora.dumps import unmatched_blocks
from phantora.dumps.memory_snapshot import UNKNOWN, WORTH_NAMING, Block, Snapshot
from phantora.trace.analysis.units import size

_PLACES = 3
_REPEATED = 4  # blocks of one line that stay, and iterations
_LASTING = 0.5  # of the history over which they were allocated
_KEPT = 0.8  # of the line's blocks stay
_OF_A_MODEL = ("forward", "__init__")


@dataclass(frozen=True)
class Growth:
    """A line whose blocks stay, one after another."""

    place: str
    bytes: int
    """Bytes of all of them."""
    blocks: int


def growing(snapshot: Snapshot) -> Growth | None:
    """The line whose blocks are allocated over at least half of the history and of which at least four of five stay,
    in at least four iterations of a loop.

    A model's parameters are allocated in ``__init__``, and the activations of one pass in ``forward`` and below one
    line of the loop, so neither is found.
    """
    made = sorted(
        (block for block in snapshot.blocks if 0 <= block.begin <= snapshot.event), key=lambda block: block.begin
    )
    by_place: dict[str, list[Block]] = defaultdict(list)
    for block in made:
        if block.place != UNKNOWN:
            by_place[block.place].append(block)
    found: list[Growth] = []
    for place, blocks in by_place.items():
        kept = [block for block in blocks if block.end > snapshot.event]
        if len(kept) < _REPEATED or len(kept) < _KEPT * len(blocks):
            continue
        first, last = kept[0].begin, kept[-1].begin
        lasting = last - first >= _LASTING * snapshot.event
        even = max(after.begin - before.begin for before, after in pairwise(kept)) <= _LASTING * (last - first)
        if lasting and even and _iterations(made, first, last) >= _REPEATED:
            found.append(Growth(place, sum(block.bytes for block in kept), len(kept)))
    most = max(found, key=lambda one: one.bytes, default=None)
    return most if most is not None and most.bytes >= WORTH_NAMING * snapshot.peak else None


def _iterations(blocks: Sequence[Block], first: int, last: int) -> int:
    """How often the function in which the stacks of `blocks` part begins anew, from event `first` to event `last`.

    It does where it goes back to an earlier line. 0 for a model's own code and for libraries.
    """
    inside = [block.frames for block in blocks if first <= block.begin <= last]
    stacks = [stack for frames in inside if (stack := [frame for frame in reversed(frames) if frame.python])]
    if not stacks:
        return 0
    depth = 0
    while all(len(stack) > depth for stack in stacks) and len({stack[depth] for stack in stacks}) == 1:
        depth += 1
    parts = [stack[depth] for stack in stacks if len(stack) > depth]
    common = [*stacks[0][:depth], *parts[:1]]
    if any(frame.function in _OF_A_MODEL for frame in common) or common[-1].library:
        return 0
    if not parts:
        return len(stacks)
    return 1 + sum(after.line < before.line for before, after in pairwise(parts))


def answer(snapshot: Snapshot) -> list[tuple[str, str]]:
    """The cause in at most five lines, a word and its text each."""
    found = []
    failed, growth = snapshot.failed, growing(snapshot)
    unused = sum(snapshot.free_blocks)
    if failed is not None:
        text = f"{size(failed.bytes)} asked at {failed.place}, {size(failed.free_bytes)} free on the device"
        limit = ": a limit of the process stops it (set_per_process_memory_fraction)"
        found.append(("OOM", text + (limit if failed.free_bytes >= failed.bytes else "")))
    else:
        found.append(("PEAK", f"{size(snapshot.peak)} allocated; no allocation failed in this history"))
    event = snapshot.peak_event if failed is None else snapshot.event
    places = list(snapshot.by_place(event).items())[:_PLACES]
    if places:
        found.append(("HELD BY", ", ".join(f"{place} {size(held)}" for place, held in places)))
    if growth is not None:
        found.append(
            ("GROWS", f"{growth.place} keeps {growth.blocks} blocks, {size(growth.bytes)}, none of them freed")
        )
    if snapshot.reserved:
        found.append(("RESERVED", _reserved(snapshot, unused)))
    found.append(("NEXT", _next(snapshot, growth, unused)))
    return found


def _reserved(snapshot: Snapshot, unused: int) -> str:
    text = f"{size(snapshot.reserved)}, of which {size(unused)} unallocated"
    if not snapshot.free_blocks:
        return text
    pieces = "one piece" if len(snapshot.free_blocks) == 1 else f"{len(snapshot.free_blocks)} pieces, the largest "
    text += f" in {pieces}" + (size(snapshot.free_blocks[0]) if len(snapshot.free_blocks) > 1 else "")
    return text + (": fragmentation" if _fragmented(snapshot, unused) else "")


def _fragmented(snapshot: Snapshot, unused: int) -> bool:
    """True if the failed allocation fits the unused memory as a whole and none of its pieces."""
    failed = snapshot.failed
    if failed is None:
        return False
    more = failed.free_bytes if failed.free_bytes < failed.bytes else 0  # else a limit keeps it from the process
    return unused + more >= failed.bytes > snapshot.free_blocks[0]


def _next(snapshot: Snapshot, growth: Growth | None, unused: int) -> str:
    if growth is not None:
        return f"what {growth.place} allocates stays: detach it, use torch.no_grad, or move it to the CPU"
    if snapshot.free_blocks and _fragmented(snapshot, unused) and not snapshot.expandable:
        return "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; phantora trace with it shows the memory then"
    if snapshot.failed is not None:
        return "phantora fits of the script: the memory that it needs, and the largest batch that fits"
    return f"phantora diff {snapshot.path} run.arrow, with a simulated run of the script, names the blocks of one alone"


def lines(snapshots: Sequence[Snapshot]) -> list[tuple[str, str]]:
    """The answer for one snapshot, or the difference of two."""
    return answer(snapshots[0]) if len(snapshots) == 1 else unmatched_blocks.answer(snapshots[0], snapshots[1])
