"""The page of a sweep: parallel coordinates, a scatter, the table, each point with the command that repeats it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from phantora.hardware.prices import SHIPPED, rate_of, rental_prices
from phantora.jobs.job import HOUR
from phantora.sweeps.answer import Answer, Row
from phantora.sweeps.render import passed_over, why
from phantora.sweeps.space import text_of
from phantora.view.pages import assemble


def sweep_page(found: Answer) -> str:
    """As one self-contained file."""
    public = not found.objective.prices
    data = {
        "axes": found.axes,
        "unit": found.unit,
        "by": found.objective.by,
        "public": public,
        "passed_over": passed_over(found),
        "rows": [_row(row, found) | ({"cost": _public_cost(row)} if public else {}) for row in found.rows],
    }
    return assemble("sweep.html", f"Sweep {found.folder.name}", data)


def _public_cost(row: Row) -> float | None:
    """Dollars for a million of the unit at public on-demand prices; None without one."""
    point = row.entry.point
    price = rate_of(point.gpu, rental_prices(SHIPPED)) if row.rate else None
    return price.dollars * point.world / HOUR / (row.rate or 1.0) * 1e6 if price is not None else None


def _row(row: Row, found: Answer) -> dict[str, Any]:
    entry, measured = row.entry, row.measured
    result = entry.result
    log: Path = entry.task.log
    seen = result.measured if result is not None else None
    return {
        "rank": row.rank,
        "tie": row.tie or (row.rank == 1 and bool(found.ties)),
        "pareto": row.pareto,
        "status": row.status,
        "values": {name: text_of(value) for name, value in entry.point.values.items()},
        "label": entry.point.label(found.axes),
        "step": measured.step_time if measured else None,
        "error": measured.error if measured else None,
        "rate": row.rate,
        "behind": row.behind if row.rank else None,
        "surely": row.surely,
        "processes": result.processes if result else None,
        "world": entry.point.world,
        "fold": result.fold if result else "",
        "refused": result.refused if result else "",
        "mfu": measured.mfu if measured else None,
        "exposed": measured.exposed if measured else None,
        "memory": (result.needs if result else None) or (seen.memory if seen else None),
        "capacity": entry.point.capacity,
        "cost": row.cost,
        "joules": row.joules,
        "why": (measured.holds_up if measured else why(row)) or "",
        "command": shlex.join(map(_from_here, result.command)) if result else "",
        "log": str(log.relative_to(found.folder)) if log.exists() else "",
    }


def _from_here(word: str) -> str:
    """A path below the current folder, relative to it; other words as they are."""
    path = Path(word)
    return str(path.relative_to(Path.cwd())) if path.is_absolute() and path.is_relative_to(Path.cwd()) else word
