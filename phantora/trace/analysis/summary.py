"""The lines that end a run: does it fit, how long is a step, what it draws, what holds it up, how far to trust it, what
is next.

Every number is one of the report's (docs/glossary.md), with as many digits as its error bar allows.
"""

from __future__ import annotations

from math import ceil, log10
from typing import Any

from phantora.trace.analysis.communicators import ranges
from phantora.trace.analysis.data import CPU_WORK, DATA
from phantora.trace.analysis.delays import longest_stage
from phantora.trace.analysis.faults import sentence as of_fault
from phantora.trace.analysis.fit import Fit
from phantora.trace.analysis.garbage import sentence as collected
from phantora.trace.analysis.host_memory import host_memory
from phantora.trace.analysis.host_waits import BOUND, cpu_shares, most_in
from phantora.trace.analysis.late_hosts import longer_wait
from phantora.trace.analysis.loader import LOADER, loader_of
from phantora.trace.analysis.memory_fit import grows, keep_less
from phantora.trace.analysis.mfu import RECOMPUTED_LAYERS, differing, peak_name, slow_format
from phantora.trace.analysis.outlier_steps import LESS_WORK, MORE_WORK, ONCE
from phantora.trace.analysis.recompiles import sentence
from phantora.trace.analysis.report import UNEQUAL, Delay, Headline, Report, Work
from phantora.trace.analysis.slower_ranks import times_the_work
from phantora.trace.analysis.units import cut, percent
from phantora.trace.schema import REAL

_MOST_CAUSES = 3
_LINE = 90  # characters behind the word of a line
_WORTH_NAMING = 0.005  # of a step
_HOST_DECIDES = 0.12  # of a step
_PEAK_DECIDED = 0.01  # of a peak
_OVER_LINKS = ("Memcpy HtoD", "Memcpy DtoH", "Memcpy PtoP")  # copies whose rate is not the memory's
WIDE = 0.2  # of a step: then what widens the error bar is named
_NARROWER_HOST = "narrower with phantora profile host, then --host FILE"
_SPREAD = 0.5  # of steps that wait: their mean is given in three digits
_MORE = 1.1  # times a steady step: then the run's mean step is named
ON_THE_GPU = "put the model and its data there (.to('cuda'))"
_UNITS = (("s", 1e9), ("ms", 1e6), ("us", 1e3))


def lines(report: Report) -> list[tuple[str, str]]:
    """A word and its text each; first the failure of a run that failed."""
    found = [("FAILED", report.failure)]
    fit = report.details.fit if report.details is not None else None
    if fit is not None and not fit.fits:  # what ran until then is no step of a training
        verdict = "" if report.failure and fit.failed else _fits(report)  # the failure is the verdict
        found += [("FITS", verdict), ("MEMORY", fit.holds), ("GROWS", _grows(report)), ("PEAK", _peak(report))]
        return [(word, text) for word, text in found if text]
    found += [("FITS", _fits(report)), ("GROWS", _grows(report)), ("PEAK", _peak(report))]
    if report.without_gpu:
        return [(word, text) for word, text in [*found, ("STEP", no_kernels(report))] if text]
    found += [
        ("STEP", _step(report)),
        ("SPREAD", spread(report)),
        ("MFU", other_mfu(report)),
        ("RANGE", wide_range(report)),
    ]
    found += [("FP32", slow_products(report)), ("HOST", _host(report))]
    if report.step_source != "run":
        found += [("ENERGY", energy(report)), ("HELD UP", held_up(report)), ("LOST", lost(report))]
    found.append(("COMPILES", sentence(report.recompiles[0]) if report.recompiles else ""))
    found += [("FAULT", of_fault(one, report.steady.time)) for one in report.faults]
    found.append(("GARBAGE", collected(report.garbage) if report.garbage is not None else ""))
    found.append(("PHASES", _phases(report)))
    found.append(("TRUST", trust(report)))
    return [(word, text) for word, text in found if text]


def what_would_fit(report: Report) -> str:
    """The remedy of a run that does not fit; of one that grows without GROWS, which is a line of its own."""
    fit = report.details.fit if report.details is not None else None
    if fit is None or fit.fits:
        return ""
    return keep_less(report.growth) if report.growth is not None else fit.remedy


