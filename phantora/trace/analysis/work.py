"""Device time by kernel, operator, class of work and annotation."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from phantora.trace.analysis.annotations import Annotations
from phantora.trace.analysis.report import Work
from phantora.trace.analysis.steps import PRODUCTS
from phantora.trace.analysis.windows import Window, code, kind_mask
from phantora.trace.reader import Log
from phantora.trace.schema import COMMUNICATION_KINDS, DEVICE_KINDS
from phantora.wire.names import RECOMPUTED

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

_DEVICE, _COMMUNICATION = kind_mask(DEVICE_KINDS), kind_mask(COMMUNICATION_KINDS)
_KERNEL = code("kernel")
_TENSOR_CORES = re.compile(r"tf32|tensorop|bf16|f16", re.IGNORECASE)  # in names of kernels of float32 operands
_NUMBERS = ("kind", "rank", "start", "end", "ready", "launch", "flops", "bytes")
_READ = (*_NUMBERS, "name", "op", "shape", "cls", "provenance")
_FIRST_TENSOR = re.compile(r"(\w+)\[")
_NARROW = {"float4": "float4", "float8": "float8", "i8": "int8"}
"""Formats of arithmetic with a peak of their own, by how dtypes begin."""
TOP = 20
_FEW_UNKNOWN = 0.2  # of the time of products: so much without flops leaves an MFU
MOST_MODULES = 2_000


class _By:
    """Sums per word of one column; slot 0 holds what has none."""

    def __init__(self, words: list[str], classes: int, provenances: int) -> None:
        self.words = ["", *words]
        size = len(self.words)
        self.count: Floats = np.zeros(size)
        self.time: Floats = np.zeros(size)
        self.shortest: Floats = np.full(size, np.inf)
        self.longest: Floats = np.zeros(size)
        self.flops: Floats = np.zeros(size)
        self.at_peak: Floats = np.zeros(size)
        self.bytes: Floats = np.zeros(size)
        self.by_class: Floats = np.zeros((size, 1 + classes))
        self.by_provenance: Floats = np.zeros((size, 1 + provenances))

    def add(self, word: npt.NDArray[np.int64], time: Floats, rows: dict[str, npt.NDArray[np.generic]]) -> None:
        slot, size = word + 1, len(self.words)
        self.count += np.bincount(slot, minlength=size)
        self.time += np.bincount(slot, time, size)
        np.minimum.at(self.shortest, slot, time)
        np.maximum.at(self.longest, slot, time)
        self.flops += np.bincount(slot, rows["flops"], size)
        self.at_peak += np.bincount(slot, rows["at_peak"], size)
        self.bytes += np.bincount(slot, rows["bytes"], size)
        for column, table in (("cls", self.by_class), ("provenance", self.by_provenance)):
            key = slot * table.shape[1] + rows[column].astype(np.int64) + 1
            table += np.bincount(key, time, table.size).reshape(table.shape)


class WorkSums:
    """Sums over the rows that each window owns."""

    def __init__(self, log: Log, annotations: Annotations, ranks: int) -> None:
        self._classes, self._provenances = log.words("cls"), log.words("provenance")
        sizes = len(self._classes), len(self._provenances)
        self._kernels = _By(log.words("name"), *sizes)
        self._operators = _By(log.words("op"), *sizes)
        self._by_class = _By(self._classes, *sizes)
        self._modules = _By(annotations.names, *sizes)
        self._annotations = annotations
        self._peaks = _peaks(log)
        self._kernel_time: Floats = np.zeros(1 + sizes[0])
        self._kernel_flops: Floats = np.zeros(1 + sizes[0])
        self._recomputed: Floats = np.zeros(1 + sizes[0])  # flops by class
        self._in_float32 = _float32_words(log)
        self._float32 = 0.0
        self._products = np.zeros(2)  # ns of products: all, and of those without flops
        self.rank_class: Floats = np.zeros((ranks, 1 + sizes[0]))
        self.rank_provenance: Floats = np.zeros((ranks, 1 + sizes[1]))

    def add(self, window: Window) -> None:
        """Adds the time (ns), bytes and flops of one step's rows on GPUs."""
        mask = _DEVICE[window["kind"]] & window.own & ~self._annotations.tuning(window["rank"], window["launch"])
        rows = {name: window[name][mask] for name in _READ}
        start, end = rows["start"], rows["end"]
        ready = np.clip(rows["ready"], start, end)
        time = (end - np.where(_COMMUNICATION[rows["kind"]], ready, start)).astype(np.float64)
        rows["at_peak"] = rows["flops"] * 1e9 / self._peaks[rows["shape"].astype(np.int64) + 1]
        self._kernels.add(rows["name"].astype(np.int64), time, rows)
        self._operators.add(rows["op"].astype(np.int64), time, rows)
        self._by_class.add(rows["cls"].astype(np.int64), time, rows)
        self._modules.add(self._annotations.at(rows["rank"], rows["launch"]), time, rows)
        kernel = rows["kind"] == _KERNEL
        for sums, weights in ((self._kernel_time, time), (self._kernel_flops, rows["flops"])):
            sums += np.bincount(rows["cls"][kernel].astype(np.int64) + 1, weights[kernel], len(sums))
        again = kernel & (rows["flops"] > 0)
        again[again] = self._annotations.within(RECOMPUTED, rows["rank"][again], rows["launch"][again])
        self._recomputed += np.bincount(rows["cls"][again].astype(np.int64) + 1, rows["flops"][again], len(sums))
        product, name, shape = self._in_float32
        self._float32 += float(time[kernel & product[rows["cls"]] & name[rows["name"]] & shape[rows["shape"]]].sum())
        products = kernel & product[rows["cls"]]
        self._products += time[products].sum(), time[products & (rows["flops"] == 0)].sum()
        rank = rows["rank"].astype(np.int64)
        for column, table in (("cls", self.rank_class), ("provenance", self.rank_provenance)):
            key = rank * table.shape[1] + rows[column] + 1
            table += np.bincount(key, time, table.size).reshape(table.shape)

    def of_rank(self, position: int) -> tuple[dict[str, float], dict[str, float]]:
        """Device time by class and by provenance."""
        return (
            _named(self._classes, self.rank_class[position]),
            _named(self._provenances, self.rank_provenance[position]),
        )

    def knows_flops(self) -> bool:
        """False where products have no flops for a part of their time that decides MFU: no shapes, or compiled code."""
        products, without = self._products.tolist()
        return bool(without <= _FEW_UNKNOWN * products)

    def kernel_classes(self) -> dict[str, tuple[float, float]]:
        """ns and flops of kernels by class, communication and copies of the driver left out."""
        columns = zip(["unknown", *self._classes], self._kernel_time.tolist(), self._kernel_flops.tolist(), strict=True)
        return {name: (time, flops) for name, time, flops in columns if time}

    def model_flops(self) -> dict[str, float]:
        """Flops of kernels by class, without those that activation checkpointing computes again."""
        return _named(self._classes, self._kernel_flops - self._recomputed)

    def float32(self) -> float:
        """ns of products in float32 that use no tensor cores."""
        return self._float32

    def kernels(self) -> list[Work]:
        """The kernels that take the most time."""
        return self._report(self._kernels, TOP)

    def operators(self) -> list[Work]:
        """The operators that take the most time."""
        return self._report(self._operators, TOP)

    def classes(self) -> list[Work]:
        """All classes of operators, by time."""
        return self._report(self._by_class, None)

    def modules(self) -> list[Work]:
        """Work by nn.Module if the log has them, else by annotation."""
        return self._report(self._modules, MOST_MODULES)

    def _report(self, sums: _By, top: int | None) -> list[Work]:
        total = float(sums.time.sum()) or 1.0
        order = sorted(np.flatnonzero(sums.count).tolist(), key=lambda i: (-sums.time[i], sums.words[i]))
        return [
            Work(
                name=sums.words[i] or "(none)",
                cls=_largest(self._classes, sums.by_class[i]),
                count=int(sums.count[i]),
                time=float(sums.time[i]),
                shortest=float(sums.shortest[i]),
                longest=float(sums.longest[i]),
                share=float(sums.time[i]) / total,
                flops=float(sums.flops[i]),
                at_peak=float(sums.at_peak[i]),
                bytes=float(sums.bytes[i]),
                provenance=_largest(self._provenances, sums.by_provenance[i]),
            )
            for i in order[:top]
        ]


