"""Faults of a run (``--fault``): the steps that they touch, and how long these take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from phantora.json_data import Ns
from phantora.trace.analysis.communicators import ranges
from phantora.trace.analysis.units import duration

Span = tuple[int, int, int]
"""A step of a rank: number, start and end in ns."""
FAULT = "fault"
"""The note of a step during which a fault begins or lasts."""


@dataclass(frozen=True)
class Window:
    """A fault of the run."""

    text: str
    """What is slow: ``rank=3:1.5``."""
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Faulty:
    """A fault, and the steps that it touches."""

    text: str
    start: Ns
    end: Ns
    steps: list[int]
    """Numbers; start-up is left out."""
    time: Ns
    """The mean of these steps; 0 without any."""


def windows(extra: Mapping[str, Any]) -> list[Window]:
    """The faults of a run, of its metadata."""
    given = extra.get("what_if", {}).get("fault", ())
    return [Window(one["text"], one["start_ns"], one["end_ns"]) for one in given]


def touched(found: Sequence[Window], steps: Sequence[Span]) -> dict[int, str]:
    """The note of each step that a fault touches, by number; none if all are: then the fault is as the run is."""
    numbers = {number for number, start, end in steps for one in found if _touches(one, start, end)}
    return dict.fromkeys(sorted(numbers), FAULT) if numbers < {number for number, _, _ in steps} else {}


def faults(extra: Mapping[str, Any], steps: Sequence[Span]) -> list[Faulty]:
    """The faults of a run and what they cost, in their order."""
    result = []
    for one in windows(extra):
        times: dict[int, list[int]] = {}
        for number, start, end in steps:
            if _touches(one, start, end):
                times.setdefault(number, []).append(end - start)
        mean = fmean(fmean(own) for own in times.values()) if times else 0.0
        result.append(Faulty(text=one.text, start=one.start, end=one.end, steps=sorted(times), time=mean))
    return result


def _touches(one: Window, start: int, end: int) -> bool:
    return one.start < end and start < one.end


def sentence(one: Faulty, steady: float) -> str:
    """``rank=3:1.5 from 100 ms to 400 ms: steps 3-5 take 152 ms, 1.90 times a steady one``."""
    text = f"{one.text} from {duration(one.start)} to {duration(one.end)}"
    if not one.steps:
        return f"{text}: it touches no step"
    several = len(one.steps) > 1
    what = f"step{'s' * several} {ranges(tuple(one.steps))} take{'s' * (not several)} {duration(one.time)}"
    return f"{text}: {what}" + (f", {one.time / steady:.2f} times a steady one" if steady else "")
