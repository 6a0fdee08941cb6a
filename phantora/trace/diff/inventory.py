"""The work of an average step of an average rank: what two runs are compared by."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from phantora.json_data import MeanBytes, Ns
from phantora.trace.analysis.annotations import Annotations
from phantora.trace.analysis.communicators import collective_kind, groups
from phantora.trace.analysis.grouping import first_of, group
from phantora.trace.analysis.windows import Window, kind_mask
from phantora.trace.reader import Log
from phantora.trace.schema import COMMUNICATION_KINDS, COPY_KINDS

Mask = npt.NDArray[np.bool_]
Sums = dict[tuple[int, ...], tuple[float, float, int]]
_Key = TypeVar("_Key")

_COMMUNICATION = kind_mask(COMMUNICATION_KINDS)
_COPY = kind_mask(COPY_KINDS)
_COMPUTE = kind_mask(("kernel", *COPY_KINDS))
_OPTIMIZER = "Optimizer.step#"
_OPTIMIZER_NAME = re.compile(re.escape(_OPTIMIZER) + r"(\w+)")
_REPORTED = ("tf32", "nhwc")  # by the names of libraries' kernels, and not by arguments
# Numbers that change with the step (Adam's corrections, learning rates), unlike sizes.
_REAL = re.compile(r"(?<![\w.\[])-?(?:\d+\.\d*(?:e[-+]?\d+)?|\d+e[-+]?\d+)")


@dataclass(frozen=True)
class Operation:
    """An operator with its arguments; kernels that none launched go by their own name."""

    name: str
    shape: str
    """Without the values of real numbers; of copies with their names, ``Memcpy HtoD (Pinned -> Device)``; of libraries'
    kernels with what else their names tell (``tf32``, ``nhwc``)."""
    cls: str
    part: str
    """``optimizer`` if launched within an optimizer's step, else empty."""


@dataclass(frozen=True)
class Transfer:
    """A collective of one size among this many ranks (0: unknown)."""

    name: str
    ranks: int
    bytes: int


@dataclass
class Amount:
    """Per rank and step."""

    count: float = 0
    """Calls: kernels of one operator count once."""
    time: Ns = 0
    """ns on the GPU; of communication from the last arrival on."""
    bytes: MeanBytes = 0
    """Bytes of collectives."""
    share: float = 0
    """Share of the ranks that run it."""


