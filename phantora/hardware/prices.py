"""Public prices of GPUs by the hour: ``data/prices.toml``, or a file of the same form."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phantora.errors import PhantoraError
from phantora.hardware import toml
from phantora.hardware.gpus import DATA, load_gpu

TERMS = ("on-demand", "reserved", "spot")
SHIPPED = DATA / "prices.toml"


@dataclass(frozen=True, kw_only=True)
class RentalPrice:
    """One price that a source printed."""

    provider: str
    offer: str
    """The instance, or the provider's words."""
    gpu: str
    """Canonical name of the GPU."""
    dollars: float
    """US dollars per GPU and hour."""
    terms: str
    """``on-demand``, ``reserved`` (a year or more) or ``spot``."""
    source: str
    """Address of the page."""
    date: str
    """``2026-05-22`` or ``2026-05``: when the source printed it."""


@dataclass(frozen=True)
class Rate:
    """Dollars per GPU and hour: the median of some prices, with the lowest and the highest."""

    dollars: float
    low: float
    high: float
    prices: tuple[RentalPrice, ...]

    def __str__(self) -> str:
        if self.low == self.high:
            return f"${self.dollars:.2f}"
        return f"${self.dollars:.2f} ({self.low:.2f} to {self.high:.2f})"


def rental_prices(path: Path = SHIPPED) -> tuple[RentalPrice, ...]:
    """The prices in `path`. Raises PhantoraError for a mistake in it, with file and key."""
    rows: Any = toml.read(path).get("price")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise PhantoraError(f"{path}: prices are tables [[price]], as in {SHIPPED}")
    found = []
    for number, row in enumerate(rows):
        place = toml.Place(path) / "price" / number
        price = toml.build(RentalPrice, row, place)
        if price.terms not in TERMS:
            raise PhantoraError(f"{place / 'terms'}: {price.terms!r} is none of {', '.join(TERMS)}")
        if price.dollars <= 0:
            raise PhantoraError(f"{place / 'dollars'} must be above 0")
        found.append(price)
    return tuple(found)


def rate_of(
    gpu: str, prices: Sequence[RentalPrice], terms: str = "on-demand", provider: str | None = None
) -> Rate | None:
    """The rate of a GPU by any of its names; None without a price of these terms (and this provider)."""
    name = load_gpu(gpu).name
    found = tuple(
        price
        for price in prices
        if load_gpu(price.gpu).name == name
        and price.terms == terms
        and (provider is None or price.provider.casefold() == provider.casefold())
    )
    if not found:
        return None
    dollars = [price.dollars for price in found]
    return Rate(statistics.median(dollars), min(dollars), max(dollars), found)
