"""Many ranks take long to simulate: all layouts are first run on fewer hosts, and only the best of them whole.

What a GPU does is the same there, where the work grows with the cluster (`global_batch = "2 * world"`); what is not
is the communication of more hosts, and memory that is sharded over fewer GPUs. So the order on few hosts decides
which layouts are worth a whole run, and nothing else: ranks are given by whole runs alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from phantora.errors import PhantoraError
from phantora.sweeps.objective import Objective
from phantora.sweeps.plan import Plan, Point
from phantora.sweeps.result import RAN
from phantora.sweeps.runner import Entry
from phantora.sweeps.space import CLUSTER
from phantora.trace.analysis.units import duration

Layout = tuple[tuple[str, str], ...]


def layout(point: Point) -> Layout:
    """Values of `point` but for the cluster."""
    return tuple((name, repr(value)) for name, value in sorted(point.values.items()) if name != CLUSTER)


def finalists(
    whole: Plan, screened: Sequence[Entry], objective: Objective, count: int
) -> tuple[list[Point], dict[int, str]]:
    """The points that are run whole: those whose layouts are the best `count` on the few hosts, and those that have no
    place or no room there but may have on more. For the others, by number, what was seen of them. Raises PhantoraError
    if no layout ran there."""
    found = {layout(entry.point): entry for entry in screened}
    values = {key: _value(entry, objective) for key, entry in found.items()}
    order = sorted((key for key, value in values.items() if value), key=lambda key: -values[key])
    if not order:
        raise PhantoraError("--screen: no layout ran on the smaller cluster; name a larger one")
    best, chosen = values[order[0]], set(order[:count])
    points: list[Point] = []
    seen: dict[int, str] = {}
    for point in whole.points:
        key = layout(point)
        entry = found.get(key)
        if key in chosen or entry is None or not values[key]:
            points.append(point)
        else:
            assert entry.result is not None and entry.result.measured is not None
            seen[point.number] = (
                f"on {entry.point.cluster} {duration(entry.result.measured.step_time)} a step, "
                f"{100 * (best / values[key] - 1):.1f}% slower than the best there"
            )
    return points, seen


def _value(entry: Entry, objective: Objective) -> float:
    """0 for what did not run."""
    result = entry.result
    if result is None or result.status != RAN or result.measured is None:
        return 0.0
    rate, _ = objective.work(entry.point, result.measured)
    return objective.value(entry.point, rate, result.measured.watts)
