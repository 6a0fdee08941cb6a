"""Assembles pages of ``viewers/`` and data into one self-contained file each."""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.util
import os
import re
import shlex
from pathlib import Path
from typing import Any

import orjson

from phantora.errors import PhantoraError, cause_of
from phantora.json_data import encode
from phantora.outputs import open_output
from phantora.trace.analysis import summary
from phantora.trace.analysis.analyze import steps_of_mean
from phantora.trace.analysis.assumptions import assumed, relevant
from phantora.trace.analysis.report import CAUSES, Report
from phantora.trace.analysis.why import answer
from phantora.trace.diff.compare import SETTINGS, Difference
from phantora.trace.diff.render import headline

_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)
_PART = re.compile(r"/\*\{\{([\w.]+)\}\}\*/|<!--\{\{([\w.]+)((?: \w+=\"[^\"]*\")*)\}\}-->")
_VALUE = re.compile(r' (\w+)="([^"]*)"')


def viewers() -> Path:
    """Folder of the pages' sources: in the wheel, or in the checkout."""
    spec = importlib.util.find_spec("phantora._viewers")
    found = list(spec.submodule_search_locations or ()) if spec else []
    for folder in (*map(Path, found), Path(__file__).parents[2] / "viewers"):
        if (folder / "report.html").is_file():
            return folder
    raise PhantoraError("the pages are missing from this installation; install Phantora again")


def report_page(report: Report, served: dict[str, Any] | None = None) -> str:
    """The report as a page. `served`: what the server behind it offers; None: there is none.

    Of the critical paths' segments it contains the number only: they outweigh all else."""
    data = encode(report, units=False)
    for path in data["details"]["critical_paths"]:
        path["segments"] = len(path["segments"])
    verdict = [*summary.lines(report), ("NEXT", _next(report))]
    values = assumed(relevant(report.assumptions, report.headline.step_time, summary.host_effect(report)))
    more = {
        "causes": CAUSES,
        "verdict": verdict,
        "assumed": values,
        "mean": sorted(steps_of_mean(report)),
        "served": served,
    }
    return assemble("report.html", report.path, {"report": data, **more})


def _next(report: Report) -> str:
    """What makes a run fit, or the largest stall smaller."""
    fit = report.details.fit if report.details is not None else None
    if fit is not None and not fit.fits:
        return (
            summary.what_would_fit(report) or f"phantora analyze {shlex.quote(report.path)} shows what takes the memory"
        )
    if report.failure:
        return "end the failure first: the numbers are of what ran until then"
    return dict(answer(report))["NEXT"]


def diff_page(difference: Difference, served: dict[str, Any] | None = None) -> str:
    """The page of a comparison; `served`: what else a local server offers."""
    data = {
        "difference": encode(difference, units=False),
        "headline": headline(difference),
        "settings": sorted(SETTINGS),
        "served": served,
    }
    return assemble("diff.html", f"{difference.path_a} and {difference.path_b}", data)


def reading_page(logs: list[str], verdicts: list[list[tuple[str, str]]]) -> str:
    """The page that is shown until `logs` are read, with the verdicts of those that were read before."""
    return assemble("reading.html", "phantora view", {"logs": logs, "verdicts": verdicts})


def perfetto_page(title: str, served: dict[str, Any]) -> str:
    """Perfetto's UI in a frame, with the run handed over; or what to install."""
    return assemble("perfetto.html", title, {"title": title, "served": served})


def write_page(path: str, text: str) -> None:
    """Raises PhantoraError if the file cannot be written."""
    try:
        with os.fdopen(open_output(path), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise PhantoraError(f"{path}: cannot write the page: {cause_of(error)}; name another path") from error


def assemble(name: str, title: str, data: dict[str, Any]) -> str:
    """The page `name` of ``viewers/`` with `data`."""
    text = _read(viewers(), name)
    # `<` would end the script element that contains the data.
    packed = orjson.dumps(data, option=orjson.OPT_NON_STR_KEYS).decode().replace("<", "\\u003c")
    scripts = script_sources(text)  # before anything of the run is in it
    text = text.replace("{{scripts}}", scripts).replace("{{title}}", html.escape(title))
    return text.replace("{{data}}", packed)


def script_sources(page: str) -> str:
    """Script sources of a policy: the scripts of `page` by their checksums, and those that the server gives. Nothing
    else that a log brings into the page runs."""
    own = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in _SCRIPT.findall(page))
    return " ".join(["'self'", *(f"'sha256-{checksum}'" for checksum in own)])


def _read(folder: Path, name: str) -> str:
    """The file with the parts that it names. A part given as ``timeline.html prefix="a-"`` contains ``a-`` for its
    ``{{prefix}}``."""

    def filled(part: re.Match[str]) -> str:
        text = _read(folder, part[1] or part[2])
        for word, value in _VALUE.findall(part[3] or ""):
            text = text.replace(f"{{{{{word}}}}}", value)
        return text

    return _PART.sub(filled, (folder / name).read_text(encoding="utf-8"))
