"""Replaces unknown values where zeros are a bad assumption (docs/assumptions.md).

It runs in a rank. The terminal's process calls :func:`parse_assumptions` alone, to check the option.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

from phantora.errors import PhantoraError
from phantora.rank.patch import Patch, Rank, When
from phantora.spec import ASSUMPTIONS, rank_spec

OPTION = "--assume"

WORDS = {"choice": ("spread", "first"), "clip": ("always", "never")}
"""Keys whose value is one of these words, not a number."""


def parse_assumptions(given: Sequence[str]) -> tuple[str, ...]:
    """``KEY=VALUE`` options, each key once and in order. Raises PhantoraError."""
    found: dict[str, str] = {}
    for option in given:
        key, equals, value = option.partition("=")
        if not equals or key not in ASSUMPTIONS:
            known = "; ".join(f"{name}={meaning}" for name, meaning in ASSUMPTIONS.items())
            raise PhantoraError(f"{OPTION} {option}: give {known}")
        if not _is_valid(key, value):
            raise PhantoraError(f"{OPTION} {option}: {key} is {ASSUMPTIONS[key]}")
        found[key] = value
    return tuple(f"{key}={value}" for key, value in sorted(found.items()))


def _is_valid(key: str, value: str) -> bool:
    if key in WORDS:
        return value in WORDS[key]
    if key == "iterations":
        count, at, place = value.partition("@")
        return count.isdigit() and int(count) > 0 and (not at or place.rpartition(":")[2].isdigit())
    if key in ("eos", "overflow"):
        return value.isdecimal()
    if key == "length":
        return _is_length(value)
    try:
        numbers = [float(part) for part in value.split(":")]
    except ValueError:
        return False
    if not all(map(math.isfinite, numbers)):
        return False
    if key in ("mask", "nms", "accept"):
        return len(numbers) == 1 and 0 <= numbers[0] <= 1
    return len(numbers) == 1 or (len(numbers) == 3 and min(numbers) > 0)


def _is_length(value: str) -> bool:
    kind, *given = value.split(":") if ":" in value else ["", value]
    try:
        numbers = [float(part) for part in given]
    except ValueError:
        return False
    if not all(math.isfinite(number) and number >= 0 for number in numbers):
        return False
    if kind == "lognormal":
        return len(numbers) in (2, 3) and numbers[0] >= 1 and (len(numbers) == 2 or numbers[2] >= 1)
    if kind == "uniform":
        return len(numbers) == 2 and 1 <= numbers[0] <= numbers[1]
    return kind == "" and len(numbers) == 1 and numbers[0] >= 1


def setting(key: str) -> str | None:
    """The value that this process has for `key`, if any."""
    given = dict(part.partition("=")[::2] for part in rank_spec().assume)
    return given.get(key)


def host_threads() -> tuple[int, bool]:
    """Threads of this rank's operators on CPU tensors, 0 where nobody set them; and whether it is torchrun's number,
    which is 1 for several processes on a host."""
    if threads := rank_spec().threads:
        return threads, False
    torchrun = "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("LOCAL_WORLD_SIZE", 1)) > 1
    return int(torchrun), torchrun


_tracers: list[Callable[[int, bool], None]] = []


def tell_threads() -> None:
    """Gives the tracer the threads of operators on CPU tensors, by the environment of this rank."""
    for tell in _tracers:
        tell(*host_threads())


def _count_threads(tell: Callable[[int, bool], None]) -> None:
    """Gives the tracer the threads of operators on CPU tensors, now and when the program sets them.

    ``torch.get_num_threads()`` is at most the number of processors of this machine.
    """
    import torch

    _tracers[:] = [tell]
    tell_threads()
    original = torch.set_num_threads

    @functools.wraps(original)
    def set_num_threads(number: int) -> None:
        original(number)
        tell(number, False)

    torch.set_num_threads = set_num_threads  # type: ignore[assignment]


def install(rank: Rank) -> None:
    """Gives the tracer the assumptions. What a program calls ``backward()`` on, or a ``GradScaler`` scales, then reads
    as the assumed loss, if there is one.

    Losses of torch's own operators read so already where they are made.
    """
    assume = ctypes.PyDLL(str(rank.tracer)).phantora_assume
    assume.argtypes, assume.restype = [ctypes.c_char_p], None
    assume(",".join(rank_spec().assume).encode())
    _count_threads(ctypes.PyDLL(str(rank.tracer)).phantora_host_threads)
    if setting("loss") is None:
        return
    import torch
    from torch.amp.grad_scaler import GradScaler

    give = ctypes.PyDLL(str(rank.tracer)).phantora_give_loss
    give.argtypes = [ctypes.c_void_p, ctypes.c_int]
    give.restype = None
    scalar_types = {torch.float16: 5, torch.float32: 6, torch.float64: 7, torch.bfloat16: 15}  # c10::ScalarType

    def to(value: Any) -> None:
        for t in value if isinstance(value, (list, tuple)) else (value,):
            if type(t) is torch.Tensor and t.is_cuda and t.numel() == 1 and t.dtype in scalar_types:
                give(t.data_ptr(), scalar_types[t.dtype])

    backward, scale = torch.autograd.backward, GradScaler.scale

    @functools.wraps(backward)
    def with_loss(tensors: Any, *rest: Any, **options: Any) -> None:
        to(tensors)
        backward(tensors, *rest, **options)

    @functools.wraps(scale)
    def scale_loss(self: Any, outputs: Any) -> Any:
        to(outputs)
        return scale(self, outputs)

    torch.autograd.backward = with_loss
    GradScaler.scale = scale_loss  # type: ignore[method-assign]


PATCH = Patch("assumptions", When.AFTER_TORCH, install)
