"""Questions that a few runs of one script answer: does it fit, with which largest number, how many GPUs are enough.

Each run is a point of a sweep, so its folder's journal keeps it: the same question goes on where it was stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from phantora.errors import PhantoraError
from phantora.sweeps.answer import Row
from phantora.sweeps.expressions import Value
from phantora.sweeps.result import OUT_OF_MEMORY, RAN, Result
from phantora.sweeps.run import Request, run_sweep
from phantora.sweeps.runner import Entry

MOST = 1 << 20  # of a number that is looked for
OnResult = Callable[[Entry, int, int], None]


@dataclass(frozen=True)
class Tried:
    """One run."""

    value: int
    result: Result

    @property
    def fits(self) -> bool:
        """It ran to its end. Raises PhantoraError where it failed for another reason than memory."""
        if self.result.status not in (RAN, OUT_OF_MEMORY):
            raise PhantoraError(f"the run with {self.value} failed: {self.result.error}")
        return self.result.status == RAN

    @property
    def bytes(self) -> int | None:
        """Bytes of the fullest GPU; if it does not fit, the bytes that it needs, if a run on larger GPUs showed
        them."""
        measured = self.result.measured
        return self.result.needs if not self.fits else measured.memory if measured else None


def run_point(request: Request, values: Mapping[str, Value], on_result: OnResult) -> Row:
    """Runs the point of the request's space with these values of its axes."""
    space = request.space.with_axes({name: (value,) for name, value in values.items()})
    answer = run_sweep(replace(request, space=space), on_result).answer
    if not answer.rows:
        raise PhantoraError(f"{space.where}: no point is legal with {dict(values)}")
    return answer.rows[0]


def largest_that_fits(run: Callable[[int], Tried], capacity: int) -> Iterator[Tried]:
    """Runs until the largest number that fits is known: the largest of those that did.

    Memory grows nearly in a straight line with it, so the next number is where the line through two runs meets
    `capacity`; every second one halves what is left. A number that fits, and the next one, that does not, end it."""
    low, high = 0, 0  # the largest that fits, the smallest that does not; 0: none yet
    tried: dict[int, int] = {}
    number, runs = 1, 0
    while number <= MOST:
        found = run(number)
        yield found
        if found.bytes:
            tried[number] = found.bytes
        low, high = (number, high) if found.fits else (low, number)
        if high == low + 1 or high == 1:
            return
        number = (low + high) // 2 if high and runs % 2 else _next(tried, low, high, capacity)
        runs += 1


def _next(tried: Mapping[int, int], low: int, high: int, capacity: int) -> int:
    """Within ]low, high[; beyond low where no number failed yet."""
    prediction = 2 * low
    if len(tried) >= 2:
        (a, x), (b, y) = sorted(tried.items(), key=lambda item: abs(item[1] - capacity))[:2]
        slope = (y - x) / (b - a)
        prediction = int(a + (capacity - x) / slope) if slope > 0 else prediction
        prediction += prediction == low and not high
    if not high:
        return min(max(low + 1 + low // 4, prediction), 8 * low, MOST if low < MOST else MOST + 1)
    return min(max(low + 1, prediction), high - 1)


@dataclass(frozen=True)
class Offer:
    """Throughput of a cluster. Seconds, dollars."""

    cluster: str
    gpus: int
    row: Row
    unit: str = "tokens"
    """Unit of `rate`: tokens, samples or steps."""
    seconds: float | None = None
    """For the work that was asked for."""
    dollars: float | None = None

    @property
    def rate(self) -> float | None:
        """Tokens (or samples, steps) per second; None where it does not fit."""
        return self.row.rate


def offers(
    request: Request, clusters: Iterable[str], work: float | None, least: float | None, on_result: OnResult
) -> Iterator[Offer]:
    """Runs the script on one cluster after the other, the smallest first, until one gets through `least` a second.
    `work`: tokens wanted in all. Raises PhantoraError for either where the tokens of a step are unknown."""
    for cluster in clusters:
        row = run_point(request, {"cluster": cluster}, on_result)
        point = row.entry.point
        seconds = work / row.rate if work and row.rate else None
        price = request.objective.price(point)
        dollars = price * seconds / 3600 if price is not None and seconds is not None else None
        unit = request.objective.work(point, row.measured)[1] if row.measured else "tokens"
        if unit != "tokens" and (work or least):
            raise PhantoraError(
                f"{cluster}: the tokens of a step are unknown (the rate counts {unit}), so that --rate and "
                "--tokens cannot be answered; run it without them"
            )
        yield Offer(cluster, point.world, row, unit, seconds, dollars)
        if least is not None and row.rate is not None and row.rate >= least:
            return


def sizes(gpu: str, most: int, per_host: int) -> list[str]:
    """Clusters of 1, 2, 4, ... GPUs up to `most`, at most `per_host` in a host: ``1x4xH100``."""
    found, count = [], 1
    while count <= most:
        hosts = -(-count // per_host)
        found.append(f"{hosts}x{min(count, per_host)}x{gpu}")
        count *= 2
    return found


def space_table(target: Iterable[str], cluster: str, largest: str | None = None) -> dict[str, Any]:
    """A sweep of one script on one cluster, with the option `largest` as its axis, if any."""
    table: dict[str, Any] = {"target": list(target), "cluster": [cluster]}
    if largest:
        table |= {"matrix": {"largest": [1]}, "arguments": {"largest": largest}}
    return table
