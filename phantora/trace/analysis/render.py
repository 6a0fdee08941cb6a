"""A report as tables for the terminal, at most 100 columns wide."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from phantora.trace.analysis.analyze import host_bound_steps
from phantora.trace.analysis.assumptions import assumed, relevant
from phantora.trace.analysis.communicators import collective_kind, ranges
from phantora.trace.analysis.data import CPU_WORK, DATA
from phantora.trace.analysis.host_waits import named_waits, short_wait
from phantora.trace.analysis.mfu import RECOMPUTED_LAYERS, peak_name
from phantora.trace.analysis.report import (
    CAUSES,
    CriticalPath,
    Details,
    LinkReport,
    Loss,
    MemoryBlock,
    Report,
    UnmeasuredOperator,
    Work,
)
from phantora.trace.analysis.steps import PRODUCTS
from phantora.trace.analysis.steps_table import print_ranks, print_steps
from phantora.trace.analysis.summary import (
    STEPS_OR_LAYERS,
    achieved_rate,
    energy,
    host_bound,
    host_effect,
    lines,
    no_kernels,
    other_mfu,
    rates,
    rounded,
    step_of,
    what_would_fit,
    who,
    wide_range,
)
from phantora.trace.analysis.text_table import text_table
from phantora.trace.analysis.units import cut, duration, percent, rate, short_name, size
from phantora.trace.schema import REAL

_MOST_OPERATORS = 12
_MOST_ROWS = 8  # of any other table


MOST_ASSUMPTIONS = 8


def render(report: Report, console: Console, verbose: bool = False) -> None:
    """Prints `report`; `verbose` with what the simulation itself took."""
    meta = report.metadata
    if report.failure:
        console.print(f"[bold red]FAILED: {escape(report.failure)}[/bold red]", highlight=False, soft_wrap=True)
    console.print(f"[bold]{report.path}[/bold]  {who(report)}, {report.rows:,} rows", highlight=False)
    if not report.complete and not report.failure:
        cause = report.trailer.get("error") or "the log ends where its last whole batch does"
        console.print(f"[yellow]The run was cut short: {escape(cause)}.[/yellow]", highlight=False)
    _nccl(meta.get("extra", {}).get("nccl", {}), console)
    _environment(meta.get("extra", {}).get("environment", {}), console)
    if meta.get("host_mode") == REAL:
        _imported(meta.get("extra", {}).get("imported", {}), console)
    if report.without_gpu:
        _host_operators(report, console)
        return
    if _out_of_memory(report, console) and report.failure:  # what ran until then is no step of a training
        _assumptions(report, console)
        assert report.details is not None
        _memory(report.details, console)
        console.print(f"\nWhat ran until then: phantora view {report.path}", highlight=False, markup=False)
        return
    _headline(report, console)
    _assumptions(report, console)
    _races(report, console)
    if report.details is not None:
        _findings(report, console)
    print_steps(report, console)
    print_ranks(report, console)
    _phases(report, console)
    _workspaces(report, console)
    if report.details is not None:
        _details(report, report.details, console)
    _shares(report, console)
    _unmeasured(report, console)
    if verbose:
        _cost(report, console)


def _nccl(variables: dict[str, dict[str, str]], console: Console) -> None:
    """The NCCL_* variables of the run: what they asked for, and which were not heard."""
    honoured = ", ".join(f"{name}={value}" for name, value in variables.get("honoured", {}).items())
    if honoured:
        console.print(f"NCCL with {honoured}", highlight=False, markup=False)
    for name, reason in variables.get("ignored", {}).items():
        console.print(f"{name} ignored: {reason}", highlight=False, markup=False)


def _imported(source: dict[str, Any], console: Console) -> None:
    """Facts about a real run that its traces do not contain."""
    if not source:
        return
    missing = [f"{what} (profile with {option})" for what, option in source.get("missing", {}).items()]
    console.print("A real run" + (f"; not in its trace: {', '.join(missing)}" if missing else ""), highlight=False)


def _environment(variables: dict[str, dict[str, str]], console: Console) -> None:
    """Variables of CUDA, its libraries and torch: those that are simulated, and those that are not."""
    simulated = ", ".join(f"{name}={value}" for name, value in variables.get("simulated", {}).items())
    if simulated:
        console.print(f"Simulated with {simulated}", highlight=False, markup=False)
    for name, instead in variables.get("ignored", {}).items():
        console.print(f"{name} is not simulated: {instead}", highlight=False, markup=False)


def _not_simulated(report: Report, console: Console) -> None:
    """Prints names alone in a summary; the report (`phantora analyze`) says what happens instead."""
    extra = report.metadata.get("extra", {})
    names = [name for part in ("environment", "nccl") for name in extra.get(part, {}).get("ignored", {})]
    if names:
        console.print(f"[bold]ENV[/bold]       not simulated: {', '.join(names)} (phantora analyze)", highlight=False)


def _findings(report: Report, console: Console) -> None:
    assert report.details is not None
    if report.details.findings:
        console.print("\n[bold]Findings[/bold]")
    for line in report.details.findings:
        console.print(f"- {line}", highlight=False, markup=False)


def _phases(report: Report, console: Console) -> None:
    """The phases of a reinforcement-learning loop, by role."""
    if not report.phases:
        return
    table = text_table("\nPhases, after the first step", "role", "ranks", "phase", "time", "share", "GPU idle", left=3)
    for role in report.phases:
        table.add_row(
            role.name, ranges(tuple(role.ranks)), "all", duration(role.time), "100.0%", percent(role.idle, role.time)
        )
        for row in role.phases:
            table.add_row(
                "", "", row.phase, duration(row.time), percent(row.time, role.time), percent(row.idle, row.time)
            )
    console.print(table)


_NAME, _NAME_IN_FILE = 44, 80  # characters of a kernel's name
_WIDEST = 400  # columns of a terminal


def render_summary(report: Report, console: Console) -> None:
    """Prints the lines that end a run (``summary.py``), without its failure, which the end of a run names."""
    console.print(f"[bold]{report.path}[/bold]  {who(report)}", highlight=False)
    assumptions = relevant(report.assumptions, report.headline.step_time, host_effect(report))
    decide, others = (assumed([a for a in assumptions if (a.rank == 0) == first]) for first in (True, False))
    _assumed(decide, console)
    _not_simulated(report, console)
    _races(report, console)
    said = [line for line in lines(report) if line[0] != "FAILED"]
    for word, text in said:
        console.print(f"[bold]{word:8}[/bold]  {text}", highlight=False)
    if any(word == "STEP" for word, _ in said):  # else no step depends on them
        _assumed(others, console)
        for entry in report.unmeasured:
            if entry.decides:
                console.print(_unknown(entry), highlight=False)
    if remedy := what_would_fit(report):
        console.print(f"[bold]NEXT[/bold]      {escape(remedy)}", highlight=False)


def _assumed(texts: Sequence[str], console: Console) -> None:
    for text in texts:
        console.print(f"[bold]ASSUMED[/bold]   {escape(text)}", highlight=False)


def _headline(report: Report, console: Console) -> None:
    """The numbers to read first."""
    h = report.headline
    many = h.steps > 1
    if report.step_source == "run":
        step = rounded(h.step_time, h.error)
        parts = [f"[bold]{step}[/bold] from first to last: no steps were found in this run"]
    else:
        of = f"mean of {h.steps} steady steps" if many else "one steady step"
        if not h.steps:
            of = "with start-up: no step is steady"
        if report.may_be_layers:
            of = STEPS_OR_LAYERS
        if not h.settled:
            of = "settled, by the power model: the run ends before"
        a_step = "" if h.widest in (DATA, CPU_WORK) else " a step"
        parts = [f"[bold]{step_of(h)}[/bold]{a_step}, {of if h.waits is None else host_bound(report)}"]
    if h.short:
        parts.append(f"slower at the power cap: let the script run {duration(h.short)} more of steps")
    if h.mfu is not None:
        basis = report.mfu
        of = f" of {peak_name(basis.dtype)}'s {basis.peak / 1e12:.0f} TFLOP/s" if basis is not None else ""
        parts.append(f"MFU [bold]{100 * h.mfu:.1f}%[/bold]{of}")
        if h.hfu is not None and h.hfu > h.mfu:
            parts.append(f"HFU {100 * h.hfu:.1f}% with recomputed layers")
    parts += [f"[bold]{rate.replace(' ', '[/bold] ', 1)}" for rate in rates(h)]
    console.print(", ".join(parts), highlight=False)
    if why := wide_range(report):
        console.print(f"Range: {why}", highlight=False, markup=False)
    if other := other_mfu(report):
        console.print(f"MFU: {other}", highlight=False, markup=False)
    drawn = energy(report)
    if drawn:
        console.print(f"Energy: {drawn.replace('   ', ', ')}", highlight=False, markup=False)
    _hosts(report, console)
    if h.uneven is not None:
        text = (
            "Folded: each rank has a part of its own of the optimizer; the last process comes "
            f"{duration(h.uneven)} of a step ({percent(h.uneven, h.step_time)}) after the one before it, and a rank "
            "that is none may come as much later still"
        )
        console.print(text, highlight=False, markup=False)
    if h.apart:
        text = "; ".join(f"{note}: {ranges(tuple(numbers))}" for note, numbers in h.apart.items())
        mean = f"; mean with all recurring work: {duration(h.mean)}" if h.mean > h.step_time else ""
        console.print(f"Excluded steps: {text}{mean}", highlight=False, markup=False)


def _unit(report: Report) -> str:
    return "the run" if report.step_source == "run" else "the step"


def _host_operators(report: Report, console: Console) -> None:
    """All that a log without work of a GPU shows."""
    console.print(f"Step: {no_kernels(report)}", highlight=False, markup=False)
    if report.metadata["host_mode"] != REAL or not report.host_operators:
        return
    timed = report.host_operators[0].time is not None
    table = text_table("\nOperators of the host", "operator", "calls", *(["time"] if timed else []))
    for row in report.host_operators[:_MOST_OPERATORS]:
        name = cut(f"{row.name.removeprefix('aten::')}({row.shape})", 70)
        table.add_row(escape(name), f"{row.count:,}", *([] if row.time is None else [duration(row.time)]))
    console.print(table)


def _hosts(report: Report, console: Console) -> None:
    """Prints the dependence of the step on the host's CPU."""
    h = report.headline
    parts = [f"the GPU waits for it {percent(report.steady.host, report.steady.time)} of {_unit(report)}"]
    why = report.trailer.get("host_sensitivity", {}).get("skipped")
    if h.hosts is not None:
        slower, faster = (rounded(ns, h.error) for ns in (h.hosts.slower, h.hosts.faster))
        if slower == faster:
            parts.append("a host 1.5 times slower or faster changes nothing")
        else:
            parts.append(f"{slower} a step on a host 1.5 times slower, {faster} on one 1.5 times faster")
        parts.append(f"single steps of a real run spread by ±{100 * h.hosts.jitter(h.step_time):.1f}%")
        if h.hosts.high > 1.02 * h.step_time and not h.hosts.measured:
            parts.append(
                f"on measured hosts: {rounded(h.hosts.low, h.error)} to {rounded(h.hosts.high, h.error)} "
                "(`phantora profile host` measures one)"
            )
    elif why:
        parts.append(f"other hosts were not tried: {why}")
    console.print("Host: " + "; ".join(parts), highlight=False, markup=False)


