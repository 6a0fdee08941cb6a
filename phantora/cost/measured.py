"""The cost model that rests on measurements: tables first, then neighbours, then the analytic model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import log2
from pathlib import Path

import numpy as np

from phantora.cache import cache_directory
from phantora.cost import copies, float8, power, stand_ins
from phantora.cost.families import attention, base_name, family_of, gemm
from phantora.cost.interpolation import Near, Neighbours
from phantora.cost.kernels import spins
from phantora.cost.l2 import COMPUTES, WarmRatios, write_back_saved_ns
from phantora.cost.members import kept_for
from phantora.cost.parse import compute_of
from phantora.cost.published import Published
from phantora.cost.roofline import DEFAULT_ERROR, OF_PROGRAMS, Roofline
from phantora.cost.scaling import modelled_ns, scaled_ns
from phantora.cost.table import Entry, Table, TimedKernel, read_table, signature_key, table_gpu
from phantora.cost.tensors import on_gpu, returning
from phantora.cost.timing import kernel_ns, own_kernels
from phantora.cost.types import KernelLaunch, L2State, OperatorSignature, Price
from phantora.errors import PhantoraError
from phantora.hardware import load_gpu
from phantora.hardware.types import Gpu

DATA = Path(__file__).parent / "data"
# 90th percentile of the relative error by class with a fifth of the table hidden (the largest of three seeds), and
# of H200 predicted from H100 (validation/compare/leave_out.py prints both).
INTERPOLATED_ERRORS = {
    "attention": 0.16, "convolution": 0.17, "copy": 0.09, "elementwise": 0.09, "embedding": 0.13, "fill": 0.12,
    "gemm": 0.15, "loss": 0.13, "normalization": 0.15, "optimizer": 0.07, "random": 0.08, "reduction": 0.17,
    "sort": 0.12,
}  # fmt: skip
SCALED_ERRORS = {
    "attention": 0.07, "convolution": 0.11, "copy": 0.08, "elementwise": 0.09, "embedding": 0.04, "fill": 0.13,
    "gemm": 0.10, "loss": 0.13, "normalization": 0.14, "optimizer": 0.06, "random": 0.07, "reduction": 0.10,
    "sort": 0.07,
}  # fmt: skip
CURVE_ERROR = 0.11  # of copies and memsets between two measured sizes, likewise
SAME = Near(1.0, 0.0)  # measured on another GPU
LEAST_NS = 850.0
"""Of a kernel in a price that rests on neighbours: 99.9 % of the operators in the tables take more for each kernel."""
FAR_ERROR = 2.0  # times that of its class: from there on another GPU's table may be better than far neighbours
PUBLISHED_ERROR = 0.10  # of products of a published size: nine of ten of H100 and H200 are as near to ours
REPEATED_ERROR = 0.02  # of copies of a measured size: what repetitions differ by

Live = Callable[[OperatorSignature, str], Entry | None]
"""Measures an operator now; None when that cannot be done."""


class Source:
    """A table with the analytic model of the GPU it was measured on."""

    def __init__(self, table: Table, gpu: Gpu) -> None:
        self.table = table
        self.gpu = gpu
        self.roofline = Roofline(gpu)
        kept = kept_for(table.digest, gpu)
        self.neighbours = Neighbours(table, self.model, self.roofline.machine, kept)
        self.warm_ratios = WarmRatios(table, kept)

    def model(self, signature: OperatorSignature, compute: str, kernels: tuple[KernelLaunch, ...]) -> float:
        """The model's time in ns of an operator, without measurements."""
        return modelled_ns(self.roofline, signature, compute, kernels)


