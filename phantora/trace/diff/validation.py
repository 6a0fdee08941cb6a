"""A simulated run checked against a real one: one table of quantities, and whether they lie within a bound."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from phantora.trace.analysis.units import duration, size
from phantora.trace.diff.compare import Difference, Side, by_class

STEP, ALLOCATED, RESERVED = "step", "peak allocated", "peak reserved"
_BOUND = (STEP, ALLOCATED, RESERVED)
_LEAST_SHARE = 0.01  # of the device's time: smaller classes are left out


@dataclass(frozen=True)
class Quantity:
    """A quantity of both runs: ns a step, of memory bytes."""

    name: str
    real: float
    simulated: float

    @property
    def error(self) -> float:
        """Error of the simulation, relative to reality."""
        return self.simulated / self.real - 1 if self.real else 0.0

    @property
    def bound(self) -> bool:
        """True for the step and memory, which must lie within the bound. Classes show the cause of the step's error."""
        return self.name in _BOUND


def quantities(real: Side, simulated: Side, difference: Difference) -> list[Quantity]:
    """The step, device time by class, and memory where the real log has it. `difference` is of the two sides."""
    step = difference.step
    found = [Quantity(STEP, *((step.b, step.a) if difference.reality == "b" else (step.a, step.b)))]
    classes = [by_class(side) for side in (real, simulated)]
    whole = sum(classes[0].values())
    for name in sorted({*classes[0], *classes[1]}, key=lambda cls: -classes[0].get(cls, 0.0)):
        pair = [own.get(name, 0.0) for own in classes]
        if max(pair) > _LEAST_SHARE * whole:
            found.append(Quantity(name, *pair))
    memory = [side.report.details.memory if side.report.details else [] for side in (real, simulated)]
    if "memory" not in real.log.metadata.missing and all(memory):
        for name, column in ((ALLOCATED, "peak_allocated"), (RESERVED, "peak_reserved")):
            found.append(Quantity(name, *(float(max(getattr(m, column) for m in own)) for own in memory)))
    return found


def beyond(found: list[Quantity], within: float) -> list[Quantity]:
    """Quantities that must lie within the bound and do not; `within` is a share."""
    return [quantity for quantity in found if quantity.bound and abs(quantity.error) > within]


def render(found: list[Quantity], within: float, console: Console) -> None:
    """Prints the table."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    for title in ("real", "simulated", "error", f"within {100 * within:g}%"):
        table.add_column(title, justify="right", no_wrap=True)
    outside = beyond(found, within)
    for quantity in found:
        show = size if quantity.name in (ALLOCATED, RESERVED) else duration
        verdict = ("no" if quantity in outside else "yes") if quantity.bound else ""
        error = f"{100 * quantity.error:+.1f}%" if quantity.real else "-"
        table.add_row(quantity.name, show(quantity.real), show(quantity.simulated), error, verdict)
    console.print(table)
