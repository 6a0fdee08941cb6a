"""The answer: points in order, ties, the Pareto front, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from phantora.json_data import Bytes, MeanBytes, Ns, Seconds, encode
from phantora.sweeps.objective import Objective
from phantora.sweeps.result import RAN, Measured
from phantora.sweeps.runner import Entry
from phantora.sweeps.space import CLUSTER, text_of

SKIPPED = "skipped"
_CRITERIA = {"per-gpu": "speed per GPU", "step": "the step's time"}


@dataclass
class Row:
    """A point of the answer."""

    entry: Entry
    _: KW_ONLY
    rank: int | None = None
    """Rank from 1; None for points that did not run."""
    tie: bool = False
    """Slower than the best by less than the error bar of either."""
    behind: float = 0.0
    """Share by which the best is better."""
    surely: bool = False
    """The best is better even if it is as slow, and this one as fast, as the error bars allow; on slower hosts too."""
    room: bool = True
    """It leaves the margin of memory."""
    pareto: bool = False
    """No other is better in speed, memory and cost at once."""
    rate: float | None = None
    value: float = 0.0
    cost: float | None = None
    joules: float | None = None
    """Energy of all GPUs for one of the unit."""

    @property
    def measured(self) -> Measured | None:
        """The point's numbers; None unless it ran to its end."""
        result = self.entry.result
        return result.measured if result is not None and result.status == RAN else None

    @property
    def status(self) -> str:
        """End of the point; ``SKIPPED`` if it was not run."""
        return self.entry.result.status if self.entry.result is not None else SKIPPED


@dataclass
class Answer:
    """All points, in order."""

    rows: list[Row]
    """The best first; after those with room those without; then what does not fit, what failed, what was skipped."""
    unit: str
    """Unit of rates: tokens, samples or steps."""
    objective: Objective
    axes: list[str]
    folder: Path

    @property
    def best(self) -> Row | None:
        """The first row, if it has numbers."""
        return self.rows[0] if self.rows and self.rows[0].measured else None

    @property
    def title(self) -> str:
        """``The best of 8 layouts by speed: tp=2 dp=4``; of clusters alone their name."""
        best, ran = self.best, sum(1 for row in self.rows if row.measured)
        if best is None:
            return "No point ran to its end"
        alone = self.axes == [CLUSTER]
        what = f"best of {ran} {'clusters' if alone else 'layouts'}" if ran > 1 else "only one that ran"
        by = f" by {_CRITERIA.get(self.objective.by, self.objective.by)}" if ran > 1 else ""
        ties = f" (and {len(self.ties)} within its error bar)" if self.ties else ""
        return f"The {what}{by}: {best.entry.point.cluster if alone else best.entry.point.label(self.axes)}{ties}"

    @property
    def passed_over(self) -> list[Row]:
        """Points better than the best that leave less memory than the margin."""
        return [row for row in self.rows[1:] if row.rank and not row.room and row.behind < 0]

    @property
    def ties(self) -> list[Row]:
        """Ties with the best, which is not among them."""
        return [row for row in self.rows[1:] if row.tie]

    def table(self) -> pa.Table:
        """A row per point: its values, numbers (ns, bytes, shares), what became of it."""
        return pa.Table.from_pylist(self.as_data()) if self.rows else pa.table({})

    def as_data(self) -> list[dict[str, Any]]:
        """A record for each row, the same columns in all; a column has values of one type."""
        names = list(dict.fromkeys(name for row in self.rows for name in row.entry.point.values))
        records = [_record(row, names, self.unit) for row in self.rows]
        for name in names:  # a column has one type
            if len({type(record[name]) for record in records if record[name] is not None}) > 1:
                for record in records:
                    record[name] = None if record[name] is None else text_of(record[name])
        return records


def answer(entries: Sequence[Entry], objective: Objective, axes: Sequence[str], folder: Path) -> Answer:
    """Ranks what ran, by `objective`; `axes` are shown of each point."""
    rows = [Row(entry) for entry in entries if entry.result is not None or entry.skipped]
    ran = [row for row in rows if row.measured is not None]
    units = {objective.work(row.entry.point, row.measured)[1] for row in ran if row.measured}
    unit = units.pop() if len(units) == 1 else "steps"
    compared = (
        objective if unit != "steps" else replace(objective, by="step" if objective.by == "speed" else objective.by)
    )
    for row in ran:
        assert row.measured is not None
        point = row.entry.point
        row.rate = compared.work(point, row.measured)[0] if unit != "steps" else 1e9 / row.measured.mean_step
        row.value, row.cost = compared.value(point, row.rate, row.measured.watts), compared.cost(point, row.rate)
        row.room = objective.has_room(row.measured)
        row.joules = compared.joules(point, row.rate, row.measured.watts)
    ran.sort(key=lambda row: (not row.room, -row.value, row.entry.point.number))
    for rank, row in enumerate(ran, 1):
        assert row.measured is not None
        row.rank = rank
        row.tie = rank > 1 and row.room == ran[0].room and row.value * (1 + _error(row, ran[0])) >= ran[0].value
        row.behind = ran[0].value / row.value - 1
        row.surely = rank > 1 and row.value * (1 + (row.measured.error or 0.0)) < ran[0].value / (1 + _above(ran[0]))
        row.pareto = not any(_dominates(other, row) for other in ran)
    order = {"out of memory": 1, "failed": 2, SKIPPED: 3}
    rest = sorted(
        (row for row in rows if row.measured is None), key=lambda row: (order[row.status], row.entry.point.number)
    )
    return Answer([*ran, *rest], unit, compared, list(axes), folder)


