"""Prices from the table of another GPU, scaled by the limits of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from phantora.cost.analytic_model import AnalyticModel
from phantora.cost.gpu_table import GpuTable
from phantora.cost.interpolation import Near
from phantora.cost.query import Query
from phantora.cost.scaling import scaled_ns
from phantora.cost.sources.entries import hidden_memsets_ns, tile_counter_ns
from phantora.cost.sources.near import near_price
from phantora.cost.timing import kernel_ns, own_kernels
from phantora.cost.types import Price

ERRORS = {
    "attention": 0.07,
    "convolution": 0.11,
    "copy": 0.08,
    "elementwise": 0.09,
    "embedding": 0.04,
    "fill": 0.13,
    "gemm": 0.10,
    "loss": 0.13,
    "normalization": 0.14,
    "optimizer": 0.06,
    "random": 0.07,
    "reduction": 0.10,
    "sort": 0.07,
}
"""Relative, by class: 90th percentile of H200 predicted from H100
(``python -m validation.compare.leave_out --gpu H200 --other H100``)."""
SAME = Near(1.0, 0.0)
"""The operator itself was measured, on the other GPU."""


class ScaledFromOtherGpu:
    """The table with the smallest error decides. `read` returns the tables; it is called once, at the first query."""

    def __init__(self, target: AnalyticModel, read: Callable[[], Sequence[GpuTable]]) -> None:
        self._target = target
        self._gpu = target.gpu
        self._read = read
        wider = self._gpu.scaled_errors
        self._errors = {cls: max(error, wider.get(cls, wider.get("gemm", 0.0))) for cls, error in ERRORS.items()}

    @cached_property
    def _tables(self) -> Sequence[GpuTable]:
        return self._read()

    def price(self, query: Query) -> Price | None:
        """The scaled time; None if no table has the operator or neighbours of it."""
        if not query.comparable:
            return None
        prices = filter(None, (self._scaled(table, query) for table in self._tables))
        return min(prices, key=lambda price: price.error or 0.0, default=None)

    def _scaled(self, table: GpuTable, query: Query) -> Price | None:
        entry = table.entry(query.keys)
        if entry is not None:
            near = SAME
            there = sum(kernel_ns(kernel, query.base.cls, query.l2_hits) for kernel in own_kernels(entry))
            memsets = hidden_memsets_ns(self._gpu, entry, query.kernels)
        else:
            found = table.predict(query)
            if found is None:
                return None
            there, near = found
            memsets = tile_counter_ns(self._gpu, query)
        ns = scaled_ns(there, table.analytic, self._target, query.signature, query.compute, query.kernels)
        return near_price(query.base, ns + memsets, "scaled", near, self._errors)