def _workspaces(report: Report, console: Console) -> None:
    """The source of the workspaces of convolutions, unless measured on this GPU."""
    known = report.metadata.get("extra", {}).get("workspaces")
    if known is None or known["own"] or "convolution" not in report.by_class:
        return
    source = f"another GPU's ({known['table']})" if known["table"] else "a rule (docs/costs.md)"
    text = f"Memory: convolutions take workspaces by {source}, as there is no table of this GPU"
    console.print(f"{text}; `phantora profile` measures one", highlight=False, markup=False)


def _details(report: Report, details: Details, console: Console) -> None:
    _delays(report, console)
    _losses(report, console)
    _exposure(report, console)
    _collectives(report, details, console)
    _links(report, details, console)
    paths = sorted(details.critical_paths, key=lambda path: path.time)
    shown = next((path for path in paths if path.gain is not None), paths[len(paths) // 2] if paths else None)
    if shown is not None:
        _path(shown, report, console)
    for title, rows in (("Kernels", details.kernels), ("Operators", details.operators), ("Modules", details.modules)):
        _work(title, rows, report, console)
    _memory(details, console)


def _delays(report: Report, console: Console) -> None:
    if not report.delays:
        return
    table = text_table("\nTime without compute, per step", "cause", "time", "share", "what it is")
    table.columns[-1].justify, table.columns[-1].no_wrap = "left", False
    whole = report.steady.time
    for delay in report.delays:
        table.add_row(cut(delay.name, 30), duration(delay.time), percent(delay.time, whole), CAUSES[delay.cause])
        if delay.cause == "host":
            for wait in named_waits(report):
                name = f"  in {cut(short_wait(wait.name), 25)}"
                table.add_row(name, duration(wait.time), percent(wait.time, whole), "this runs meanwhile")
    console.print(table)


def _losses(report: Report, console: Console) -> None:
    """The rows of LOST."""
    if not report.losses:
        return
    table = text_table("\nLoss of MFU by kernels, as shares of the peak", "class", "share", "why")
    table.columns[-1].justify, table.columns[-1].no_wrap = "left", False
    for loss in report.losses[:_MOST_ROWS]:
        table.add_row(loss.name, f"{100 * loss.share:.1f}%", _why_lost(loss))
    console.print(table)


def _why_lost(loss: Loss) -> str:
    if loss.name == RECOMPUTED_LAYERS:
        return "computed again"
    if loss.flops:
        return "below peak" if loss.share >= 0 else "above this peak, by a faster format"
    return "flops unknown" if loss.name in PRODUCTS else "no flops"


def _exposure(report: Report, console: Console) -> None:
    if not report.exposure:
        return
    table = text_table(
        "\nExposed communication, per rank and step",
        "collective",
        "of",
        "awaited by",
        "exposed",
        "late rank",
        "share",
        left=3,
    )
    for e in report.exposure[:_MOST_ROWS]:
        table.add_row(
            collective_kind(e.collective)[:14],
            cut(e.group, 22),
            cut(e.waited_by or "-", 20),
            duration(e.exposed),
            duration(e.late_rank),
            percent(e.exposed, report.steady.time),
        )
    console.print(table)


def _collectives(report: Report, details: Details, console: Console) -> None:
    if not details.collectives:
        return
    table = text_table(
        "\nCollectives (calls per rank and step; mean of a call)",
        "collective",
        "of",
        "calls",
        "size",
        "wait",
        "transfer",
        "bus",
        "last",
        left=2,
    )
    for c in details.collectives[:_MOST_ROWS]:
        table.add_row(
            collective_kind(c.name)[:14],
            cut(c.group, 22),
            f"{c.count / _each(report):.4g}",
            size(c.bytes),
            duration(c.wait),
            duration(c.transfer),
            rate(c.bus_bandwidth),
            f"{c.last}" if c.last >= 0 else "-",
        )
    console.print(table)


def _links(report: Report, details: Details, console: Console) -> None:
    """Equal links (of every host, every GPU) are one line: a cluster has thousands."""
    identical: dict[tuple[str, float], list[LinkReport]] = {}
    for link in details.links:
        identical.setdefault((re.sub(r"\d+", "*", link.name), link.bandwidth), []).append(link)
    if not identical:
        return
    table = text_table(
        "\nLinks, per step", "links", "number", "bandwidth", "bytes of one", "busy", "used", "most used", "peak"
    )
    for (name, bandwidth), links in list(identical.items())[:_MOST_ROWS]:
        number, most = len(links), links[0]
        table.add_row(
            cut(name, 24),
            str(number),
            rate(bandwidth),
            size(sum(link.bytes for link in links) / number),
            percent(sum(link.busy for link in links) / number, report.steady.time),
            percent(sum(link.utilisation for link in links), number),
            f"{percent(most.utilisation, 1)} {cut(most.name, 16)}",
            percent(most.peak, 1),
        )
    console.print(table)


def _path(path: CriticalPath, report: Report, console: Console) -> None:
    waits = " (it waits for the host)" if path.step in host_bound_steps(report) else ""
    text = (
        f"[bold]Critical path of step {path.step}[/bold]{waits}: {duration(path.length)}, ends on rank {path.end_rank}"
    )
    console.print(f"\n{text}", highlight=False)
    table = text_table("", "class", "on the path", "share", "gain if free")
    gain = path.gain or {}
    if path.gain is None:
        console.print(f"(gains take long here: ask for them with --steps {path.step})", style="dim")
    for cls, time in list(path.by_class.items())[:12]:
        table.add_row(cls, duration(time), percent(time, path.length), duration(gain[cls]) if cls in gain else "-")
    console.print(table)


_SOURCE = {"interpolated": "interp."}


def _short(ns: float) -> str:
    """A time in three digits, for tables with many columns."""
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= scale:
            return f"{ns / scale:.3g} {unit}" if ns < 999.5 * scale else f"{ns / scale:.0f} {unit}"
    return f"{ns:.0f} ns"


def _each(report: Report) -> int:
    """Number of steps of ranks in the sums of a report."""
    return max(1, report.headline.steps * len(report.ranks))


def _work(title: str, rows: Sequence[Work], report: Report, console: Console) -> None:
    shown = [row for row in rows if row.name != "(none)"][:_MOST_ROWS]
    if not shown:
        return
    table = text_table(
        f"\n{title}, per rank and step; shares of the device time",
        "name",
        "calls",
        "time",
        "share",
        "min",
        "mean",
        "max",
        "rate",
        "of peak",
        "source",
    )
    each, width = _each(report), _NAME if console.width <= _WIDEST else _NAME_IN_FILE
    for row in shown:
        name = row.name if len(row.name) <= width else short_name(row.name, width)
        achieved, share = achieved_rate(row, report.metadata)
        calls = (row.shortest, row.time / row.count, row.longest) if row.count else ()
        table.add_row(
            name,
            f"{row.count / each:.4g}",
            _short(row.time / each),
            f"{100 * row.share:.1f}%",
            *([_short(call) for call in calls] or ["-"] * 3),
            achieved,
            share,
            _SOURCE.get(row.provenance, row.provenance),
        )
    console.print(table)


def _memory(details: Details, console: Console) -> None:
    """Use of memory on the fullest rank, its largest blocks, and its modules."""
    if not details.memory:
        return
    fullest = sorted(details.memory, key=lambda m: (-m.peak_allocated, m.rank))[0]
    when = "at the peak"
    if details.fit is not None and not details.fit.fits:
        fullest = next(m for m in details.memory if m.rank == details.fit.rank)
        when = "when the allocation failed"
    text = ", ".join(f"{name} {size(value)}" for name, value in fullest.by_category.items())
    where = f" in step {fullest.peak_step}" if fullest.peak_step is not None else ""
    console.print(f"\n[bold]Memory {when}[/bold], rank {fullest.rank}{where}: {text}", highlight=False)
    if fullest.lowest_peak < fullest.highest_peak:
        between = f"{size(fullest.lowest_peak)} to {size(fullest.highest_peak)}"
        console.print(f"The peak is {between}: NCCL's watchdog releases buffers 0 to 100 ms after their use")
    if fullest.retries:
        console.print(f"Allocator retries: {fullest.retries} (it freed its cache to meet an allocation)")
    if details.fit is not None and details.fit.fits:
        console.print(" ".join(details.fit.says), highlight=False, markup=False)
    if fullest.largest:
        console.print(_blocks(fullest.largest, when))
    if fullest.by_module:
        modules = text_table("", "module", f"bytes {when}")
        for name, taken in list(fullest.by_module.items())[:_MOST_ROWS]:
            modules.add_row(escape(name or "outside of modules"), size(taken))
        console.print(modules)


def _blocks(largest: Sequence[MemoryBlock], when: str) -> Table:
    """A row per block, with its place in the program if the log has one."""
    placed = any(block.site or block.module for block in largest)
    made_at, width = (["made at"], 32) if placed else ([], 58)
    table = text_table("", f"largest blocks {when}", *made_at, "hold", "blocks", "bytes", left=2 + placed)
    for block in largest[:_MOST_ROWS]:
        made = f"{block.operator.removeprefix('aten::')}({block.shape})" if block.operator else "outside of operators"
        place = [escape(_made_at(block, 26))] if placed else []
        table.add_row(escape(cut(made, width)), *place, block.category, str(block.count), size(block.bytes))
    return table


def _made_at(block: MemoryBlock, width: int) -> str:
    """File and line, and as much of the module's end as there is room for."""
    site = block.site if len(block.site) <= width else f"…{block.site[1 - width :]}"
    room = width - len(site) - 1 if site else width
    module = block.module if len(block.module) <= room else f"…{block.module[1 - room :]}" if room > 7 else ""
    return " ".join(part for part in (site, module) if part) or "-"


def _out_of_memory(report: Report, console: Console) -> bool:
    """A run that did not fit begins with it; memory has a section of its own. False of a run that did."""
    fit = report.details.fit if report.details is not None else None
    if fit is None or fit.fits:
        return False
    if not (report.failure and fit.failed):  # else the failure is the verdict
        console.print(f"\n[bold red]{fit.says[0]}[/bold red]", highlight=False)
    if fit.advice:
        console.print(fit.advice, highlight=False, markup=False)
    return True


def _shares(report: Report, console: Console) -> None:
    for title, shares in (
        ("Where the numbers come from", report.by_provenance),
        (f"Device time by class of operator{_within(report)}", report.by_class),
    ):
        text = ", ".join(f"{name} {100 * share:.1f}%" for name, share in shares.items())
        console.print(f"\n[bold]{title}[/bold]: {text or '-'}", highlight=False)


def _within(report: Report) -> str:
    """A word where kernels that are named products belong to operators of another class."""
    kernels = report.details.kernels if report.details is not None else []
    others = sorted({row.cls for row in kernels if "gemm" in row.name.lower() and row.cls not in ("gemm", "unknown")})
    return f" (gemm kernels of a {others[0]} count as {others[0]})" if others else ""


def _unmeasured(report: Report, console: Console) -> None:
    if not report.unmeasured:
        return
    title = "\nCostliest unmeasured operators, per rank and step (`--missing FILE` lists all)"
    table = text_table(title, "operator", "source", "±", "time", "share", left=2)
    for entry in report.unmeasured:
        table.add_row(
            escape(cut(f"{entry.operator.removeprefix('aten::')}({entry.shape})", 58)),
            entry.provenance,
            "?" if entry.error is None else f"{100 * entry.error:.0f}%",
            duration(entry.time / _each(report)),
            f"{100 * entry.share:.1f}%",
        )
    console.print(table)
    for entry in report.unmeasured:
        if entry.decides:
            console.print(_unknown(entry), highlight=False)


def _unknown(entry: UnmeasuredOperator) -> str:
    """Text for an operator with a large share of a step and little known about it."""
    bar = "" if entry.error is None else f" (± {100 * entry.error:.0f} %)"
    if entry.error is not None and entry.error > 1.0:
        bar = f" (it may take {1.0 + entry.error:.1f} times as long)"
    return (
        f"[bold]UNKNOWN[/bold]   {100 * entry.share:.0f} % of kernel time is {escape(cut(entry.operator, 60))}, of "
        f"which little is known{bar}; docs/costs.md, Unknown operators"
    )


def _assumptions(report: Report, console: Console) -> None:
    found = relevant(report.assumptions, report.headline.step_time, host_effect(report))
    if not found:
        return
    shown = found[:MOST_ASSUMPTIONS]
    more = len(found) - len(shown)
    decide = "Unknown values decide the work" if found[0].rank == 0 else "Unknown values"
    console.print(f"[bold]{decide}[/bold] (docs/values.md; `--assume` changes it); assumed:")
    for item in shown:
        times = f"{item.times} time{'s' * (item.times > 1)}"
        console.print(f"  {item.shown}, {times}{item.option}", highlight=False, markup=False)
    if more:
        console.print(f"  and {more} more", highlight=False)


def _races(report: Report, console: Console) -> None:
    for race in report.races[:MOST_ASSUMPTIONS]:
        where = f" ({race.ranks} ranks)" if race.ranks > 1 else ""
        console.print(f"[bold]RACE[/bold]      {escape(race.what)}{where}", highlight=False)
    if len(report.races) > MOST_ASSUMPTIONS:
        console.print(f"          and {len(report.races) - MOST_ASSUMPTIONS} more races", highlight=False)


def _cost(report: Report, console: Console) -> None:
    numbers = {k: v for k, v in report.trailer.items() if isinstance(v, int | float) and k != "rows"}
    if numbers:
        text = ", ".join(f"{k} {v:,}" if isinstance(v, int) else f"{k} {v:.4g}" for k, v in numbers.items())
        console.print(f"\n[bold]The simulation itself[/bold]: {text}", highlight=False)
