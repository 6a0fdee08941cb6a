"""Comparison of points."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from phantora.errors import PhantoraError, known_names
from phantora.sweeps.plan import Point
from phantora.sweeps.result import Measured
from phantora.trace.analysis.fit import MARGIN

BY = ("speed", "cost", "energy", "per-gpu", "step")
"""Work per second; dollars for it; joules for it; work per second and GPU; the time of a step, whatever its work."""


@dataclass(frozen=True)
class Objective:
    """Criterion of a comparison, and prices."""

    by: str = "speed"
    prices: Mapping[str, float] = field(default_factory=dict)
    """Dollars for an hour of a GPU, by its name; "" for all others."""
    margin: float = MARGIN
    """Share of the fullest GPU that the best leaves."""

    def __post_init__(self) -> None:
        if self.by not in BY:
            raise PhantoraError(f"--by {self.by!r}: unknown criterion; {known_names(self.by, BY)}")
        if self.by == "cost" and not self.prices:
            raise PhantoraError("--by cost needs the price of a GPU's hour: --price 2.5, or --price H100=2.5,H200=3.5")

    def has_room(self, measured: Measured) -> bool:
        """True if the margin is left."""
        return measured.left >= self.margin

    def price(self, point: Point) -> float | None:
        """Dollars for an hour of the cluster."""
        each = self.prices.get(point.gpu, self.prices.get(""))
        return None if each is None else each * point.world

    def work(self, point: Point, measured: Measured) -> tuple[float, str]:
        """Rate of work, and its unit: tokens if the sweep or the log has them, else samples or steps."""
        if self.by == "step":
            return 1e9 / measured.mean_step, "steps"
        if point.tokens:
            return point.tokens / measured.mean_step * 1e9, "tokens"
        if measured.tokens_per_second:
            return measured.tokens_per_second / measured.longer, "tokens"
        if measured.samples_per_second:
            return measured.samples_per_second / measured.longer, "samples"
        return 1e9 / measured.mean_step, "steps"

    def value(self, point: Point, rate: float, watts: float | None = None) -> float:
        """Value of work at this rate, with GPUs that draw `watts` each; more is better."""
        if self.by == "per-gpu":
            return rate / point.world
        if self.by == "cost":
            price = self.price(point)
            if price is None:
                raise PhantoraError(f"--by cost: no price for {point.gpu}; name it: --price {point.gpu}=2.5")
            return rate / price
        if self.by == "energy":
            if not watts:
                raise PhantoraError("--by energy: the sweep's folder has runs without it; name another -o")
            return rate / (watts * point.world)
        return rate

    def at_best(self, point: Point) -> float:
        """More than the point can reach."""
        if not point.least_time or self.by == "energy":
            return math.inf
        if self.by == "step":
            return self.value(point, 1e9 / point.least_time)
        return self.value(point, point.tokens / point.least_time * 1e9) if point.tokens else math.inf

    def likely(self, point: Point) -> float:
        """The value at the estimated time; more than any where nothing is estimated."""
        if not point.likely_time or self.by == "energy" or not (point.tokens or self.by == "step"):
            return math.inf
        work = 1.0 if self.by == "step" else point.tokens or 1.0
        return self.value(point, work / point.likely_time * 1e9)

    def joules(self, point: Point, rate: float, watts: float | None) -> float | None:
        """Joules of all GPUs for one of what `rate` counts."""
        return None if watts is None else watts * point.world / rate

    def cost(self, point: Point, rate: float) -> float | None:
        """Dollars for a million of what `rate` counts."""
        price = self.price(point)
        return None if price is None else price / 3600 / rate * 1e6


def parse_prices(text: str | None) -> dict[str, float]:
    """``2.5`` or ``H100=2.5,H200=3.5``. Raises PhantoraError."""
    from phantora.hardware import load_gpu

    prices: dict[str, float] = {}
    for part in text.split(",") if text else ():
        gpu, equals, number = part.rpartition("=")
        try:
            prices[load_gpu(gpu.strip()).name if equals else ""] = price = float(number)
        except ValueError:
            price = -1
        if not 0 < price < math.inf:
            raise PhantoraError(f"--price {text!r}: write dollars per GPU and hour, as 2.5 or H100=2.5,H200=3.5")
    return prices
