"""Snapshots of torch's CUDA allocator (``torch.cuda.memory._dump_snapshot``) and the memory of their history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from phantora.dumps.frames import frames_of, own_line
from phantora.dumps.plain_pickle import load
from phantora.errors import PhantoraError

UNKNOWN = "before the history"
"""The place of blocks that were allocated before the history begins, or without stacks."""


@dataclass(frozen=True)
class Block:
    """A block of the history."""

    bytes: int
    begin: int
    """Number of the event that allocated it; -1: before the history."""
    end: int
    """Number of the event that freed it; the number of events if none did."""
    time_us: int
    """Time of its allocation; 0 if that is unknown."""
    place: str
    """``train.py:28``."""


@dataclass(frozen=True, kw_only=True)
class OutOfMemory:
    """An allocation that failed."""

    bytes: int
    """Bytes that were asked for."""
    free_bytes: int
    """Bytes of the device that nothing held."""
    place: str
    time_us: int


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """One device of a snapshot."""

    path: str
    device: int
    reserved: int
    """Bytes of all segments at the end."""
    allocated: int
    """Bytes of blocks in use at the end."""
    free_blocks: tuple[int, ...]
    """Sizes of the unused blocks of segments at the end, largest first, in bytes."""
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
    blocks, allocated, free = [], 0, []
    for segment in segments:
        for block in segment["blocks"]:
            size = int(block["size"])
            if str(block["state"]).startswith("active"):
                allocated += size
                blocks.append((int(block.get("address", 0)), size, block.get("frames") or ()))
            else:
                free.append(size)
    levels = _levels(trace, allocated)
    settings = value.get("allocator_settings") or {}
    return Snapshot(
        path=path,
        device=device,
        reserved=sum(int(segment["total_size"]) for segment in segments),
        allocated=allocated,
        free_blocks=tuple(sorted(free, reverse=True)),
        events=len(trace),
        blocks=tuple(_blocks(trace, blocks)),
        levels=levels,
        times_us=tuple(int(event.get("time_us", 0)) for event in trace),
        failed=_failed(trace),
        expandable=bool(settings.get("expandable_segments", False)),
    )


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
    opened: dict[int, tuple[int, int, int, str]] = {}
    for number, event in enumerate(trace):
        action, address, size = event["action"], int(event.get("addr", 0)), int(event["size"])
        if action == "alloc":
            opened[address] = number, size, int(event.get("time_us", 0)), place_of(event.get("frames") or ())
        elif action == "free_completed":
            begin, size, time, place = opened.pop(address, (-1, size, 0, UNKNOWN))
            found.append(Block(size, begin, number, time, place))
    end = len(trace)
    for begin, size, time, place in opened.values():
        found.append(Block(size, begin, end, time, place))
    for address, size, frames in alive:
        if address not in opened:
            found.append(Block(size, -1, end, 0, place_of(frames)))
    return found


def _failed(trace: Sequence[dict[str, Any]]) -> OutOfMemory | None:
    for event in reversed(trace):
        if event["action"] == "oom":
            return OutOfMemory(
                bytes=int(event["size"]),
                free_bytes=int(event.get("device_free", 0)),
                place=place_of(event.get("frames") or ()),
                time_us=int(event.get("time_us", 0)),
            )
    return None


def place_of(frames: Sequence[Any]) -> str:
    """The innermost Python line of the user's own code, else of any Python code: ``train.py:28``."""
    return str(own_line(frames_of(frames)) or UNKNOWN)
