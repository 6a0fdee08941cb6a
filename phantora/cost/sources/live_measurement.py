"""Prices of operators that are measured during the run (``phantora trace --profile live``)."""

from __future__ import annotations

from collections.abc import Callable

from phantora.cost.query import Query
from phantora.cost.sources.entries import measured_price
from phantora.cost.table import Entry
from phantora.cost.timing import own_kernels
from phantora.cost.types import OperatorSignature, Price
from phantora.hardware.types import Gpu

Live = Callable[[OperatorSignature, str], Entry | None]
"""Measures an operator with its compute type now; None if that is not possible."""


class LiveMeasurement:
    """Measures on the machine's own GPU."""

    def __init__(self, gpu: Gpu, live: Live) -> None:
        self._gpu = gpu
        self._live = live

    def price(self, query: Query) -> Price | None:
        """The measured times; None if the operator cannot be measured or launches no kernel."""
        entry = self._live(query.signature, query.compute)
        if entry is None or not own_kernels(entry):
            return None
        return measured_price(self._gpu, entry, query)
