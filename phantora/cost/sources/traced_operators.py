"""Prices of operators that the trace of a real run on this GPU timed (``phantora trace --calibration``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from phantora.cost.l2 import COMPUTES
from phantora.cost.parse import signature_text
from phantora.cost.query import Query, Source
from phantora.cost.sources.entries import LEAST_ERROR
from phantora.cost.traced import TracedOperator, operator_key
from phantora.cost.types import CALIBRATED, Price, scale_to
from phantora.hardware.types import Gpu


class TracedOperators:
    """Operators by key. What a table has comes first for operators that compute: their traced time depends on the power
    limit, which the engine adds to prices."""

    def __init__(self, gpu: Gpu, operators: Mapping[str, TracedOperator], table: Source) -> None:
        self._gpu = gpu
        self._operators = operators
        self._table = table

    def price(self, query: Query) -> Price | None:
        """The traced time; None for operators that the trace does not have."""
        key = operator_key(query.signature.name, signature_text(query.signature)) if query.comparable else ""
        found = self._operators.get(key)
        if found is None or (query.base.cls in COMPUTES and self._table.price(query) is not None):
            return None
        hidden = max(0, found.kernels - len(query.base.durations))  # of a library call, which the stubs do not see
        durations = scale_to(query.base.durations, found.ns + hidden * self._gpu.calibration.library_gap_ns)
        return replace(query.base, durations=durations, provenance=CALIBRATED, error=max(LEAST_ERROR, found.spread))
