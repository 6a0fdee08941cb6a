"""The cost model of a GPU: an ordered list of sources, the first with a price decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from phantora.cost.analytic_model import AnalyticModel
from phantora.cost.gpu_table import GpuTable
from phantora.cost.kernels import spins
from phantora.cost.l2 import COMPUTES, write_back_saved_ns
from phantora.cost.published import Published
from phantora.cost.query import Query, Source, query_of
from phantora.cost.scaling import COMMON_SHARES
from phantora.cost.sources.analytic import Analytic
from phantora.cost.sources.exact_table import ExactTable
from phantora.cost.sources.interpolated import Interpolated
from phantora.cost.sources.library_calls import LibraryCalls
from phantora.cost.sources.live_measurement import Live, LiveMeasurement
from phantora.cost.sources.published_measurements import PublishedMeasurements
from phantora.cost.sources.scaled import ScaledFromOtherGpu
from phantora.cost.sources.traced_operators import TracedOperators
from phantora.cost.table import Table
from phantora.cost.traced import read_traced
from phantora.cost.transfers import transfer_price
from phantora.cost.types import CALIBRATED, KernelLaunch, L2State, OperatorSignature, Price, scale_to
from phantora.hardware.types import Gpu

BY_OTHERS = ("interpolated", "scaled")
# Flops by torch's conventions over those that are computed: causal masks; transforms of images, 1.66 at most in the
# tables. Bytes of operands over those that are read: strides, 1.15 at most.
SHORTCUTS = {"attention": 2.0, "convolution": 2.0}
STRIDED = 1.2

TablesOfGpus = Sequence[tuple[Table, Gpu]]


class GpuCostModel:
    """Implements :class:`phantora.cost.types.CostModel` for `gpu`.

    `own` are tables of this GPU and `foreign` of others. `same_architecture` reads tables of GPUs of the same
    architecture, for operators that are far from all of their kind in the own tables. `published` are kernels that
    others measured on this GPU. `live` measures operators that no own table has.
    """

    def __init__(
        self,
        gpu: Gpu,
        own: Sequence[Table] = (),
        foreign: TablesOfGpus = (),
        live: Live | None = None,
        same_architecture: Callable[[], TablesOfGpus] = tuple,
        published: Published | None = None,
    ) -> None:
        self.gpu = gpu
        self._analytic = AnalyticModel(gpu)
        self._published = published
        self._own = [GpuTable(table, gpu) for table in own]
        self._foreign = _gpu_tables(foreign)
        close = ScaledFromOtherGpu(self._analytic, lambda: _gpu_tables(same_architecture()))
        table = ExactTable(gpu, self._own)
        traced = gpu.measured.kernels if gpu.measured else ""
        self._sources: tuple[Source, ...] = (
            *([TracedOperators(gpu, read_traced(Path(traced)), table)] if traced else []),
            table,
            *([LiveMeasurement(gpu, live)] if live is not None else []),
            LibraryCalls(self._analytic.machine, self.operator),
            *([PublishedMeasurements(published, gpu.name)] if published is not None else []),
            Interpolated(gpu, self._own, close),
            ScaledFromOtherGpu(self._analytic, lambda: self._foreign),
            Analytic(gpu),
        )

    @property
    def tables(self) -> list[str]:
        """The tables and what they were measured with, for the log."""
        texts = []
        for source in (*self._own, *self._foreign):
            about = source.table.about
            texts.append(
                f"{Path(source.table.path).name}: {about.get('gpu')}, torch {about.get('torch')}, "
                f"CUDA {about.get('cuda')}, driver {about.get('driver')}"
            )
        if self.gpu.measured and self.gpu.measured.kernels:
            texts.append(f"{Path(self.gpu.measured.kernels).name}: {self.gpu.product}, by phantora calibrate")
        return [*texts, *([self._published.text] if self._published else [])]

    @property
    def by_specification(self) -> bool:
        """No kernel of this GPU is known: all times follow from the limits of its data sheet."""
        return not self._own and self._published is None and not (self.gpu.measured and self.gpu.measured.kernels)

    @property
    def common_shares(self) -> dict[str, float]:
        """Share of the variance that the prices of a class have in common, by class; empty for a GPU with a table."""
        return {} if self._own else dict(COMMON_SHARES)

    def of_other_builds(self, torch: str) -> list[str]:
        """A line for each table that was measured with another torch or CUDA than `torch`, as 2.11.0+cu130."""
        return [
            f"{Path(source.table.path).name} has kernel times of torch {other}; those of torch {torch} may differ "
            "(`phantora profile` measures them)"
            for source in (*self._own, *self._foreign)
            if _build(other := source.table.about.get("torch", "of no known version")) != _build(torch)
        ]

    def operator(
        self, signature: OperatorSignature, kernels: tuple[KernelLaunch, ...], l2: L2State | None = None
    ) -> Price:
        """Price of an operator's kernels together. `l2` is None where it is unknown."""
        if any(map(spins, kernels)):
            return self._with_spinning(signature, kernels, l2)
        query = query_of(self._analytic, signature, kernels, l2.hits if l2 else None)
        price = self._price(query)
        if price.provenance == CALIBRATED or not l2 or l2.written == 1.0:
            return price
        return self._after_reads(price, query, signature, l2)

    def kernel(self, kernel: KernelLaunch) -> Price:
        """Analytic price of a kernel without an operator."""
        return self._analytic.kernel(kernel)

    def covered(self, kernel: KernelLaunch) -> Price:
        """Analytic price of a kernel whose work is in the price of its operator's first kernels."""
        return self._analytic.covered(kernel)

    def copy(self, kind: str, size: int) -> Price:
        """Price of a copy of `size` bytes; `kind` is ``h2d``, ``d2h`` or ``d2d``."""
        tables = (source.table for source in self._own)
        return transfer_price(tables, self._analytic.copy(kind, size), "copy", (kind,), size)

    def memset(self, size: int) -> Price:
        """Price of setting `size` bytes."""
        tables = (source.table for source in self._own)
        return transfer_price(tables, self._analytic.memset(size), "memset", (), size)

    # ------------------------------------------------------------------

    def _price(self, query: Query) -> Price:
        """The price of the first source that has one."""
        prices = (source.price(query) for source in self._sources)
        price = next((price for price in prices if price is not None and self._is_possible(price, query)), query.base)
        products = self.gpu.measured.products if self.gpu.measured else 1.0
        if products == 1.0 or price.cls not in COMPUTES or price.provenance == CALIBRATED:
            return price
        return replace(price, durations=scale_to(price.durations, sum(price.durations) * products))

    def _is_possible(self, price: Price, query: Query) -> bool:
        """False for a price by other operators that is below the time of its arithmetic, or of its memory, at the peak
        of the GPU: the next source has a price then."""
        if price.provenance not in BY_OTHERS:
            return True
        machine, ns = self._analytic.machine, sum(price.durations)
        if price.cls in COMPUTES and price.format:
            dtype = "tfloat32" if query.compute else price.format
            if price.flops / machine.peak(dtype) > ns * SHORTCUTS.get(price.cls, 1.0):
                return False
        return price.bytes - 2.0 * self.gpu.l2_bytes <= ns * self.gpu.hbm_bandwidth / 1e9 * STRIDED

    def _after_reads(self, price: Price, query: Query, signature: OperatorSignature, l2: L2State) -> Price:
        """`price` with less write-back: operators before this one left less than the most dirty lines in L2."""
        most = float("inf")
        if price.cls in COMPUTES:  # with its operands in L2 it does not wait for memory
            cold, warm = (sum(self._price(replace(query, l2_hits=hits)).durations) for hits in (0.0, 1.0))
            most = float(cold - warm)
        saved = write_back_saved_ns(self.gpu, signature, price, most, l2)
        if saved <= 0:
            return price
        return replace(price, durations=scale_to(price.durations, sum(price.durations) - saved))

    def _with_spinning(
        self, signature: OperatorSignature, kernels: tuple[KernelLaunch, ...], l2: L2State | None
    ) -> Price:
        """Price of an operator with kernels that spin for a number of cycles."""
        others = tuple(kernel for kernel in kernels if not spins(kernel))
        price = self.operator(signature, others, l2) if others else self.kernel(kernels[0])
        rest = iter(price.durations if others else ())
        parts = (self.kernel(kernel).durations[0] if spins(kernel) else next(rest, 1) for kernel in kernels)
        return replace(price, durations=tuple(parts))


def _gpu_tables(tables: TablesOfGpus) -> list[GpuTable]:
    return [GpuTable(table, gpu) for table, gpu in tables]


def _build(torch: str) -> tuple[str, str]:
    """Build of torch that decides its kernels: 2.11 and cu130 of 2.11.0+cu130."""
    release, _, local = torch.partition("+")
    return ".".join(release.split(".")[:2]), local
