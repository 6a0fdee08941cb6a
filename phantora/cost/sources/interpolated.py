"""Prices from measured neighbours in the tables of this GPU."""

from __future__ import annotations

from collections.abc import Sequence

from phantora.cost.analytic_model import DEFAULT_ERROR
from phantora.cost.gpu_table import GpuTable
from phantora.cost.query import Query, Source
from phantora.cost.sources.entries import tile_counter_ns
from phantora.cost.sources.near import near_price
from phantora.cost.types import Price
from phantora.hardware.types import Gpu

ERRORS = {
    "attention": 0.17,
    "convolution": 0.34,
    "copy": 0.15,
    "elementwise": 0.11,
    "embedding": 0.20,
    "fill": 0.12,
    "gemm": 0.19,
    "loss": 0.13,
    "normalization": 0.18,
    "optimizer": 0.08,
    "random": 0.08,
    "reduction": 0.24,
    "sort": 0.19,
}
"""Relative, by class: 90th percentile with a fifth of the table hidden, the largest of three seeds
(``python -m validation.compare.leave_out --seed N``)."""
FAR_ERROR = 2.0
"""Times the error of the class: from there on a table of the same architecture may be closer. An assumption."""


class Interpolated:
    """The first of `tables` with neighbours decides; if they are far, `same_architecture` by a smaller error."""

    def __init__(self, gpu: Gpu, tables: Sequence[GpuTable], same_architecture: Source) -> None:
        self._gpu = gpu
        self._tables = tables
        self._same_architecture = same_architecture

    def price(self, query: Query) -> Price | None:
        """The interpolated time; None without neighbours."""
        if not query.comparable:
            return None
        for table in self._tables:
            found = table.predict(query)
            if found is not None:
                ns, near = found
                ns += tile_counter_ns(self._gpu, query)
                return self._closer(near_price(query.base, ns, "interpolated", near, ERRORS), query)
        return None

    def _closer(self, price: Price, query: Query) -> Price:
        """`price`, or that of the same architecture if its error is smaller."""
        if (price.error or 0.0) < FAR_ERROR * ERRORS.get(price.cls, DEFAULT_ERROR):
            return price
        other = self._same_architecture.price(query)
        return price if other is None or (price.error or 0.0) <= (other.error or 0.0) else other
