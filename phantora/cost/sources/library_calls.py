"""Prices of extensions' operators that call cuBLAS or cuDNN: each call as torch's operator with the same call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from phantora.cost import library_operators, power
from phantora.cost.families import family_of, gemm
from phantora.cost.machine import Machine
from phantora.cost.query import Query
from phantora.cost.types import KernelLaunch, L2State, OperatorSignature, Price, scale_to

LEAST_ERROR = 0.11
"""Smallest relative error of such a price: an assumption."""

PriceOperator = Callable[[OperatorSignature, tuple[KernelLaunch, ...], L2State | None], Price]


class LibraryCalls:
    """Prices calls by `price_operator`, which asks all sources. Other kernels keep their analytic times."""

    def __init__(self, machine: Machine, price_operator: PriceOperator) -> None:
        self._machine = machine
        self._price_operator = price_operator

    def price(self, query: Query) -> Price | None:
        """The sum of calls and other kernels; None for torch's own operators and for those without a known call."""
        base = query.base
        if not query.comparable or "::" not in query.name or len(base.durations) != len(query.kernels):
            return None
        calls = self._calls(query)
        if not calls:
            return None
        durations = tuple(sum(calls[i].durations) if i in calls else ns for i, ns in enumerate(base.durations))
        heaviest = max(calls.values(), key=lambda price: sum(price.durations))
        provenance = "interpolated" if heaviest.provenance == "measured" else heaviest.provenance
        error = max(LEAST_ERROR, _mean_error(list(calls.values()), base, max(1, sum(durations))))
        return replace(
            base,
            durations=durations,
            provenance=provenance,
            error=error,
            tiles=heaviest.tiles or base.tiles,
            format=heaviest.format or base.format,
            sms=heaviest.sms,
            computed=heaviest.computed,
        )

    def _calls(self, query: Query) -> dict[int, Price]:
        """Prices of the library calls, by position among the kernels."""
        family = family_of(query.name)
        found = {}
        for i, kernel in enumerate(family.call_of(query.signature, kernel) for kernel in query.kernels):
            operator = library_operators.operator_of(kernel.library)
            if operator is not None:
                found[i] = self._call(operator, kernel, query.l2_hits)
        return found

    def _call(self, operator: OperatorSignature, kernel: KernelLaunch, l2_hits: float | None) -> Price:
        """A call may do a share of the work of its extents, and may use some of the SMs only."""
        call = kernel.library
        on_all = replace(kernel, library={key: value for key, value in call.items() if key != "sms"})
        l2 = None if l2_hits is None else L2State(l2_hits)
        price = replace(self._price_operator(operator, (on_all,), l2), sms=int(call.get("sms", 0)))
        longer = power.on_fewer_sms(self._machine, price, gemm.on_fewer_sms(self._machine, call))
        share = float(call.get("share", 1.0)) * longer
        if share == 1.0:
            return price
        return replace(price, durations=scale_to(price.durations, sum(price.durations) * share))


def _mean_error(calls: Sequence[Price], base: Price, whole: int) -> float:
    """The errors of calls and of the rest, weighted by their ns of `whole`."""
    errors = [(sum(price.durations), price.error or 0.0) for price in calls]
    rest = whole - sum(ns for ns, _ in errors)
    return (sum(ns * each for ns, each in errors) + rest * (base.error or 0.0)) / whole
