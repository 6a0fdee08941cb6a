"""Batches of the longest samples, for a verdict on memory that holds for all others (``--worst-batch``).

Every request for a batch of a torch DataLoader gets the longest samples of its dataset, as many as it asks for. What
collates them pads them as always. A stream of samples (IterableDataset) has no longest one and stays as it is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from statistics import median
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from phantora.rank.importhook import excluded, on_import
from phantora.rank.patch import Patch, Rank, When
from phantora.spec import WORST_BATCH, rank_spec

SAMPLES = 2000  # of a dataset that are read, evenly apart
_NESTING = 4


def install(rank: Rank) -> None:
    """Changes the DataLoader of this rank, if the run asks for it."""
    if not rank_spec().worst_batch:
        return
    report = ctypes.PyDLL(str(rank.tracer)).phantora_assumed
    report.argtypes, report.restype = [ctypes.c_char_p, ctypes.c_size_t], None

    def note(text: str) -> None:
        words = f"{text}{WORST_BATCH}".encode()
        report(words, len(words))

    on_import(("torch.utils.data.dataloader",), lambda module: change(module, note))


def change(module: ModuleType, note: Callable[[str], None]) -> None:
    """Makes the iterators of `module` ask for the longest samples; `note` takes what they are, once a dataset."""
    iterator: Any = getattr(module, "_BaseDataLoaderIter")  # noqa: B009 - private
    original = iterator._next_index
    known: WeakKeyDictionary[Any, list[int]] = WeakKeyDictionary()

    def next_index(this: Any) -> Any:
        asked = original(this)
        if this._dataset_kind != module._DatasetKind.Map:
            note("a stream of samples keeps its batches")
            return asked
        if this._dataset not in known:
            excluded(lambda: known.__setitem__(this._dataset, _ordered(this._dataset, note)))
        longest = known[this._dataset]
        if not isinstance(asked, list):
            return longest[0]
        return [longest[i % len(longest)] for i in range(len(asked))]

    iterator._next_index = next_index


def _ordered(dataset: Any, note: Callable[[str], None]) -> list[int]:
    """Indices of samples, the longest first."""
    count = len(dataset)
    indices = range(0, count, -(-count // SAMPLES))
    lengths = [length(dataset[i]) for i in indices]
    of = f"{count:,} samples" if len(lengths) == count else f"{len(lengths):,} of {count:,} samples"
    note(
        f"every batch has the longest of {of}: {max(lengths):,} elements each at most, half have {median(lengths):,.0f}"
    )
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    return [indices[i] for i in order]


def length(sample: Any, depth: int = _NESTING) -> int:
    """Number of elements of a sample: of its tensors, arrays, lists and texts together."""
    if hasattr(sample, "numel"):
        return int(sample.numel())
    if isinstance(sample, str | bytes):
        return len(sample)
    if isinstance(sample, Mapping):
        return sum(length(value, depth - 1) for value in sample.values()) if depth else len(sample)
    if isinstance(sample, list | tuple):
        nested = depth and any(hasattr(one, "__len__") or hasattr(one, "numel") for one in sample[:8])
        return sum(length(one, depth - 1) for one in sample) if nested else len(sample)
    return int(getattr(sample, "size", 1)) if isinstance(getattr(sample, "size", 1), int) else 1


PATCH = Patch("worst batch", When.IN_RANK, install)