def _fits(report: Report) -> str:
    fit = report.details.fit if report.details is not None else None
    if fit is None:
        taken, capacity = int(report.trailer.get("device_memory_bytes", 0)), int(report.metadata["memory_bytes"])
        taken = taken or max((rank.gpu.peak_reserved for rank in report.ranks), default=0)
        host = host_memory(report.metadata.get("extra", {}), report.trailer)
        fits = host is None or not host.short
        if fits and not (taken and capacity):
            return ""
        by_chance = report.peak.highest - report.peak.allocated if report.peak is not None else 0
        fit = Fit(fits=fits, taken=taken, capacity=capacity, by_chance=by_chance, host=host)
    peak = " (PEAK)" if fit.in_some_runs else ""
    if fit.fits and report.growth is not None:
        return f"in this run: {fit.short(f', not from iteration {report.growth.full:,} on (GROWS)')}{peak}"
    return fit.short() + peak


def _grows(report: Report) -> str:
    """Memory that grows from iteration to iteration, what keeps it, and when the GPU is full."""
    growth = report.growth
    if growth is None:
        return ""
    fit = report.details.fit if report.details is not None else None
    if fit is not None and not fit.fits:
        return grows(growth)
    return f"{grows(growth)}; out of memory in iteration {growth.full:,}"


def _peak(report: Report) -> str:
    """The range of the allocated memory's peak, where the watchdog's timing decides more than a per cent."""
    peak = report.peak
    if peak is None or peak.highest - peak.lowest < _PEAK_DECIDED * peak.highest:
        return ""
    low, high = peak.lowest, peak.highest
    when = "NCCL's watchdog releases buffers 0 to 100 ms after their use"
    return f"{low / 2**30:.1f} to {high / 2**30:.1f} GiB allocated: {when}"


def _step(report: Report) -> str:
    h = report.headline
    if report.step_source == "run":
        return f"{rounded(h.step_time, h.error)} from first to last: no steps were found in this run"
    if not h.steps:
        return f"none is steady: {rounded(h.step_time, _SPREAD)} with start-up; run 4 steps or more"
    parts = [step_of(h), *rates(h)[:1]]
    if h.mfu is not None:
        mfu, hfu = (100 * (share or 0.0) for share in (h.mfu, h.hfu))
        parts.append(f"MFU {mfu:.1f} %" + (f", HFU {hfu:.1f} %" if hfu > mfu else ""))
    if h.waits is not None:
        text = f"{parts[0]}, {host_bound(report)}"
        return "   ".join([text, *parts[1:], *(_unequal(report) if h.error is not None else [])])
    found = [STEPS_OR_LAYERS, *_settling(h)] if report.may_be_layers else [*_steps(h), *_unequal(report)]
    return "   ".join([*parts, *found])


def step_of(h: Headline) -> str:
    """``27.0 ms ±3 %``; ``344 ms with the CPU time of its data, 3.19 ms without`` where that decides the step."""
    if h.without_data is not None:
        without = rounded(h.without_data, _SPREAD)
        return f"{rounded(h.step_time, _SPREAD)} with the CPU time of its data, {without} without"
    if h.widest == CPU_WORK:
        return f"{rounded(h.step_time, h.error)}, up to {_longest(h)} with the script's work on the CPU"
    return step_with_bar(h) + (", without the CPU time of its data" if h.widest == DATA else "")


def _longest(h: Headline) -> str:
    return rounded((1 + (h.error_above or 0.0)) * h.step_time, _SPREAD)


def rates(h: Headline) -> list[str]:
    """``607k tokens/s``, ``1.2k samples/s``, as far as they are known."""
    if h.throughput is None:
        return []
    error = h.error if h.without_data is None else _SPREAD
    tokens = "tokens read/s" if h.throughput.read else "tokens/s"
    known = {tokens: h.throughput.tokens_per_second, "samples/s": h.throughput.samples_per_second}
    return [f"{counted(rate, error)} {unit}" for unit, rate in known.items() if rate]


