"""Prices of operators that a table of this GPU holds with the same signature."""

from __future__ import annotations

from collections.abc import Sequence

from phantora.cost.gpu_table import GpuTable
from phantora.cost.query import Query
from phantora.cost.sources.entries import measured_price
from phantora.cost.types import Price
from phantora.hardware.types import Gpu


class ExactTable:
    """The first of `tables` with the operator decides."""

    def __init__(self, gpu: Gpu, tables: Sequence[GpuTable]) -> None:
        self._gpu = gpu
        self._tables = tables

    def price(self, query: Query) -> Price | None:
        """The measured times; None if no table has the operator."""
        for table in self._tables:
            entry = table.entry(query.keys)
            if entry is not None:
                return measured_price(self._gpu, entry, query)
        return None