class Measured:
    """Implements :class:`phantora.cost.types.CostModel` for `gpu` from tables of measurements.

    `own` are of this GPU, the first that knows an operator answers; `foreign` are of others, whose
    times are scaled by the ratio of the analytic models, that is of the GPUs' limits. `alike` reads the table of a GPU
    of the same architecture, for operators that are far from all of their kind in the own tables. `published` are
    products that others measured on this GPU.
    """

    def __init__(
        self, gpu: Gpu, own: Sequence[Table] = (), foreign: Sequence[tuple[Table, Gpu]] = (), live: Live | None = None,
        alike: Callable[[], Sequence[tuple[Table, Gpu]]] = tuple, published: Published | None = None,
    ) -> None:  # fmt: skip
        self.gpu = gpu
        self._roofline = Roofline(gpu)
        self._own = [Source(table, gpu) for table in own]
        self._foreign = [Source(table, other) for table, other in foreign]
        self._live = live
        self._read_alike = alike
        self._published = published
        wider = gpu.scaled_errors
        self._scaled_errors = {
            cls: max(error, wider.get(cls, wider.get("gemm", 0.0))) for cls, error in SCALED_ERRORS.items()
        }

    @property
    def tables(self) -> list[str]:
        """What the tables are and were measured with, for the log."""
        texts = []
        for source in (*self._own, *self._foreign):
            about = source.table.about
            texts.append(
                f"{Path(source.table.path).name}: {about.get('gpu')}, torch {about.get('torch')}, "
                f"CUDA {about.get('cuda')}, driver {about.get('driver')}"
            )
        return [*texts, *([self._published.text] if self._published else [])]

    def of_other_builds(self, torch: str) -> list[str]:
        """A line for each table that was measured with another torch or CUDA than `torch`, as 2.11.0+cu130."""
        return [
            f"{source.table.path} was measured with torch {other}, and this run has {torch}, whose kernels may differ; "
            "`phantora profile` measures with the torch that is installed"
            for source in (*self._own, *self._foreign)
            if _build(other := source.table.about.get("torch", "of no known version")) != _build(torch)
        ]

    def operator(
        self, signature: OperatorSignature, kernels: tuple[KernelLaunch, ...], l2: L2State | None = None
    ) -> Price:
        """Of any signature: one whose arguments no family foresaw is priced by its kernels."""
        if any(map(spins, kernels)):
            return self._beside_spinning(signature, kernels, l2)
        try:
            price = self._operator(signature, kernels, l2.hits if l2 else None)
            return self._behind_reads(price, signature, kernels, l2) if l2 and l2.written < 1.0 else price
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            return self._roofline.by_kernels(kernels)

    def _behind_reads(
        self, price: Price, signature: OperatorSignature, kernels: tuple[KernelLaunch, ...], l2: L2State
    ) -> Price:
        """`price` where less than the most of what the operator displaces in L2 was written."""
        most = float("inf")
        if price.cls in COMPUTES:  # with its operands in L2 it does not wait for memory
            cold, warm = (sum(self._operator(signature, kernels, hits).durations) for hits in (0.0, 1.0))
            most = float(cold - warm)
        saved = write_back_saved_ns(self.gpu, signature, price, most, l2)
        return replace(price, durations=_scale(price.durations, sum(price.durations) - saved)) if saved > 0 else price

    def _beside_spinning(
        self, signature: OperatorSignature, kernels: tuple[KernelLaunch, ...], l2: L2State | None
    ) -> Price:
        """Of an operator that lets time pass between its other kernels."""
        others = tuple(kernel for kernel in kernels if not spins(kernel))
        price = self.operator(signature, others, l2) if others else self.kernel(kernels[0])
        rest = iter(price.durations if others else ())
        parts = (self.kernel(kernel).durations[0] if spins(kernel) else next(rest, 1) for kernel in kernels)
        return replace(price, durations=tuple(parts))

    def _operator(
        self, signature: OperatorSignature, kernels: tuple[KernelLaunch, ...], l2_hits: float | None
    ) -> Price:
        base = self._roofline.operator(signature, kernels)
        signature = float8.as_tables_have_it(replace(returning(signature), outputs=()))
        compute = compute_of(kernels)
        keys = _keys(signature, compute)
        for source in self._own:
            entry = _entry(source.table, keys)
            if entry is not None:
                return self._exact(entry, kernels, base, l2_hits)
        if self._live is not None:
            entry = self._live(signature, compute)
            if entry is not None and own_kernels(entry):
                return self._exact(entry, kernels, base, l2_hits)
        if signature.work is not None or signature.name.startswith(OF_PROGRAMS):
            return base
        if any(t.layout for t in on_gpu(signature.args)):  # dense neighbours say nothing of sparse operands
            return base
        if (price := self._by_calls(signature, kernels, base, l2_hits)) is not None:
            return price
        if (price := self._of_published(signature, compute, base)) is not None:
            return price
        for source in self._own:
            near = source.neighbours.ratio(signature, compute, kernels)
            if near is not None:
                ns = near.ratio * source.model(signature, compute, kernels)
                ns = ns * source.warm_ratios.factor(signature, base.cls, ns, l2_hits) + self._cleared(base, kernels)
                price = _spread(ns, base, "interpolated", INTERPOLATED_ERRORS, near)
                return self._nearer(price, signature, compute, keys, kernels, base, l2_hits)
        for source in self._foreign:
            price = self._scaled(source, signature, compute, keys, kernels, base, l2_hits)
            if price is not None:
                return price
        published = self.gpu.scaled_errors
        if not published:
            return base
        return replace(base, error=max(base.error or 0.0, published.get(base.cls, published.get("gemm", 0.0))))

    def _of_published(self, signature: OperatorSignature, compute: str, base: Price) -> Price | None:
        """A product or a forward attention that others measured on this GPU, or that lies between such; None for what
        is none."""
        if self._published is None:
            return None
        name, exact = base_name(signature.name), False
        if base.cls == "attention":
            passed = attention.from_signature(signature, name) if attention.classify(name) else None
            found = self._published.attention(passed) if passed is not None else None
        else:
            products = gemm.from_signature(signature, name) if name in gemm.PUBLISHED else []
            if len(products) != 1:
                return None
            product = replace(products[0], dtype="tfloat32") if compute == "tf32" else products[0]
            found = self._published.read(product)
            exact = found is not None and not found.distance and product.batch == 1
        if found is None:
            return None
        provenance = "measured" if exact else "interpolated"
        return replace(
            base, durations=_scale(base.durations, found.ns), provenance=provenance,
            error=PUBLISHED_ERROR if exact else found.error,
        )  # fmt: skip

    def _by_calls(
        self, signature: OperatorSignature, kernels: tuple[KernelLaunch, ...], base: Price, l2_hits: float | None
    ) -> Price | None:
        """An extension's operator that calls libraries: each call as torch's operator that makes it, other kernels by
        the model; None for what calls none."""
        if "::" not in base_name(signature.name) or len(base.durations) != len(kernels):
            return None
        family = family_of(base_name(signature.name))
        calls = {}
        for i, kernel in enumerate(family.call_of(signature, kernel) for kernel in kernels):
            like = stand_ins.of_call(kernel.library)
            if like is not None:
                calls[i] = self._part(like, kernel, l2_hits)
        if not calls:
            return None
        durations = tuple(sum(calls[i].durations) if i in calls else ns for i, ns in enumerate(base.durations))
        heaviest = max(calls.values(), key=lambda price: sum(price.durations))
        provenance = "interpolated" if heaviest.provenance == "measured" else heaviest.provenance
        whole = max(1, sum(durations))
        errors = [(sum(price.durations), price.error or 0.0) for price in calls.values()]
        rest = whole - sum(ns for ns, _ in errors)
        error = (sum(ns * each for ns, each in errors) + rest * (base.error or 0.0)) / whole
        return replace(
            base, durations=durations, provenance=provenance, error=max(CURVE_ERROR, error),
            tiles=heaviest.tiles or base.tiles, format=heaviest.format or base.format, sms=heaviest.sms,
        )  # fmt: skip

    def _part(self, like: OperatorSignature, kernel: KernelLaunch, l2_hits: float | None) -> Price:
        """Of a call that does a share of the work that its extents tell, or may use some of the SMs only."""
        call = kernel.library
        machine = self._roofline.machine
        on_all = replace(kernel, library={key: value for key, value in call.items() if key != "sms"})
        l2 = None if l2_hits is None else L2State(l2_hits)
        price = replace(self.operator(like, (on_all,), l2), sms=int(call.get("sms", 0)))
        longer = power.on_fewer_sms(machine, price, gemm.on_fewer_sms(machine, call))
        share = float(call.get("share", 1.0)) * longer
        if share == 1.0:
            return price
        return replace(price, durations=_scale(price.durations, sum(price.durations) * share))

    def kernel(self, kernel: KernelLaunch) -> Price:
        """Price of a kernel whose operator is not known: the model's."""
        return self._roofline.kernel(kernel)

    def covered(self, kernel: KernelLaunch) -> Price:
        """Price of a kernel whose work is in the price of its operator's first ones: the model's."""
        return self._roofline.covered(kernel)

    def copy(self, kind: str, size: int) -> Price:
        """Price of a copy of `size` bytes; `kind` is ``h2d``, ``d2h`` or ``d2d``."""
        return self._moved(self._roofline.copy(kind, size), "copy", (kind,), size)

    def memset(self, size: int) -> Price:
        """Price of setting `size` bytes."""
        return self._moved(self._roofline.memset(size), "memset", (), size)

    # ------------------------------------------------------------------

    def _exact(
        self, entry: Entry, kernels: tuple[KernelLaunch, ...], base: Price, l2_hits: float | None
    ) -> Price:
        """The measured times, kernel by kernel where as many were launched."""
        own = own_kernels(entry)
        times = [kernel_ns(kernel, base.cls, l2_hits) for kernel in own]
        beside = self._beside(entry, kernels)
        total = sum(times) + beside
        doubt = sum(_doubt(kernel) * ns for kernel, ns in zip(own, times, strict=True))
        error = max(0.01, doubt / max(1.0, sum(times)))
        if base.tiles:
            base = replace(base, tiles=_measured_tiles(entry, kernels) or base.tiles)
        if len(times) == len(base.durations):
            scale = total / max(1.0, sum(times))
            durations = tuple(max(1, round(t * scale)) for t in times)
        else:
            extra = max(0, len(times) - len(base.durations)) * self.gpu.calibration.library_gap_ns
            durations = _scale(base.durations, total + extra)
        return replace(base, durations=durations, provenance="measured", error=error)

    def _beside(self, entry: Entry, kernels: tuple[KernelLaunch, ...]) -> float:
        """Memsets that a library issues inside its call, which no stub shows, with a gap for each."""
        if not any(kernel.library for kernel in kernels):
            return 0.0
        hidden = [kernel for kernel in entry.kernels if kernel.kind == "memset"]
        return sum(kernel.cold + self.gpu.calibration.kernel_gap_ns for kernel in hidden)

    def _cleared(self, base: Price, kernels: tuple[KernelLaunch, ...]) -> float:
        """The same where it is not known: cuBLAS clears a counter of tiles before a product on tensor cores of Hopper
        and later that takes more than one wave (traces of training on H200: every such kernel, and no other)."""
        calls = sum(bool(kernel.library) for kernel in kernels)
        waves = base.tiles > self.gpu.sms and base.format and self.gpu.compute_capability >= (9, 0)
        return calls * (self.gpu.calibration.floor_ns + self.gpu.calibration.kernel_gap_ns) if waves else 0.0

    @cached_property
    def _alike(self) -> list[Source]:
        return [Source(table, other) for table, other in self._read_alike()]

    def _nearer(
        self, price: Price, signature: OperatorSignature, compute: str, keys: Sequence[str],
        kernels: tuple[KernelLaunch, ...], base: Price, l2_hits: float | None,
    ) -> Price:  # fmt: skip
        """`price`, or that from a GPU of the same architecture where the neighbours of `price` are farther."""
        if (price.error or 0.0) < FAR_ERROR * INTERPOLATED_ERRORS.get(price.cls, DEFAULT_ERROR):
            return price
        prices = [self._scaled(source, signature, compute, keys, kernels, base, l2_hits) for source in self._alike]
        return min([price, *filter(None, prices)], key=lambda each: each.error or 0.0)

    def _scaled(
        self, source: Source, signature: OperatorSignature, compute: str, keys: Sequence[str],
        kernels: tuple[KernelLaunch, ...], base: Price, l2_hits: float | None,
    ) -> Price | None:  # fmt: skip
        entry = _entry(source.table, keys)
        if entry is not None:
            there, near = sum(kernel_ns(kernel, base.cls, l2_hits) for kernel in own_kernels(entry)), SAME
            beside = self._beside(entry, kernels)
        else:
            found = source.neighbours.ratio(signature, compute, kernels)
            if found is None:
                return None
            there, near = found.ratio * source.model(signature, compute, kernels), found
            there *= source.warm_ratios.factor(signature, base.cls, there, l2_hits)
            beside = self._cleared(base, kernels)
        ns = scaled_ns(there, source.roofline, self._roofline, signature, compute, kernels)
        return _spread(ns + beside, base, "scaled", self._scaled_errors, near)

    def _moved(self, base: Price, name: str, first: tuple[str, ...], size: int) -> Price:
        """A copy or memset read off the curve of its kind."""
        for source in self._own:
            points = curve(source.table, name, first, copies.in_pages(size))
            if len(points) < 2 or size <= 0:
                continue
            value = read_curve(points, size)
            measured = size in points
            return replace(
                base,
                durations=(max(1, round(value)),),
                provenance="measured" if measured else "interpolated",
                error=REPEATED_ERROR if measured else CURVE_ERROR,
            )
        return base