def spread(report: Report) -> str:
    """``412 ms (405 to 431 in 90 % of steps), slowest of 8 ranks 2.1 %``; or why there are no samples."""
    found, why = report.headline.spread, report.trailer.get("spread", {}).get("skipped")
    if found is None:
        return f"no samples: {why}" if why else ""
    _, scale = _unit(found.median)
    error = max((found.high - found.low) / found.median, 1e-3)
    places = _decimals(found.median / scale, error)
    text = f"{rounded(found.median, error)} ({found.low / scale:.{places}f} to {found.high / scale:.{places}f} in 90 %"
    text += f" of {found.samples} samples)"
    if found.waits is not None:
        return f"{text}; waits for the slowest of {len(report.ranks)} ranks: {100 * found.waits:.1f} %"
    return f"{text}; the slowest of 64 such ranks takes {100 * found.slowest[64]:.1f} % more"


STEPS_OR_LAYERS = "of what repeats: steps, or the layers of one (--steps)"


def other_mfu(report: Report) -> str:
    """Why the script prints another MFU."""
    basis, h = report.mfu, report.headline
    simulated = h.step_time / h.without_data if h.without_data else 1.0  # the script's time has no data either
    mfu, hfu = ((share or 0.0) * simulated for share in (h.mfu, h.hfu))
    return differing(basis, mfu, hfu or mfu, report.metadata["peak_flops"]) if basis is not None and mfu else ""


def slow_products(report: Report) -> str:
    """Products in a format far below the peak of the MFU."""
    return slow_format(report.mfu, report.steady.time, report.metadata["peak_flops"]) if report.mfu is not None else ""


def no_kernels(report: Report) -> str:
    """What a log without work of a GPU has, and how to get the rest."""
    if report.metadata["host_mode"] != REAL:
        if report.failure or not report.complete:
            return "none: the run ended before a GPU had work"
        return "none: the script gave the GPU no work; are its model and data there?"
    if not report.host_operators:
        return "none: the trace has no work of a GPU"
    calls = sum(row.count for row in report.host_operators)
    if report.metadata["extra"].get("imported", {}).get("cut_short"):
        return f"none: the file is cut short before any kernel, after {calls:,} operators; give the whole file"
    what = "an execution trace has no times" if report.host_operators[0].time is None else "the trace has no kernels"
    remedy = "profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
    return f"none: {what}, only {calls:,} operators; {remedy}"


def host_bound(report: Report) -> str:
    """``14 of 29 steps wait for the host: 53 % of the time, most in DataLoader``."""
    waits = report.headline.waits
    assert waits is not None
    where = most_in(report)
    return f"{waits.steps} of {waits.of} steps wait for the host: {100 * waits.share:.0f} % of the time{where}"


def _wide(h: Headline) -> bool:
    return max(h.error or 0.0, h.error_above or 0.0) > WIDE


def wide_range(report: Report) -> str:
    """What widens a wide error bar, and the command that narrows it."""
    h = report.headline
    if h.widest in ("", "host") or not (_wide(h) or h.widest == DATA):  # HOST tells of the host
        return ""
    if h.without_data is not None:
        least, most = (rounded((1 + share) * h.step_time, _SPREAD) for share in (-(h.error or 0), h.error_above or 0))
        return f"{least} to {most} by the host; rows do not wait for data: --data-loading measured and more steps do"
    if h.widest == CPU_WORK:
        return f"up to {_longest(h)}: {narrower(h.widest)}"
    return f"{error_bar(h.error or 0.0, h.error_above or 0.0)}: {narrower(h.widest)}"


def narrower(widest: str) -> str:
    """What widens an error bar most (:attr:`Headline.widest`), and the command that narrows it."""
    if widest == DATA:
        return "the making of data, at the pace of hosts; --data-loading measured simulates it"
    if widest == CPU_WORK:
        return "work of the script on the CPU that no model has (NumPy, sorts); --host-time measured counts it"
    if widest == "fold":
        return "ranks differ; narrower with more of them as processes (--real-ranks)"
    if widest == "host":
        return f"the host's time; {_NARROWER_HOST}"
    return f"prices of {widest}; narrower with --missing FILE, then phantora profile FILE"