class Inventory:
    """Sums over the windows of steady steps. Without `arrivals` communication counts from a rank's own start."""

    def __init__(self, log: Log, arrivals: bool = True) -> None:
        self._log = log
        self._arrivals = arrivals
        self._annotations: Annotations | None = None
        names = log.words("name")
        reported = [" ".join(word for word in _REPORTED if f"_{word}" in name) for name in names]
        self._notes = sorted(set(reported) | {""})
        self._note_of = np.array([self._notes.index(note) for note in reported] + [0])
        self._parts: list[tuple[int | None, Sums, Sums, int]] = []  # step, compute, communication, ranks

    def begin(self, annotations: Annotations) -> None:
        """The marks by which work is the optimizer's."""
        self._annotations = annotations

    def optimizers(self) -> list[str]:
        """Names of the optimizers' classes, as their annotations say."""
        assert self._annotations is not None
        seen = {name for own in self._annotations.spans for _, _, name in own}
        found = (_OPTIMIZER_NAME.match(self._annotations.names[name]) for name in seen)
        return sorted({match[1] for match in found if match})

    def add(self, window: Window) -> None:
        """Adds a steady step: its kernels and its communication."""
        if not window.span.steady:
            return
        own = window.own
        ranks = int(window.span.present.sum())
        self._parts.append((window.span.step, self._compute(window, own), self._communication(window, own), ranks))

    def _compute(self, window: Window, own: Mask) -> Sums:
        assert self._annotations is not None
        rows = np.flatnonzero(own & _COMPUTE[window["kind"]])
        op = window["op"][rows].astype(np.int64)
        kept = (op < 0) | _COPY[window["kind"][rows]]  # a copy's name has both kinds of memory
        name = np.where(kept, window["name"][rows], -1)
        calls = _first_of_call(window["rank"][rows], window["link"][rows])
        part = self._annotations.within(_OPTIMIZER, window["rank"][rows], window["launch"][rows])
        note = self._note_of[window["name"][rows]]
        keys = op, window["shape"][rows], window["cls"][rows], name, part.astype(np.int64), note
        return _sums(keys, (window["end"] - window["start"])[rows], calls, window["rank"][rows])

    def _communication(self, window: Window, own: Mask) -> Sums:
        rows = np.flatnonzero(own & _COMMUNICATION[window["kind"]])
        ready = window["start"][rows]
        if self._arrivals:
            ready = np.clip(window["ready"][rows], ready, window["end"][rows])
        keys = tuple(window[column][rows] for column in ("name", "comm", "bytes"))
        return _sums(keys, window["end"][rows] - ready, np.ones(len(rows)), window["rank"][rows])

    def result(self, steps: set[int]) -> tuple[dict[Operation, Amount], dict[Transfer, Amount]]:
        """Means per rank and step, of these steps."""
        parts = [
            (compute, communication, ranks) for step, compute, communication, ranks in self._parts if step in steps
        ]
        share = sum(ranks for _, _, ranks in parts) or 1
        names, operators, shapes, classes = (self._log.words(c) for c in ("name", "op", "shape", "cls"))
        known = groups(self._log)

        def word(words: list[str], index: int) -> str:
            return words[index] if index >= 0 else ""

        shapes = [_REAL.sub("~", shape) for shape in shapes]
        marked = bool(self.optimizers())
        operations: dict[Operation, Amount] = {}
        transfers: dict[Transfer, Amount] = {}
        for compute, communication, _ in parts:
            for (op, shape, cls, name, stepping, note), (count, time, seen) in compute.items():
                label, kind = word(operators, op) or word(names, name), word(classes, cls)
                optimizes = bool(stepping) if marked else kind == "optimizer"
                more = [word(names, name) if op >= 0 else "", self._notes[note]]
                arguments = " ".join(part for part in (word(shapes, shape), *more) if part)
                operation = Operation(label, arguments, kind, "optimizer" if optimizes else "")
                add_amount(operations, operation, Amount(count / share, time / share, 0, seen / share))
            for (name, comm, size), (count, time, seen) in communication.items():
                ranks = len(known[comm].ranks) if comm in known else 0
                transfer = Transfer(collective_kind(word(names, name)), ranks, size)
                add_amount(transfers, transfer, Amount(count / share, time / share, count / share * size, seen / share))
        return operations, transfers


def _first_of_call(rank: npt.NDArray[np.integer], link: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """1 for the first row of each call of an operator, and for rows that none launched."""
    first = (link < 0).astype(np.float64)
    launched = np.flatnonzero(link >= 0)
    first[launched[first_of((rank[launched], link[launched]))]] = 1
    return first


def _sums(
    keys: tuple[npt.NDArray[np.integer], ...],
    time: npt.NDArray[np.int64],
    calls: npt.NDArray[np.float64],
    rank: npt.NDArray[np.integer],
) -> Sums:
    """Calls, time and number of ranks by combination of `keys`."""
    if not len(time):
        return {}
    found, place = group(keys)
    count, total = np.bincount(place, calls), np.bincount(place, time)
    seen = np.zeros((len(found), int(rank.max()) + 1), np.bool_)
    seen[place, rank] = True
    rows = zip(found, count.tolist(), total.tolist(), seen.sum(1).tolist(), strict=True)
    return {key: (n, t, ranks) for key, n, t, ranks in rows}


def add_amount(table: dict[_Key, Amount], key: _Key, more: Amount) -> None:
    """Adds to the amount of `key`."""
    amount = table.setdefault(key, Amount())
    amount.count += more.count
    amount.time += more.time
    amount.bytes += more.bytes
    amount.share += more.share