def _keys(signature: OperatorSignature, compute: str) -> list[str]:
    """Of the operator, and of another that runs the same kernels."""
    same_work = family_of(base_name(signature.name)).same_work
    same = (signature, same_work(signature) if same_work else None)
    return [signature_key(each, compute) for each in same if each is not None]


def _entry(table: Table, keys: Sequence[str]) -> Entry | None:
    found = (table.get(key) for key in keys)
    return next((entry for entry in found if entry is not None and own_kernels(entry)), None)


def _build(torch: str) -> tuple[str, str]:
    """What chooses torch's kernels: 2.11 and cu130 of 2.11.0+cu130."""
    release, _, local = torch.partition("+")
    return ".".join(release.split(".")[:2]), local


def _measured_tiles(entry: Entry, kernels: tuple[KernelLaunch, ...]) -> int:
    """Tiles of the largest product, by the name of the kernel that was measured; 0 if it does not say."""
    called = [p for p in (gemm.from_library(kernel.library) for kernel in kernels) if p is not None]
    if not called:
        return 0
    largest = max(called, key=lambda p: p.flops)
    return max(gemm.tiles_of(kernel.name, largest) for kernel in own_kernels(entry))


def curve(table: Table, name: str, first: tuple[str, ...], in_pages: bool) -> dict[int, float]:
    """Measured ns of copies of one kind (or memsets) by their bytes, in ascending order. Of copies inside a GPU those
    of sizes that are `in_pages` or those that are not."""
    found = {
        int(entry.parsed.args[-1]): float(sum(kernel.cold for kernel in entry.kernels))
        for entry in table.of_operator(name)
        if entry.parsed.name.startswith("phantora::") and entry.parsed.args[:-1] == first
    }
    if first == ("d2d",):
        found = {s: ns for s, ns in found.items() if s <= copies.SMALL or copies.in_pages(s) == in_pages}
    return dict(sorted(found.items()))


