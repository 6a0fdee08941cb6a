"""The findings of a report as text: the delays of a step, largest first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from phantora.trace.analysis.communicators import collective_kind
from phantora.trace.analysis.report import Details, Exposure, Report, Times
from phantora.trace.analysis.units import duration, percent, size

_WORTH_SAYING = 0.01  # of a step


def findings(steady: Times, exposure: Sequence[Exposure], details: Details, step: str = "a step") -> list[str]:
    """Sentences about the steps reported on, for the causes that take at least one per cent of them.
    `step` is what these are called."""
    whole, stalls = steady.time, steady.stalls
    if not whole:
        return []
    found: list[tuple[float, str]] = []

    def emit(time: float, text: str) -> None:
        if time >= _WORTH_SAYING * whole:
            found.append((time, text.format(time=duration(time), share=percent(time, whole), step=step)))

    emit(stalls["host"], "Host-bound: for {time} of {step} ({share}) the GPU waits for the host to launch.")
    emit(
        stalls["synchronisation"],
        "Synchronisation: for {time} of {step} ({share}) the GPU is idle because the host had waited for it.",
    )
    emit(stalls["pipeline bubble"], "Pipeline bubble: for {time} of {step} ({share}) ranks wait for their partners.")
    emit(stalls["copy"], "Copies: for {time} of {step} ({share}) the GPU only copies.")
    emit(
        stalls["dependency"],
        "Dependencies: for {time} of {step} ({share}) launched kernels wait for other streams' events.",
    )
    worst = details.stragglers[0] if details.stragglers else None
    late = "Late ranks: for {time} of {step} ({share}) collectives wait, unhidden, for their last rank"
    if worst and worst.caused >= _WORTH_SAYING * whole:
        part = percent(worst.caused, sum(s.caused for s in details.stragglers))
        late = (
            f"Straggler: rank {worst.rank} comes last in {worst.last} collectives ({part} of all lateness); "
            "waiting for late ranks costs {time} of {step} ({share})"
        )
    emit(stalls["late rank"], late + ".")
    if exposure:
        by_collective: dict[tuple[str, str], float] = defaultdict(float)
        waiters: dict[tuple[str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for e in exposure:
            key = collective_kind(e.collective), e.group
            by_collective[key] += e.exposed - e.late_rank
            waiters[key][e.waited_by] += e.exposed - e.late_rank
        (kind, group), most = max(by_collective.items(), key=lambda item: item[1])
        waiter = max(waiters[kind, group].items(), key=lambda item: item[1])[0]
        by = f", awaited most by {waiter.removeprefix('aten::')}" if waiter else ""
        emit(
            stalls["transfer"],
            "Exposed transfers: communication that no compute hides takes {time} of {step} ({share}), most in "
            f"{kind} of {group} ({duration(most)}{by}){_calls(kind, group, details)}.",
        )
    return [text for _, text in sorted(found, key=lambda item: -item[0])]


_HIDES = {
    "all_gather": "it hides if it begins earlier (prefetching), or if what was gathered is kept",
    "reduce_scatter": "the rest of the backward pass hides it: smaller pieces begin earlier",
    "all_reduce": "the rest of the backward pass hides it: smaller buckets begin earlier",
    "all_to_all": "it hides behind work that does not need the tokens: shared experts, another micro-batch",
    "send_recv": "it hides behind other micro-batches",
}


def _calls(kind: str, group: str, details: Details) -> str:
    """Size and speed of these collectives, and work that could hide them."""
    own = [c for c in details.collectives if collective_kind(c.name) == kind and c.group == group]
    if not own:
        return ""
    most = max(own, key=lambda c: c.transfer * c.count)
    speed = f" at {most.bus_bandwidth / 1e9:.0f} GB/s of bus bandwidth" if most.bus_bandwidth else ""
    hint = _HIDES.get(kind, "")
    return f"; a call of {size(most.bytes)} takes {duration(most.transfer)}{speed}" + (f"; {hint}" if hint else "")


def memory_finding(report: Report) -> str | None:
    """The fullest rank's peak and what it is made of."""
    if report.details is None or not report.details.memory:
        return None
    fullest = max(report.details.memory, key=lambda m: (m.peak_allocated, -m.rank))
    parts = sorted(fullest.by_category.items(), key=lambda item: -item[1])
    made_of = ", ".join(f"{name} {size(value)}" for name, value in parts if name != "fragmentation")
    return f"Memory: rank {fullest.rank} peaks at {size(fullest.peak_allocated)} allocated: {made_of}."
