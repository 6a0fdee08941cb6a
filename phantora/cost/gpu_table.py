"""A table of measurements with the analytic model of its GPU: predictions for that GPU."""

from __future__ import annotations

from collections.abc import Sequence

from phantora.cost.analytic_model import AnalyticModel
from phantora.cost.interpolation import Near, Neighbours
from phantora.cost.l2 import WarmRatios
from phantora.cost.query import Query
from phantora.cost.scaling import analytic_ns
from phantora.cost.table import Entry, Table
from phantora.cost.timing import own_kernels
from phantora.cost.training_points import points_cache
from phantora.cost.types import KernelLaunch, OperatorSignature
from phantora.hardware.types import Gpu


class GpuTable:
    """A table, and the GPU on which it was measured."""

    def __init__(self, table: Table, gpu: Gpu) -> None:
        self.table = table
        self.gpu = gpu
        self.analytic = AnalyticModel(gpu)
        cache = points_cache(table.digest, gpu)
        self.neighbours = Neighbours(table, self.model, self.analytic.machine, cache)
        self._warm_ratios = WarmRatios(table, cache)

    def model(self, signature: OperatorSignature, compute: str, kernels: tuple[KernelLaunch, ...]) -> float:
        """The analytic time in ns of an operator on the table's GPU."""
        return analytic_ns(self.analytic, signature, compute, kernels)

    def entry(self, keys: Sequence[str]) -> Entry | None:
        """The first entry of `keys` that has kernels."""
        found = (self.table.get(key) for key in keys)
        return next((entry for entry in found if entry is not None and own_kernels(entry)), None)

    def predict(self, query: Query) -> tuple[float, Near] | None:
        """ns on the table's GPU by measured neighbours, and how near they are; None without neighbours."""
        near = self.neighbours.ratio(query.signature, query.compute, query.kernels)
        if near is None:
            return None
        ns = near.ratio * self.model(query.signature, query.compute, query.kernels)
        return ns * self._warm_ratios.factor(query.signature, query.base.cls, ns, query.l2_hits), near
