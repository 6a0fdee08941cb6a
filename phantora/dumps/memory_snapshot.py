"""Snapshots of torch's CUDA allocator (``torch.cuda.memory._dump_snapshot``) and the memory of their history."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from phantora.dumps.frames import Frame, frames_of, own_line
from phantora.dumps.plain_pickle import load
from phantora.errors import PhantoraError

UNKNOWN = "without a stack"
"""The place of blocks of before the history, and of threads without Python code, as autograd's are."""

WORTH_NAMING = 0.02  # of a peak
ROUNDED = 512  # bytes: kMinBlockSize of CUDACachingAllocator.cpp
_UNSPLIT = 1 << 20  # bytes: kSmallSize


@dataclass(frozen=True, kw_only=True)
class Block:
    """A block of the history."""

    bytes: int
    begin: int
    """Number of the event that allocated it; -1: before the history."""
    end: int
    """Number of the event that freed it; the number of events if none did."""
    time_us: int
    """Time of its allocation; 0 if that is unknown."""
    frames: tuple[Frame, ...]
    """Innermost first."""
    address: int

    @cached_property
    def place(self) -> str:
        """The innermost Python line of the user's own code, else of any Python code: ``train.py:28``."""
        return place_of(self.frames)


@dataclass(frozen=True, kw_only=True)
class OutOfMemory:
    """An allocation that failed."""

    event: int
    """Number in the history. What follows it is the memory that the error itself frees."""
    bytes: int
    """Bytes that were asked for."""
    free_bytes: int
    """Bytes of the device that nothing held."""
    place: str
    time_us: int


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """One device of a snapshot, at the last allocation that failed; without one, at the end."""

    path: str
    device: int
    reserved: int
    """Bytes of all segments."""
    allocated: int
    """Bytes of blocks in use."""
    free_blocks: tuple[int, ...]
    """Sizes of the unused parts of segments, largest first, in bytes."""
    event: int
    """Number of the event after which this is the state; -1 without a history."""
    events: int
    blocks: tuple[Block, ...]
    levels: tuple[int, ...]
    """Allocated bytes after each event."""
    times_us: tuple[int, ...]
    failed: OutOfMemory | None
    """The last allocation that failed."""
    expandable: bool
    """Expandable segments are on."""

    @cached_property
    def peak_event(self) -> int:
        """Number of the event with the highest level; -1 without a history."""
        return max(range(len(self.levels)), key=self.levels.__getitem__, default=-1)

    @property
    def peak(self) -> int:
        """Highest allocated bytes in the history."""
        return max(self.levels, default=self.allocated)

    def by_place(self, event: int) -> Mapping[str, int]:
        """Allocated bytes after `event` by the line that allocated them, most first."""
        found: Counter[str] = Counter()
        for block in self.blocks:
            if block.begin <= event < block.end:
                found[block.place] += block.bytes
        return dict(found.most_common())


def is_snapshot(value: Any) -> bool:
    """True if a pickle's `value` is a snapshot."""
    return isinstance(value, dict) and "segments" in value and "device_traces" in value


def read_snapshot(path: str) -> Snapshot:
    """The device of the snapshot at `path` that holds most memory. Raises PhantoraError."""
    value = load(path)
    if not is_snapshot(value):
        raise PhantoraError(f"{path} is no memory snapshot of torch: torch.cuda.memory._dump_snapshot writes one")
    try:
        devices = {int(segment["device"]) for segment in value["segments"]}
        devices |= {number for number, trace in enumerate(value["device_traces"]) if trace}
        found = [_device(path, value, device) for device in sorted(devices)]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise PhantoraError(f"{path} is a damaged memory snapshot: {type(error).__name__} {error}") from error
    if not found:
        raise PhantoraError(f"{path} is an empty memory snapshot: no memory of a GPU was in use")
    return max(found, key=lambda one: (one.peak, one.reserved))


def _device(path: str, value: dict[str, Any], device: int) -> Snapshot:
    segments = [segment for segment in value["segments"] if int(segment["device"]) == device]
    traces = value["device_traces"]
    trace = traces[device] if device < len(traces) else []
    alive, free = [], []
    for segment in segments:
        for block in segment["blocks"]:
            if str(block["state"]).startswith("active"):
                alive.append((int(block.get("address", 0)), int(block["size"]), block.get("frames") or ()))
            else:
                free.append(int(block["size"]))
    allocated, reserved = sum(size for _, size, _ in alive), sum(int(segment["total_size"]) for segment in segments)
    levels, blocks, failed = _levels(trace, allocated), _blocks(trace, alive), _failed(trace)
    event = len(trace) - 1
    if failed is not None and failed.event < event:
        event = failed.event
        held = _segments_before([(int(one["address"]), int(one["total_size"])) for one in segments], trace[event:])
        free = _gaps(held, [block for block in blocks if block.begin <= event < block.end])
        allocated, reserved = levels[event], sum(size for _, size in held)
    return Snapshot(
        path=path,
        device=device,
        reserved=reserved,
        allocated=allocated,
        free_blocks=tuple(sorted(free, reverse=True)),
        event=event,
        events=len(trace),
        blocks=tuple(blocks),
        levels=levels,
        times_us=tuple(int(event.get("time_us", 0)) for event in trace),
        failed=failed,
        expandable=bool((value.get("allocator_settings") or {}).get("expandable_segments", False)),
    )