def read_curve(points: Mapping[int, float], size: int) -> float:
    """ns of `size` bytes: a straight line between logarithms, the last rate beyond the largest."""
    at, ns = np.log2(np.maximum(1, list(points))), np.log(list(points.values()))
    beyond = max(1.0, size / 2.0 ** at[-1])
    return float(beyond * np.exp(np.interp(log2(size), at, ns)))


def _doubt(kernel: TimedKernel) -> float:
    """Relative: how far repetitions differ, or half of what L2 makes out, whichever is more."""
    return max(kernel.spread, abs(kernel.cold - kernel.warm) / max(1, kernel.cold + kernel.warm))


def error_of(cls: str, near: Near, errors: Mapping[str, float] = INTERPOLATED_ERRORS) -> float:
    """Relative, of a price that `near` gives: that of its class, more where neighbours are far."""
    known = errors.get(cls, DEFAULT_ERROR)
    return max(known, near.error) if near.error is not None else known * (1.0 + max(0.0, near.distance - 1.0))


def _spread(ns: float, base: Price, provenance: str, errors: dict[str, float], near: Near) -> Price:
    error = error_of(base.cls, near, errors)
    ns = max(ns, LEAST_NS * len(base.durations))
    return replace(base, durations=_scale(base.durations, ns), provenance=provenance, error=error)


