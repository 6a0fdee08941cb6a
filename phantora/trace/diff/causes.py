"""Causes of a difference between two runs: the change that explains most comes first.

:mod:`changed_work` finds changes of what is run, :mod:`machine` equal work that takes another time. The ranking goes by
the time that a cause's evidence explains. What can have one cause only comes before the rest: another GPU, which the
logs name, and a single rank that changed alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from phantora.trace.diff.changed_work import REST, WORTH_NAMING, changed_work
from phantora.trace.diff.compare import Cause, Difference, Side
from phantora.trace.diff.cpu_work import with_cpu_work, with_loader
from phantora.trace.diff.machine import (
    LATE_HOST,
    MORE_WORK,
    degraded_links,
    host_causes,
    late_host_causes,
    network_causes,
    only_collectives,
    same_host,
    slowed_ranks,
    straggler_causes,
)
from phantora.trace.diff.surroundings import memory_causes, with_surroundings

_DECISIVE = 0.5  # of the step's change, for a cause to be named first
_REMAINS = 0.05  # of the step's change: causes that leave less of it explain all
_SAME_CALLS = ("trials", "memory format", "shapes")  # change kernels: the host launches as much as before
_COUNTS = ("calls", "collectives", "code", "rest")  # of recordings: how much of the program they have
_SCALER = "GradScaler skips "  # as in stub/tracer/assumptions.cpp
_OF_GPU = ("kernels", "network", "host", "attention")  # torch chooses the operator of attention by the GPU
_ALONE = ("straggler", LATE_HOST, "compiled")  # causes of other differences too, of waits and of the host's work


def find_causes(a: Side, b: Side, d: Difference) -> list[Cause]:
    """The causes, first the one to name; empty for equal runs."""
    if d.equal or (d.same_work and not d.significant and not d.reality):
        return list(memory_causes(d))
    structure, host, cpu = changed_work(a, b, d), host_causes(a, b, d), list[Cause]()
    if same_host(a, b):
        cpu, host = with_cpu_work(a, b, host)
        data, host = with_loader(a, b, host)
        cpu += data
        structure, host = _with_host(structure, host)
    elif d.reality:
        structure, host = _with_reads(structure, host)
    degraded = degraded_links(a) != degraded_links(b) or (bool(d.reality) and only_collectives(d))
    # Kernels run longer next to collectives on a degraded link, on some ranks more: these ranks are no stragglers.
    uneven = degraded or any(cause.kind == "schedule" for cause in structure)
    straggler = [] if uneven and slowed_ranks(a) == slowed_ranks(b) else straggler_causes(a, b)
    if host and not straggler and (late := late_host_causes(a, b)):
        straggler, host = late, []  # the mean of all ranks' waits tells of it too
    network = network_causes(a, b, d)
    found = [cause for cause in (*straggler, *structure, *network, *cpu, *host) if _worth_naming(cause, d)]
    if not found:
        found = _below_the_limit(structure, network if degraded else [], host, d)
    found = _without_consequences(found, degraded)
    found.sort(key=lambda cause: (not _leads(cause, d), -abs(cause.effect)))
    found = _by_another_gpu(found, d)
    if not found:
        text = "no change of work, durations or waits large enough to name"
        found = [Cause("other", text, d.step.change)]
    return _decisive_first([*with_surroundings(found, d), *_skipped(a, b)], d)


def _skipped(a: Side, b: Side) -> Iterator[Cause]:
    """Steps that a GradScaler skips, which have no optimizer's work. They are no steady steps."""
    before, after = (
        next((each.what.rpartition(" at ")[0] for each in side.report.assumptions if each.what.startswith(_SCALER)), "")
        for side in (a, b)
    )
    if before != after:
        texts = [text.removeprefix(_SCALER) or "no GradScaler" for text in (before, after)]
        yield Cause("scaler", f"{_SCALER}{' -> '.join(texts)}", 0.0)


def _leads(cause: Cause, d: Difference) -> bool:
    """It is named before larger causes: other code only where its kernels do not take the opposite time."""
    return cause.kind in _ALONE and (cause.kind != "compiled" or cause.effect * d.step.change >= 0)


