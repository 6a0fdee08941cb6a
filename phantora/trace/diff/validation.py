"""A simulated run checked against a real one: one table of quantities, and whether they lie within a bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from phantora.trace.analysis.units import amount, duration, size
from phantora.trace.diff.compare import Difference, Side, by_class

STEP, TOKENS, SAMPLES = "step", "tokens/s", "samples/s"
ALLOCATED, RESERVED = "peak allocated", "peak reserved"
_BOUND = (STEP, TOKENS, SAMPLES, ALLOCATED, RESERVED)
_SHOWN = {"time": duration, "memory": size, "rate": amount}
_LEAST_SHARE = 0.01  # of the device's time: smaller classes are left out


@dataclass(frozen=True)
class Quantity:
    """A quantity of both runs."""

    name: str
    real: float
    simulated: float
    kind: str
    """``time`` (ns), ``memory`` (bytes) or ``rate`` (per second)."""

    @property
    def error(self) -> float:
        """Error of the simulation, relative to reality."""
        return self.simulated / self.real - 1 if self.real else 0.0

    @property
    def bound(self) -> bool:
        """True for the step, rates and memory, which must lie within the bound. Classes show the cause of the step's
        error."""
        return self.name in _BOUND


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Result of a comparison with a real run."""

    verdict: str
    within: float
    """The bound, a share."""
    passed: bool
    quantities: list[Quantity]
    findings: list[str]
    """What the real run has apart from its steady steps: ``OUTLIERS``, ``DRIFT``."""


def validated(
    verdict: str, found: list[Quantity], within: float, findings: Sequence[tuple[str, str]] = ()
) -> Validation:
    """The result for these quantities. The verdict gets the bound."""
    outside = [quantity.name for quantity in beyond(found, within)]
    bound = f"{100 * within:g}%"
    text = f"{verdict}: {', '.join(outside)} beyond {bound}" if outside else f"{verdict}: all within {bound}"
    return Validation(
        verdict=text,
        within=within,
        passed=not outside,
        quantities=found,
        findings=[f"{word:<9} {line}" for word, line in findings],
    )


def quantities(real: Side, simulated: Side, difference: Difference) -> list[Quantity]:
    """The step, device time by class, and memory where the real log has it. `difference` is of the two sides."""
    step = difference.step
    found = [Quantity(STEP, *((step.b, step.a) if difference.reality == "b" else (step.a, step.b)), "time")]
    classes = [by_class(side) for side in (real, simulated)]
    whole = sum(classes[0].values())
    for name in sorted({*classes[0], *classes[1]}, key=lambda cls: -classes[0].get(cls, 0.0)):
        pair = [own.get(name, 0.0) for own in classes]
        if max(pair) > _LEAST_SHARE * whole:
            found.append(Quantity(name, pair[0], pair[1], "time"))
    memory = [side.report.details.memory if side.report.details else [] for side in (real, simulated)]
    if "memory" not in real.log.metadata.missing and all(memory):
        for name, column in ((ALLOCATED, "peak_allocated"), (RESERVED, "peak_reserved")):
            levels = [float(max(getattr(m, column) for m in own)) for own in memory]
            found.append(Quantity(name, levels[0], levels[1], "memory"))
    return found


def beyond(found: list[Quantity], within: float) -> list[Quantity]:
    """Quantities that must lie within the bound and do not; `within` is a share."""
    return [quantity for quantity in found if quantity.bound and abs(quantity.error) > within]


def render(result: Validation, console: Console) -> None:
    """Prints the verdict, the table and the findings."""
    console.print(result.verdict, highlight=False, markup=False, style="bold", soft_wrap=True)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    for title in ("real", "simulated", "error", f"within {100 * result.within:g}%"):
        table.add_column(title, justify="right", no_wrap=True)
    for quantity in result.quantities:
        show = _SHOWN[quantity.kind]
        verdict = ("no" if abs(quantity.error) > result.within else "yes") if quantity.bound else ""
        error = f"{100 * quantity.error:+.1f}%" if quantity.real else "-"
        table.add_row(quantity.name, show(quantity.real), show(quantity.simulated), error, verdict)
    console.print(table)
    for line in result.findings:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
