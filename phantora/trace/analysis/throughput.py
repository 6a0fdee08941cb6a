"""Tokens per second, if the log shows tokens: the indices that embedding tables were asked for."""

from __future__ import annotations

import re

import numpy as np

from phantora.trace.analysis.report import Throughput
from phantora.trace.analysis.windows import Window, code
from phantora.trace.reader import Log

_EMBEDDING = "aten::embedding"
_TENSOR = re.compile(r"\w+\[([\d,]*)\]")
_KERNEL = code("kernel")


class Tokens:
    """Adds up, by embedding table, the indices of each rank and step."""

    def __init__(self, log: Log) -> None:
        self._operator = np.array([word == _EMBEDDING for word in log.words("op")] + [False])
        self._shapes = [_table_and_indices(word) for word in log.words("shape")]
        self._largest: list[int] = []

    def add(self, window: Window) -> None:
        """Windows of steps only."""
        mask = (window["kind"] == _KERNEL) & self._operator[window["op"]] & window.own()
        rank, link, shape = (window[c][mask] for c in ("rank", "link", "shape"))
        seen: dict[tuple[int, str], int] = {}
        _, first = np.unique(np.stack([rank, link]), axis=1, return_index=True)  # an operator may launch several
        for r, s in zip(rank[first].tolist(), shape[first].tolist(), strict=True):
            found = self._shapes[s] if s >= 0 else None
            if found:
                table, count = found
                seen[r, table] = seen.get((r, table), 0) + count
        if seen:
            self._largest.append(max(seen.values()))

    def report(self, step_time: float) -> Throughput | None:
        if not self._largest or not step_time:
            return None
        tokens = float(np.median(self._largest))
        return Throughput(tokens, tokens / step_time * 1e9, "indices of aten::embedding, of one rank")


def _table_and_indices(shape: str) -> tuple[str, int] | None:
    """The table's shape and the number of indices from ``bf16[32000,4096], i64[1,2048], ...``."""
    tensors = _TENSOR.findall(shape)
    if len(tensors) < 2 or not tensors[1]:
        return None
    return tensors[0], int(np.prod([int(n) for n in tensors[1].split(",")]))