def _peaks(log: Log) -> Floats:
    """FLOP/s that the GPU reaches at most with each word of the log's shapes; the first is for rows without one.

    The dtype of the first tensor decides. Infinite if the log does not know the GPU's peaks."""
    peaks = log.metadata.peak_flops
    usual = log.metadata.peak() or np.inf
    found = [usual]
    for shape in log.words("shape"):
        first = _FIRST_TENSOR.search(shape)
        format = next((format for start, format in _NARROW.items() if first and first[1].startswith(start)), "")
        found.append(peaks.get(format) or usual)
    return np.array(found)


def _float32_words(log: Log) -> tuple[Mask, Mask, Mask]:
    """Words of the columns cls, name and shape of products in float32 without tensor cores; the last is for none."""
    return (
        np.array([word in PRODUCTS for word in log.words("cls")] + [False]),
        np.array([not _TENSOR_CORES.search(word) for word in log.words("name")] + [False]),
        np.array([word.startswith("fp32[") for word in log.words("shape")] + [False]),
    )


def _named(words: list[str], values: Floats) -> dict[str, float]:
    named = zip(["unknown", *words], values.tolist(), strict=True)
    return {name: value for name, value in named if value}


def _largest(words: list[str], values: Floats) -> str:
    return ["unknown", *words][int(np.argmax(values))]