def _decisive_first(found: list[Cause], d: Difference) -> list[Cause]:
    """`found`, for a significant change beginning with a cause that has its sign and at least half of its size, or with
    the statement that there is none; at the end what brings the effects' sum to the change."""
    change = d.step.change
    if d.recorded:
        slows = 1 - d.pace
        first = next((c for c in found if c.effect * slows > 0 and c.kind not in _COUNTS), None)
        others = (cause for cause in found if cause is not first and cause.kind not in _COUNTS)
        return found if first is None else [first, *others]
    if not d.significant or abs(change) <= WORTH_NAMING * max(d.step.a, 1.0):
        return found
    rest = change - sum(cause.effect for cause in found)
    if abs(rest) > _REMAINS * abs(change):
        found = [*found, Cause("rest", "overlap with other work, and smaller changes", rest)]
    first = next((c for c in found if c.effect * change > 0 and abs(c.effect) >= _DECISIVE * abs(change)), None)
    if first is None or first.kind == "rest":
        return [Cause("several", "no single cause makes half of it", 0.0), *found]
    return [first, *(cause for cause in found if cause is not first)]


def _worth_naming(cause: Cause, d: Difference) -> bool:
    """Also a setting that was changed, with its own effect."""
    return cause.kind == "trials" or abs(cause.effect) >= WORTH_NAMING * max(d.step.a, 1.0)


def _below_the_limit(structure: list[Cause], network: list[Cause], host: list[Cause], d: Difference) -> list[Cause]:
    """One cause where none is worth naming: changed work or links first, else the largest in the step's direction."""
    changed = [cause for cause in structure if cause.kind not in REST]
    if changed or network:
        return [*changed, *network][:1]
    rest = [cause for cause in (*structure, *host) if cause.effect * d.step.change > 0]
    return sorted(rest, key=lambda cause: -abs(cause.effect))[:1]


def _without_consequences(found: list[Cause], degraded: bool) -> list[Cause]:
    """Causes without "kernels" where another cause slows these: a straggler, or collectives on a degraded link; and
    without the larger batch that makes a straggler."""
    kernels = sum(cause.effect for cause in found if cause.kind == "kernels")
    others = [cause for cause in found if cause.kind != "kernels"]
    stragglers = [cause for cause in found if cause.kind in ("straggler", LATE_HOST)]
    if any(MORE_WORK in cause.text for cause in stragglers):
        others = [cause for cause in others if cause.kind != "batch"]  # that of the straggler
    if stragglers:
        kernels = 0.0
    elif not (degraded and any(cause.kind == "network" for cause in found)):
        return found
    return [
        replace(cause, effect=cause.effect + kernels) if degraded and cause.kind == "network" else cause
        for cause in others
    ]


def _by_another_gpu(found: list[Cause], d: Difference) -> list[Cause]:
    """`found` with the GPU in place of its effects, if the runs have different GPUs."""
    gpus = next(((x, y) for name, x, y in d.settings if name == "gpu"), None)
    if gpus is None:
        return found
    own = [cause for cause in found if cause.kind in _OF_GPU]
    chosen = "".join(f", with {cause.text}" for cause in own if cause.kind == "attention")
    text = f"another GPU: {gpus[0] or '?'} -> {gpus[1] or '?'}{chosen}"
    rest = [cause for cause in found if cause.kind not in _OF_GPU]
    effect, other = sum(cause.effect for cause in own), max(rest, key=lambda cause: abs(cause.effect), default=None)
    if other is not None and abs(other.effect) >= abs(effect):  # of other work nothing tells the part of the GPU
        rest.remove(other)
        text, effect = f"{text}, and {other.text}", effect + other.effect
    return [Cause("gpu", text, effect), *rest]


def _with_host(structure: list[Cause], host: list[Cause]) -> tuple[list[Cause], list[Cause]]:
    """One host waits otherwise only because of what is run: the named change that explains most (or else what no rule
    names), in the same direction if any does, takes the host's part."""
    named = [cause for cause in structure if cause.kind not in REST]
    named = named or [cause for cause in structure if cause.kind != "kernels"]
    if not named or not host:
        return structure, host
    effect = sum(cause.effect for cause in host)
    named = [cause for cause in named if cause.kind not in _SAME_CALLS or abs(cause.effect) >= _DECISIVE * abs(effect)]
    if not named:
        return structure, host
    most = max(named, key=lambda cause: (cause.effect * effect > 0, abs(cause.effect)))
    if most.kind == "compiled" and most.effect * effect < 0:  # faster kernels, and a slower host
        return structure, [replace(host[0], text=f"{host[0].text} ({most.text})", effect=effect)]
    whole = replace(most, effect=most.effect + effect)
    return [whole if cause is most else cause for cause in structure], []


def _with_reads(structure: list[Cause], host: list[Cause]) -> tuple[list[Cause], list[Cause]]:
    """A host that waits for values of the GPU more often launches late: such reads take the host's part."""
    reads = next((cause for cause in structure if cause.kind == "reads"), None)
    if reads is None or not host or reads.effect * host[0].effect <= 0:
        return structure, host
    whole = replace(reads, effect=reads.effect + sum(cause.effect for cause in host))
    return [whole if cause is reads else cause for cause in structure], []
