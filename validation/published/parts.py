"""Where the time of a simulated step went on rank 0: seconds of each class of kernels, of communication that no compute
hides (`exposed`), and without either (`idle`: host, pipeline bubble, dependencies)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

import phantora

Spans = npt.NDArray[np.int64]
KINDS = ("attention", "products", "optimizer", "other", "exposed", "idle")
CLASSES = {"gemm": "products", "attention": "attention", "optimizer": "optimizer"}


def parts_of(log: Path, seconds: float) -> dict[str, float]:
    """Of the last `seconds` of rank 0."""
    run = phantora.open(log)
    kernels, transfers = run.kernels(), run.collectives()
    own = kernels.filter(kernels["rank"].to_numpy() == 0)
    end = int(own["end"].to_numpy().max())
    first = end - round(seconds * 1e9)
    found = dict.fromkeys(KINDS, 0.0)
    spans = _within(own, first)
    for name, length in zip(own["cls"].to_pylist(), spans[:, 1] - spans[:, 0], strict=True):
        found[CLASSES.get(name, "other")] += max(0, int(length)) / 1e9
    computing = _covered([spans])
    sent = _within(transfers.filter(transfers["rank"].to_numpy() == 0), first)
    busy = _covered([spans, sent])
    return found | {"exposed": (busy - computing) / 1e9, "idle": seconds - busy / 1e9}


def _within(rows: object, first: int) -> Spans:
    """Spans of rows behind `first`."""
    starts, ends = (rows[name].to_numpy() for name in ("start", "end"))  # type: ignore[index]
    return np.stack((np.maximum(starts, first), np.maximum(ends, first)), axis=1)


def _covered(groups: Iterable[Spans]) -> int:
    """Length of the union of all spans."""
    spans = np.concatenate(list(groups))
    spans = spans[np.argsort(spans[:, 0])]
    reached = np.maximum.accumulate(spans[:, 1])
    before = np.concatenate((spans[:1, 0], reached[:-1]))
    return int(np.maximum(0, spans[:, 1] - np.maximum(spans[:, 0], before)).sum())


def shares(parts: Mapping[str, float]) -> str:
    """Cells of a table: percent of the step."""
    step = sum(parts.values()) or 1.0
    return " | ".join(f"{parts.get(kind, 0.0) / step:.0%}" for kind in KINDS)