def _host(report: Report) -> str:
    """Line for a step that the host decides: its error bar is that of hosts."""
    hosts, time = report.headline.hosts, report.headline.step_time
    if report.metadata["host_mode"] == REAL:  # it has no range
        return ""
    by_host = report.steady.host if hosts is None else hosts.high - hosts.low
    if not time or by_host < _HOST_DECIDES * time:
        return ""
    loader = loader_of(report.trailer)
    if loader is not None and LOADER in most_in(report):
        return f"{loader.sentence()}: {loader.remedy()}"
    measured = hosts is not None and hosts.measured
    remedy = "" if measured else f"; {_NARROWER_HOST}"
    if cpu := cpu_shares(report):
        return f"operators on the CPU: {cpu}{remedy}"
    pace = float(report.metadata.get("extra", {}).get("host", {}).get("pace", 1.0))
    slowest = f" (the slowest rank's takes {100 * (pace - 1):.0f} % longer than the median's)" if pace > 1.005 else ""
    if report.steady.host < BOUND * time:
        return f"a slower one would limit the step{slowest}{remedy}"
    if hosts is None:  # as of a real trace: no range of hosts is in the bar
        return f"limits the step{most_in(report)}{slowest}"
    what = "the step" if report.headline.widest == DATA else "the step and its error bar"
    return f"limits {what}{most_in(report)}{slowest}{remedy}"


def host_effect(report: Report) -> float:
    """ns of a step that its hosts may change: what the GPU waits for them, or a slower host would add."""
    hosts = report.headline.hosts
    return max(report.steady.host, hosts.slower - report.headline.step_time if hosts is not None else 0.0)


def step_with_bar(h: Headline) -> str:
    """``27.0 ms ±3 %`` or ``27.0 ms (-3 % +75 %)``: the prediction with its error bar. Of a real run ``1.60 ms (steps:
    1 to 3.00 ms)``."""
    if h.waits is not None and h.error is None:
        return f"{rounded(h.step_time, _SPREAD)} (steps: {_from_to(h)})"
    step = rounded(h.step_time, h.error)
    if h.error is None or h.error_above is None:
        return step
    bar = error_bar(h.error, h.error_above)
    return f"{step} {bar}" if bar.startswith("±") else f"{step} ({bar})"


def _steps(h: Headline) -> list[str]:
    if not h.settled:
        return ["settled, by the power model"]
    if h.short:
        return _settling(h)
    found = [f"{h.steps} steady step{'s' * (h.steps > 1)}"]
    if h.mean > _MORE * h.step_time:
        found.append(f"{rounded(h.mean, h.error)} on average with {' and '.join(_recurring(h))}")
    return found


def _settling(h: Headline) -> list[str]:
    """``slower at the power cap: let the script run 25 more steps``."""
    more = ceil(h.short / h.step_time) if h.short else 0
    return [f"slower at the power cap: let the script run {more:,} more step{'s' * (more > 1)}"] if more else []


def _unequal(report: Report) -> list[str]:
    """``steps differ: 10.0 to 33.8 ms``, and whether each takes longer than the one before."""
    h, times = report.headline, [step.times.time for step in report.steps if not step.note]
    if h.highest <= UNEQUAL * h.lowest:
        return []
    rise = ", each longer than the last" if times == sorted(times) else ""
    return [f"steps differ: {_from_to(h)}{rise}"]


def _from_to(h: Headline) -> str:
    """``10.0 to 33.8 ms``: the shortest steady step and the longest."""
    _, scale = _unit(h.highest)
    return f"{h.lowest / scale:.3g} to {rounded(h.highest, _SPREAD)}"


def _recurring(h: Headline) -> list[str]:
    """What steps have that only the mean counts."""
    names = {"evaluation": "evaluation or generation"}
    if LESS_WORK in h.apart and MORE_WORK in h.apart:
        names |= {MORE_WORK: "more and less work", LESS_WORK: ""}
    return [name for note in h.apart if note not in ONCE and (name := names.get(note, note))]


def energy(report: Report) -> str:
    """Watts of a GPU, joules of a step and a token, and dollars where there is a price."""
    found, cost = report.headline.energy, report.headline.cost
    parts = []
    if found is not None:
        parts += [f"{found.watts:.0f} W a GPU", f"{digits(found.joules_per_step)} J a step"]
        if found.joules_per_token is not None:
            parts.append(f"{digits(found.joules_per_token)} J/token")
    if cost is not None and cost.dollars_per_million_tokens is not None:
        parts.append(f"${digits(cost.dollars_per_million_tokens)} per million tokens")
    elif cost is not None:
        parts.append(f"${digits(cost.dollars_per_step)} a step")
    return "   ".join(parts)


