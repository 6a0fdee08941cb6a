"""Tokens per second, if the log shows tokens: the indices that embedding tables were asked for.

The forward operator is logged as the index_select that it becomes; the backward one names the indices.
"""

from __future__ import annotations

import re

import numpy as np

from phantora.trace.analysis.report import Throughput
from phantora.trace.analysis.windows import Window, code
from phantora.trace.reader import Log

EMBEDDING = "aten::embedding_dense_backward"
_ARGUMENTS = re.compile(r"\w+\[[\d,]*\], \w+\[([\d,]+)\], (\d+)")
_KERNEL = code("kernel")


class Tokens:
    """Adds up, by embedding table, the indices of each rank and step."""

    def __init__(self, log: Log) -> None:
        self._operator = np.array([word == EMBEDDING for word in log.words("op")] + [False])
        self._shapes = [embedding(word) for word in log.words("shape")]
        self._largest: list[int] = []

    def add(self, window: Window) -> None:
        """Windows of steps only."""
        mask = (window["kind"] == _KERNEL) & self._operator[window["op"]] & window.own()
        rank, link, shape = (window[c][mask] for c in ("rank", "link", "shape"))
        seen: dict[tuple[int, int], int] = {}
        _, first = np.unique(np.stack([rank, link]), axis=1, return_index=True)  # an operator may launch several
        for r, s in zip(rank[first].tolist(), shape[first].tolist(), strict=True):
            found = self._shapes[s] if s >= 0 else None
            if found:
                table, count = found[0], int(np.prod(found[1]))
                seen[r, table] = seen.get((r, table), 0) + count
        if seen:
            self._largest.append(max(seen.values()))

    def report(self, step_time: float) -> Throughput | None:
        if not self._largest or not step_time:
            return None
        tokens = float(np.median(self._largest))
        return Throughput(tokens, tokens / step_time * 1e9, f"indices of {EMBEDDING}, of one rank")


def embedding(shape: str) -> tuple[int, list[int]] | None:
    """Rows of the table and shape of the indices, from the arguments of :data:`EMBEDDING`:
    ``bf16[1,2048,4096], i64[1,2048], 32000, ...``."""
    match = _ARGUMENTS.match(shape)
    return (int(match[2]), [int(n) for n in match[1].split(",")]) if match else None
