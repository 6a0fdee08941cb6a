"""The findings of a report as text: the delays of a step, largest first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from phantora.trace.analysis.communicators import collective_kind, ranges
from phantora.trace.analysis.delays import longest_stage, lost_by
from phantora.trace.analysis.faults import sentence as of_fault
from phantora.trace.analysis.garbage import REMEDY
from phantora.trace.analysis.garbage import sentence as collected
from phantora.trace.analysis.host_waits import BOUND, most_in
from phantora.trace.analysis.late_hosts import hosts_decide, late_host
from phantora.trace.analysis.late_hosts import sentence as of_host
from phantora.trace.analysis.memory import DDP
from phantora.trace.analysis.memory_fit import grows, keep_less
from phantora.trace.analysis.mfu import PRECISION
from phantora.trace.analysis.recompiles import remedy, sentence
from phantora.trace.analysis.report import Details, Report, StepTimes
from phantora.trace.analysis.settled_steps import SETTLING
from phantora.trace.analysis.slower_ranks import kernel_time, times_the_work
from phantora.trace.analysis.summary import slow_products
from phantora.trace.analysis.units import duration, percent, rate, size
from phantora.trace.schema import REAL

_WORTH_SAYING = 0.01  # of a step
_GROWING = "Growing memory"
EXCLUDED = "Excluded"
_BEFORE = ("start-up", SETTLING)
_SEEN = 0.0005  # of a step: a difference in the tables' digits
_NEARLY = 0.1  # of the gradients' bytes: padding of buckets, buffers
_APART = 0.2  # of the time of all steps


def findings(report: Report, details: Details) -> list[str]:
    """Sentences about the steps reported on, for the causes that take at least one per cent of them, and about what
    these steps leave out."""
    steady, exposure = report.steady, report.exposure
    whole, stalls = steady.time, steady.stalls
    if not whole:
        return []
    step = "the run" if report.step_source == "run" else "a step"
    found: list[tuple[float, str]] = []

    largest: dict[str, float] = {}  # rows of the table of time without compute, which decide the order
    for delay in sorted(report.delays, key=lost_by):
        largest[delay.cause] = lost_by(delay)

    def emit(cause: str, text: str, **more: str) -> None:
        time = stalls[cause]
        if time >= _WORTH_SAYING * whole:
            found.append(
                (
                    largest.get(cause, time),
                    text.format(time=duration(time), share=percent(time, whole), step=step, **more),
                )
            )

    rank = late_host(report)
    emit(
        "host",
        ("Host-bound" if stalls["host"] >= BOUND * whole else "Host")
        + ": for {time} of {step} ({share}) the GPU waits for the host{where}.",
        where=(most_in(report) or " to launch") + (f"; most on rank {rank}" if rank is not None else ""),
    )
    emit(
        "synchronisation",
        "Synchronisation: for {time} of {step} ({share}) the GPU is idle because the host had waited for it.",
    )
    stage = longest_stage(report.ranks)
    emit(
        "pipeline bubble",
        "Pipeline bubble: for {time} of {step} ({share}) ranks wait for their partners{stage}.",
        stage=f"; {stage}: give its stage fewer layers" if stage else _late_launches(report),
    )
    emit("copy", "Copies: for {time} of {step} ({share}) the GPU only copies{most}.", most=_copies(details))
    emit("dependency", "Dependencies: for {time} of {step} ({share}) launched kernels wait for other streams' events.")
    worst = details.stragglers[0] if details.stragglers else None
    late = "Late ranks: for {time} of {step} ({share}) collectives wait, unhidden, for their last rank"
    if worst and worst.caused >= _WORTH_SAYING * whole:
        part = percent(worst.caused, sum(s.caused for s in details.stragglers))
        late = (
            f"Straggler: rank {worst.rank} comes last in {worst.last} collectives ({part} of all lateness); "
            f"waiting for late ranks costs {{time}} of {{step}} ({{share}}){_longer(worst.rank, report)}"
        )
    emit("late rank", late + ".")
    if exposure:
        by_kind: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))  # and group
        waiters: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for e in exposure:
            kind = collective_kind(e.collective)
            by_kind[kind][e.group] += e.exposed - e.late_rank
            waiters[kind][e.waited_by] += e.exposed - e.late_rank
        kind, of_groups = max(by_kind.items(), key=lambda item: sum(item[1].values()))
        group, most = max(of_groups, key=lambda name: of_groups[name]), sum(of_groups.values())
        named = group if len(of_groups) == 1 else f"{len(of_groups)} groups"
        waiter = max(waiters[kind].items(), key=lambda item: item[1])[0]
        by = f", awaited most by {waiter.removeprefix('aten::')}" if waiter else ""
        waits = steady.exposed - stalls["transfer"]
        of = f"; {percent(steady.exposed, whole)} with waits for ranks" if waits > _SEEN * whole else ""
        emit(
            "transfer",
            "Exposed transfers: communication that no compute hides takes {time} of {step} ({share}{of}), most in "
            f"{kind} of {named} ({duration(most)}{by}){_calls(kind, group, report, details)}.",
            of=of,
        )
    if slow := slow_products(report):
        assert report.mfu is not None
        found.append((report.mfu.float32 * whole, f"Precision: {slow}; {PRECISION}."))
    again = [f"Recompilation: {sentence(one)}{remedy(one)}." for one in report.recompiles]
    again += [f"Fault: {of_fault(one, whole)}." for one in report.faults]
    if report.garbage is not None:
        again.append(f"Garbage collection: {collected(report.garbage)}; {REMEDY}.")
    return [*_grows(report), *again, *(text for _, text in sorted(found, key=lambda item: -item[0])), *_apart(report)]


def of_time(found: Sequence[str]) -> str:
    """The first of the findings that is about the time of a step; "" without one."""
    return next((text for text in found if not text.startswith(_GROWING)), "")


def _grows(report: Report) -> list[str]:
    """Memory that ends the run sooner or later."""
    growth = report.growth
    if growth is None:
        return []
    full = f"; the GPU is full in iteration {growth.full:,}"
    return [f"{_GROWING}: {grows(growth)}, on rank {growth.rank}{full}; {keep_less(growth)}."]


def _longer(rank: int, report: Report) -> str:
    """How much longer a rank's GPU is host-bound than others, or its kernels take than those of the median rank;
    "" where they do not."""
    if late_by := of_host(report, rank):
        return f"; {late_by}"
    own = next(one for one in report.ranks if one.rank == rank)
    slower = own.slower
    if not slower:
        return ""
    usual, whole = kernel_time(own) / max(1, report.headline.steps) - slower, report.steady.time
    known = next((delay.gain for delay in report.delays if delay.rank == rank and delay.gain is not None), None)
    gain = (
        "; fixing it gains as much at least"
        if known is None
        else f"; without its factor a step takes {duration(known)} ({percent(known, whole)}) less"
    )
    return (
        f"; its kernels take {percent(slower, usual)} longer than those of the median rank, {duration(slower)} a step "
        f"({percent(slower, whole)}){gain}{_by_work(rank, report)}"
    )


def _by_work(rank: int, report: Report) -> str:
    more = times_the_work(report.ranks, rank)
    return f"; it has {more:.2f} times the flops of the median rank: share the data evenly" if more > 1 else ""


def _late_launches(report: Report) -> str:
    more = report.headline.hosts.slower - report.headline.step_time if report.headline.hosts is not None else 0.0
    return f", whose hosts launch late: hosts 1.5 times slower add {duration(more)}" if hosts_decide(report) else ""


def _copies(details: Details) -> str:
    """Direction, size and rate of the copies that take most time."""
    copies = [work for work in details.kernels if work.name.startswith("Memcpy") and work.bytes and work.time]
    if not copies:
        return ""
    most = max(copies, key=lambda work: work.time)
    return f", most by {most.name}, {size(most.bytes / most.count)} a call at {rate(most.bytes / most.time * 1e9)}"


def _apart(report: Report) -> list[str]:
    """Steps set apart that take more than a fifth of the time of all steps, less a simulated run's own start-up."""
    whole = sum(step.times.time for step in report.steps)
    by_note: dict[str, list[StepTimes]] = defaultdict(list)
    for one in report.steps:
        if one.note and (report.metadata["host_mode"] == REAL or one.note not in _BEFORE):
            by_note[one.note].append(one)
    found = []
    for note, own in by_note.items():
        time = sum(one.times.time for one in own)
        if time > _APART * whole:
            which = f"step{'s' * (len(own) > 1)} {ranges(tuple(one.number for one in own))}"
            found.append(
                f"{EXCLUDED}: {note} ({which}) takes {duration(time)}, {percent(time, whole)} of all steps' time."
            )
    return found