def held_up(report: Report) -> str:
    """``3.1 % of the step: host 2.0 %, all_reduce 0.9 %``: time without compute, and the causes that take at least half
    a per cent of a step; most first."""
    whole = report.steady.time
    named = [delay for delay in report.delays if delay.time >= _WORTH_NAMING * whole]
    text = ", ".join(
        f"{cut(delay.name, 30)} {_share(delay.time, whole)}{_because(delay, report)}" for delay in named[:_MOST_CAUSES]
    )
    if not text:
        return "nothing: the GPUs compute all the time"
    return f"{_share(sum(delay.time for delay in report.delays), whole)} of the step: {text}"


def _because(delay: Delay, report: Report) -> str:
    """`` (most in DataLoader)``, `` (rank 3 computes 2.5 times as long as others)``; of a late rank `` (without its
    factor the step takes 17.6 % less)``, or `` (its kernels take 15.3 % of the step longer)`` if that is more than the
    waits."""
    whole, parts = report.steady.time, []
    if delay.gain is not None:
        parts.append(f"without its factor the step takes {_share(delay.gain, whole)} less")
    elif delay.rank is not None and (longer := longer_wait(report, delay.rank)):
        parts.append(f"its GPU is host-bound for {_share(longer, whole)} of the step longer")
    elif delay.slower > delay.time:
        parts.append(f"its kernels take {_share(delay.slower, whole)} of the step longer")
    if delay.cause == "host" and delay.time >= BOUND * whole:
        parts.append(most_in(report).removeprefix(", "))
    if delay.cause == "pipeline bubble":
        parts.append(longest_stage(report.ranks))
    if delay.rank is not None and (more := times_the_work(report.ranks, delay.rank)) > 1:
        parts.append(f"has {more:.2f} times the work")
    text = ", ".join(part for part in parts if part)
    return f" ({text})" if text else ""


def lost(report: Report) -> str:
    """Loss of kernels: ``55 % of the step: 32 % without flops (copy 11.8), 22 % below BF16's peak (gemm)``. With MFU
    and the share of :func:`held_up` it makes up 100 %."""
    whole = f"{100 * sum(loss.share for loss in report.losses):.0f} % "
    text = ""
    for most in ((2, 2), (2, 1), (1, 1), (0, 0)):
        parts = _lost(report, *most)
        text = f"{whole}of the step: {', '.join(parts).removeprefix(whole if len(parts) == 1 else '')}" if parts else ""
        if len(text) <= _LINE:
            break
    return text


def _lost(report: Report, most_without: int, most_below: int) -> list[str]:
    parts = []
    kinds = ((False, "without flops", most_without), (True, f"below {peak_of(report)}", most_below))
    for flops, what, most in kinds:
        kind = [loss for loss in report.losses if loss.flops == flops and loss.name != RECOMPUTED_LAYERS]
        own = [loss for loss in kind if loss.share >= _WORTH_NAMING]
        whole = sum(loss.share for loss in kind)
        if own and whole >= _WORTH_NAMING:
            named = ", ".join(f"{loss.name} {100 * loss.share:.1f}" for loss in own[:most])
            if most and whole - own[0].share < _WORTH_NAMING:
                named = own[0].name  # all of it
            parts.append(f"{100 * whole:.0f} % {what}" + (f" ({named})" if named else ""))
    again = sum(loss.share for loss in report.losses if loss.name == RECOMPUTED_LAYERS)
    if again >= _WORTH_NAMING:
        parts.append(f"{100 * again:.0f} % {RECOMPUTED_LAYERS}")
    return parts


def peak_of(report: Report) -> str:
    """``BF16's peak``."""
    return f"{peak_name(report.mfu.dtype)}'s peak" if report.mfu is not None else "peak"


def _phases(report: Report) -> str:
    """``generate 61 %, train 30 %; idle 40 %``, for each role."""
    texts = []
    for role in report.phases:
        parts = ", ".join(f"{row.phase} {_share(row.time, role.time)}" for row in role.phases if row.share >= 0.01)
        who = f"{role.name} (ranks {ranges(tuple(role.ranks))}): " if len(report.phases) > 1 else ""
        texts.append(f"{who}{parts}; GPU idle {_share(role.idle, role.time)}")
    return "   ".join(texts)