def _scale(durations: tuple[int, ...], ns: float) -> tuple[int, ...]:
    """`durations` with the sum `ns`."""
    factor = ns / max(1, sum(durations))
    return tuple(max(1, round(duration * factor)) for duration in durations)


# ---------------------------------------------------------------------- which tables


def cache_folder() -> Path:
    """Where tables of this machine's own measurements lie."""
    return cache_directory() / "kernel-times"


def tables_for(gpu: Gpu, folders: Sequence[Path]) -> tuple[list[Table], list[tuple[Table, Gpu]]]:
    """Tables of `gpu`, those in earlier folders first; if there are none, that of the GPU most alike.

    Raises PhantoraError for a file that is no table.
    """
    paths = [(path, table_gpu(path)) for folder in folders for path in sorted(folder.glob("*.parquet"))]
    own = [read_table(path) for path, product in paths if product == gpu.product]
    if own:
        return own, []
    others = [(path, _gpu_of(path, product)) for path, product in paths]
    nearest = min(others, key=lambda pair: _unlikeness(gpu, pair[1]), default=None)
    return [], [(read_table(nearest[0]), nearest[1])] if nearest else []


def alike(gpu: Gpu, folders: Sequence[Path]) -> list[tuple[Table, Gpu]]:
    """Tables of other GPUs of the same architecture."""
    paths = [(path, table_gpu(path)) for folder in folders for path in sorted(folder.glob("*.parquet"))]
    others = [(path, _gpu_of(path, product)) for path, product in paths if product != gpu.product]
    same = [pair for pair in others if pair[1].compute_capability == gpu.compute_capability]
    return [(read_table(path), other) for path, other in same]


def _gpu_of(path: Path, product: str) -> Gpu:
    try:
        return load_gpu(product)
    except PhantoraError as error:
        raise PhantoraError(f"{path} was measured on {product!r}, which no GPU file describes ({error})") from error


def _unlikeness(gpu: Gpu, other: Gpu) -> tuple[float, float]:
    generation = abs(gpu.compute_capability[0] - other.compute_capability[0])
    return (float(generation), abs(log2(gpu.hbm_bandwidth / other.hbm_bandwidth)))