def _segments_before(segments: list[tuple[int, int]], events: Sequence[dict[str, Any]]) -> list[tuple[int, int]]:
    """Addresses and sizes of the segments before `events`, from those after them. Expandable ones grow and shrink."""
    for event in reversed(events):
        begin, size = int(event.get("addr", 0)), int(event["size"])
        if event["action"] in ("segment_free", "segment_unmap"):
            segments = [*segments, (begin, size)]
        elif event["action"] in ("segment_alloc", "segment_map"):
            segments = [part for one in segments for part in _without(one, begin, begin + size)]
    return segments


def _without(segment: tuple[int, int], begin: int, end: int) -> list[tuple[int, int]]:
    first, last = segment[0], segment[0] + segment[1]
    parts = [(first, min(last, begin) - first), (max(first, end), last - max(first, end))]
    return [(at, size) for at, size in parts if size > 0] if begin < last and first < end else [segment]


def _gaps(segments: Sequence[tuple[int, int]], blocks: Sequence[Block]) -> list[int]:
    """Sizes of the unused parts of `segments`. The end of a large block is no such part: the allocator leaves up to
    1 MiB there (``should_split`` in CUDACachingAllocator.cpp)."""
    taken = sorted((block.address, -(-block.bytes // ROUNDED) * ROUNDED) for block in blocks)
    addresses = [address for address, _ in taken]
    found = []
    for begin, size in segments:
        position, inside = begin, taken[bisect_left(addresses, begin) : bisect_left(addresses, begin + size)]
        least = 0
        for address, length in [*inside, (begin + size, 0)]:
            if address - position > least:
                found.append(address - position)
            position, least = address + length, _UNSPLIT if length > _UNSPLIT else 0
    return found


def _levels(trace: Sequence[dict[str, Any]], last: int) -> tuple[int, ...]:
    """Allocated bytes after each event, backwards from the `last` level."""
    levels = [0] * len(trace)
    level = last
    for number in range(len(trace) - 1, -1, -1):
        levels[number] = level
        action, size = trace[number]["action"], int(trace[number]["size"])
        if action == "alloc":
            level -= size
        elif action == "free_completed":
            level += size
    lowest = min(0, level, *levels) if levels else 0
    return tuple(level - lowest for level in levels)  # without segments, as of a history alone: from its lowest level


def _blocks(trace: Sequence[dict[str, Any]], alive: Sequence[tuple[int, int, Any]]) -> list[Block]:
    found: list[Block] = []
    opened: dict[int, tuple[int, dict[str, Any]]] = {}
    for number, event in enumerate(trace):
        action, address = event["action"], int(event.get("addr", 0))
        if action == "alloc":
            opened[address] = number, event
        elif action == "free_completed":
            begin, made = opened.pop(address, (-1, {"size": event["size"]}))
            found.append(_block(begin, number, address, made))
    end = len(trace)
    found += [_block(begin, end, address, made) for address, (begin, made) in opened.items()]
    found += [
        _block(-1, end, address, {"size": size, "frames": frames})
        for address, size, frames in alive
        if address not in opened
    ]
    return found


def _block(begin: int, end: int, address: int, made: dict[str, Any]) -> Block:
    """A block that the event `made` allocated."""
    return Block(
        bytes=int(made["size"]),
        begin=begin,
        end=end,
        time_us=int(made.get("time_us", 0)),
        frames=frames_of(made.get("frames") or ()),
        address=address,
    )


def _failed(trace: Sequence[dict[str, Any]]) -> OutOfMemory | None:
    for number in range(len(trace) - 1, -1, -1):
        event = trace[number]
        if event["action"] == "oom":
            return OutOfMemory(
                event=number,
                bytes=int(event["size"]),
                free_bytes=int(event.get("device_free", 0)),
                place=place_of(frames_of(event.get("frames") or ())),
                time_us=int(event.get("time_us", 0)),
            )
    return None


def place_of(frames: Sequence[Frame]) -> str:
    """The innermost Python line of the user's own code, else of any Python code: ``train.py:28``."""
    return str(own_line(frames) or UNKNOWN)