def trust(report: Report) -> str:
    """Provenance of the steps' time, largest share first."""
    shares = [(share, name) for name, share in report.by_provenance.items() if share >= _WORTH_NAMING]
    text = ", ".join(f"{100 * share:.0f} % {name}" for share, name in sorted(shares, reverse=True))
    gpu = report.metadata.get("extra", {}).get("specification")
    return f"specification: no kernel of the {gpu} is measured; {text}" if gpu else text


def _share(part: float, whole: float) -> str:
    return percent(part, whole).replace("%", " %")


def who(report: Report) -> str:
    """Subject of the simulation: cluster, ranks, and the processes of a folded run."""
    meta = report.metadata
    cluster = meta["cluster"] or meta["gpu"] or "cluster unknown"
    world = int(meta["world_size"])
    ranks = f"{world:,} rank{'s' * (world > 1)}"
    own = [rank.rank for rank in report.ranks]
    if meta.get("extra", {}).get("fold"):
        ranks += f", {len(own)} of them as processes"
    elif len(own) < world:
        ranks += f", here {ranges(tuple(own))}"
    if gpus := report.shared_gpus:
        how = "run concurrently (MPS)" if gpus[0].mps else "take turns"
        ranks += f", which share {len(gpus)} GPU{'s' * (len(gpus) > 1)} and {how}"
    return f"{cluster}, {ranks}"


def achieved_rate(work: Work, metadata: dict[str, Any]) -> tuple[str, str]:
    """Rate of arithmetic or of memory, whichever is nearer to its peak, and the share of that peak."""
    if not work.time:
        return "-", "-"
    flops, moved = work.flops / work.time * 1e9, work.bytes / work.time * 1e9
    bandwidth = float(metadata.get("extra", {}).get("memory_bandwidth") or 0)
    arithmetic, memory = work.at_peak / work.time, moved / bandwidth if bandwidth else 0.0
    if work.cls == "communication" and moved:  # its bytes cross links, of which several kinds have a part
        return f"{moved / 1e9:.0f} GB/s", "-"
    if moved and (not bandwidth or work.name.startswith(_OVER_LINKS)):
        return f"{moved / 1e9:.3g} GB/s", "-"
    if not max(arithmetic, memory):
        return "-", "-"
    if work.cls == "attention" and arithmetic >= memory:  # torch counts the whole square of scores, masked or not
        return f"{flops / 1e12:.0f} TFLOP/s", f"≤{min(100.0, 100 * arithmetic):.0f}%"
    achieved = f"{flops / 1e12:.0f} TFLOP/s" if arithmetic >= memory else f"{moved / 1e9:.0f} GB/s"
    return achieved, f"{100 * max(arithmetic, memory):.0f}%"


# ---------------------------------------------------------------------- digits


def rounded(ns: float, error: float | None) -> str:
    """A time with no more digits than its relative `error` bar allows: ``27.0 ms`` at 4 %."""
    unit, scale = _unit(ns)
    return f"{ns / scale:.{_decimals(ns / scale, error)}f} {unit}"


def error_bar(below: float, above: float) -> str:
    """Relative errors below and above in per cents, ``±3 %`` or ``-3 % +75 %``; in tenths where both are below one
    per cent. The larger alone, where they differ by less than a per cent."""
    larger = max(below, above)
    if abs(above - below) < 0.01:
        return f"±{100 * larger:.{0 if larger >= 0.01 else 1}f} %"
    return f"-{100 * below:.0f} % +{100 * above:.0f} %"


def counted(number: float, error: float | None) -> str:
    """A rate with no more digits than its relative `error` bar allows: ``607k``."""
    for suffix, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0)):
        if number >= scale:
            return f"{number / scale:.{_decimals(number / scale, error)}f}{suffix}"
    return f"{number:.3g}"


def digits(number: float) -> str:
    """Three digits, all before the point of a large number: ``0.0123``, ``4,880``."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _unit(ns: float) -> tuple[str, float]:
    return next(((unit, scale) for unit, scale in _UNITS if ns >= scale), ("ns", 1.0))


def _decimals(value: float, error: float | None) -> int:
    """Digits after the point: the last is at most a tenth of the bar; three to five digits in all."""
    digits = min(5, max(3, 1 + ceil(-log10(error)) if error else 4))
    return max(0, digits - 1 - int(log10(value))) if value >= 1 else digits