def _error(a: Row, b: Row) -> float:
    """The larger of their error bars, as a share of the step; the part that slower hosts would bring is left out, since
    they would slow both."""
    return max((row.measured.error or 0.0) for row in (a, b) if row.measured)


def _above(row: Row) -> float:
    """Share by which its step may be longer, slower hosts included."""
    measured = row.measured
    return max(measured.error or 0.0, measured.error_above or 0.0) if measured else 0.0


def _dominates(a: Row, b: Row) -> bool:
    """True if a is better than b in one of speed, memory and cost, and worse in none."""
    assert a.measured and b.measured and a.rate and b.rate
    pairs = [(a.rate, b.rate), (-a.measured.memory, -b.measured.memory)]
    if a.cost is not None and b.cost is not None:
        pairs.append((-a.cost, -b.cost))
    return all(x >= y for x, y in pairs) and any(x > y for x, y in pairs)


@dataclass(frozen=True, kw_only=True)
class Record:
    """A row of the table. The axes, rates and costs per unit stand next to its columns."""

    rank: int | None
    tie: bool
    behind: float | None
    surely_slower: bool
    room: bool
    pareto: bool
    status: str
    gpus: int
    step_time: Ns | None
    error: float | None
    error_above: float | None
    lowest: Ns | None
    highest: Ns | None
    steps: int | None
    mfu: float | None
    exposed: float | None
    idle: float | None
    overlap: float | None
    memory: Bytes | None
    capacity: Bytes
    peak_allocated: Bytes | None
    peak_reserved: Bytes | None
    needs: Bytes | None
    least_memory: MeanBytes | None
    least_time: Ns | None
    watts: float | None
    roles: str | None
    holds_up: str | None
    error_text: str | None
    wall: Seconds | None
    steps_run: int | None
    processes: int | None
    fold: str | None
    fold_refused: str | None
    key: str
    log: str | None
    command: list[str] | None


_MEASURED = (
    "step_time",
    "error",
    "error_above",
    "lowest",
    "highest",
    "steps",
    "mfu",
    "exposed",
    "idle",
    "overlap",
    "watts",
    "roles",
    "holds_up",
)


def _record(row: Row, names: Sequence[str], unit: str) -> dict[str, Any]:
    entry, measured, result = row.entry, row.measured, row.entry.result
    point = entry.point
    seen = result.measured if result is not None else None
    numbers = {name: getattr(measured, name) if measured else None for name in _MEASURED}
    columns = encode(
        Record(
            rank=row.rank,
            tie=row.tie,
            behind=row.behind if row.rank else None,
            surely_slower=row.surely,
            room=row.room,
            pareto=row.pareto,
            status=row.status,
            gpus=point.world,
            **numbers,
            memory=seen.memory if seen else None,
            capacity=point.capacity,
            peak_allocated=seen.peak_allocated if seen else None,
            peak_reserved=seen.peak_reserved if seen else None,
            needs=result.needs if result else None,
            least_memory=point.least_memory or None,
            least_time=point.least_time or None,
            error_text=(result.error if result else entry.skipped) or None,
            wall=result.seconds if result else None,
            steps_run=result.steps if result else None,
            processes=result.processes if result else None,
            fold=result.fold or None if result else None,
            fold_refused=result.refused or None if result else None,
            key=entry.task.key,
            log=str(entry.task.log) if entry.task.log.exists() else None,
            command=list(result.command) if result else None,
        )
    )
    first = {name: columns.pop(name) for name in ("rank", "tie", "behind", "surely_slower", "room", "pareto", "status")}
    rates = {
        f"{unit}_per_second": row.rate,
        f"dollars_per_million_{unit}": row.cost,
        f"joules_per_{unit.removesuffix('s')}": row.joules,
    }
    return {**first, **{name: point.values.get(name) for name in names}, **rates, **columns}
