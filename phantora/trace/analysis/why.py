"""``phantora why`` of a log: the cause of a slow step, its place in the timeline and the next experiment."""

from __future__ import annotations

from phantora.trace.analysis.findings import of_time
from phantora.trace.analysis.report import Report
from phantora.trace.analysis.summary import lines
from phantora.trace.analysis.units import duration

_SHOWN = ("STEP", "HELD UP", "LOST")
_DECIDES = 0.05  # of a step, from where a stall is worth an experiment of its own


def answer(report: Report) -> list[tuple[str, str]]:
    """At most five lines, a word and its text each."""
    summary = dict(lines(report))
    found = [(word, summary[word]) for word in _SHOWN if word in summary]
    if summary.get("FITS", "").startswith("no"):
        found.insert(0, ("FITS", summary["FITS"]))
    if "GROWS" in summary:  # in place of LOST: the run ends by it
        found = [("GROWS", summary["GROWS"]), *(line for line in found if line[0] != "LOST")]
    findings = report.details.findings if report.details is not None else []
    cause = of_time(findings)
    found += [("WHY", cause)] if cause else []
    return [*found, ("NEXT", f"{_place(report)}{_experiment(report)}")]


def _cause(report: Report) -> str:
    """The cause of the first delay of HELD UP; "" where kernels decide the step."""
    first = report.delays[0] if report.delays else None
    return first.cause if first is not None and first.time >= _DECIDES * report.steady.time else ""


def _place(report: Report) -> str:
    """The rank and step of which the largest stall takes most."""
    cause = _cause(report)
    steps = [
        (step.times.stalls.get(cause, 0.0), rank.rank, step)
        for rank in report.ranks
        for step in rank.steps
        if not step.note
    ]
    if not cause or not steps:
        return ""
    _, rank, step = max(steps, key=lambda item: (item[0], -item[1]))
    return f"see it on rank {rank} in step {step.number}, from {duration(step.start)} on; "


def _is_real(report: Report) -> bool:
    return bool(report.metadata.get("extra", {}).get("imported"))


def _experiment(report: Report) -> str:
    """A command that simulates the run without its largest stall."""
    cause, log = _cause(report), report.path
    if report.metadata.get("extra", {}).get("imported", {}).get("no_replay"):
        return f"phantora analyze {log} lists the kernels and what is open meanwhile; phantora view {log} shows them"
    if cause in ("host", "synchronisation"):
        return f"phantora replay {log} --host-scale 0.5 has half of the host time"
    if cause == "late rank":
        real = "phantora replay {0} --stragglers none has equal ranks; " if _is_real(report) else ""
        return f"{real.format(log)}phantora analyze {log} compares the ranks' work"
    if cause in ("transfer", "pipeline bubble"):
        return f"phantora replay {log} --cluster with faster links, or another layout by phantora sweep"
    return f"the kernels decide: phantora analyze {log} lists them, phantora replay {log} --gpu B200 has another GPU's"