_HIDES = {
    "all_gather": "it hides if it begins earlier (prefetching), or if what was gathered is kept",
    "reduce_scatter": "smaller pieces would begin earlier, during the backward pass",
    "all_reduce": "smaller buckets would begin earlier, during the backward pass",
    "all_to_all": "it hides behind work that does not need the tokens: shared experts, another micro-batch",
    "send_recv": "work that does not need it could hide it: other micro-batches, the part of a model before its use",
}


def no_sync(report: Report, details: Details) -> str:
    """``4 backward passes of a step reduce all gradients each: ...``; "" unless DDP does that."""
    if not any(work.name == DDP for work in details.modules) or not details.memory:
        return ""
    gradients = max(memory.by_category.get("parameters", 0) for memory in details.memory)  # as many bytes
    by_group: dict[str, float] = defaultdict(float)  # of a rank and step
    for c in details.collectives:
        if collective_kind(c.name) == "all_reduce":
            by_group[c.group] += c.bytes * c.count / min(c.ranks, len(report.ranks)) / max(1, report.headline.steps)
    times = max(by_group.values(), default=0.0) / gradients if gradients else 0.0
    if times < 2 - _NEARLY or abs(times - round(times)) > _NEARLY:
        return ""
    return (
        f"{round(times)} backward passes of a step reduce all gradients each: DDP's no_sync() reduces them in the last"
    )


def _calls(kind: str, group: str, report: Report, details: Details) -> str:
    """Size and speed of these collectives, and work that could hide them."""
    own = [c for c in details.collectives if collective_kind(c.name) == kind and c.group == group]
    if not own:
        return ""
    most = max(own, key=lambda c: c.transfer * c.count)
    speed = f" at {most.bus_bandwidth / 1e9:.0f} GB/s of bus bandwidth" if most.bus_bandwidth else ""
    hint = (no_sync(report, details) if kind == "all_reduce" else "") or _HIDES.get(kind, "")
    call = f"a call of {size(most.bytes)}" if most.bytes else "a call"
    return f"; {call} takes {duration(most.transfer)}{speed}" + (f"; {hint}" if hint else "")


def memory_finding(report: Report) -> str | None:
    """The fullest rank's peak and what it is made of."""
    if report.details is None or not report.details.memory:
        return None
    fullest = max(report.details.memory, key=lambda m: (m.peak_allocated, -m.rank))
    parts = sorted(fullest.by_category.items(), key=lambda item: -item[1])
    made_of = ", ".join(f"{name} {size(value)}" for name, value in parts if name != "fragmentation")
    return f"Memory: rank {fullest.rank} peaks at {size(fullest.peak_allocated)} allocated: {made_of}."
