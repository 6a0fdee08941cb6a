"""Prices from measured neighbours: their lower limit and their error bar."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from phantora.cost.analytic_model import DEFAULT_ERROR
from phantora.cost.interpolation import Near
from phantora.cost.types import Price, scale_to

LEAST_NS = 850.0
"""Least time of a kernel: 99.9 % of the operators in the shipped tables take more for each kernel."""


def near_price(base: Price, ns: float, provenance: str, near: Near, errors: Mapping[str, float]) -> Price:
    """`base` with the time `ns`, which `near` gave; `errors` are relative, by class."""
    ns = max(ns, LEAST_NS * len(base.durations))
    error = error_of(base.cls, near, errors)
    return replace(base, durations=scale_to(base.durations, ns), provenance=provenance, error=error)


def error_of(cls: str, near: Near, errors: Mapping[str, float]) -> float:
    """Relative error: that of the class, larger where neighbours are more than an octave away."""
    known = errors.get(cls, DEFAULT_ERROR)
    return max(known, near.error) if near.error is not None else known * (1.0 + max(0.0, near.distance - 1.0))
