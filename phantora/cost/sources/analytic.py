"""The analytic price: the last source, which has a price for each operator."""

from __future__ import annotations

from dataclasses import replace

from phantora.cost.query import Query
from phantora.cost.types import Price
from phantora.hardware.types import Gpu


class Analytic:
    """Prices by the limits of the GPU."""

    def __init__(self, gpu: Gpu) -> None:
        self._errors = gpu.scaled_errors

    def price(self, query: Query) -> Price:
        """The analytic price, with at least the error of published kernels where the GPU's file gives it."""
        if not query.comparable or not self._errors:
            return query.base
        least = self._errors.get(query.base.cls, self._errors.get("gemm", 0.0))
        return replace(query.base, error=max(query.base.error or 0.0, least))
