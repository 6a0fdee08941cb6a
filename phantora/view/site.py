"""The served runs and what pages ask of them: rows, tables of a part, simulations, timelines.

A log of millions of rows takes a minute to read. A site is served before that, and its pages say how far it is.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from functools import cached_property
from typing import IO, Any

import orjson

from phantora.errors import PhantoraError
from phantora.json_data import encode
from phantora.trace.analysis.analyze import Filters, analyze
from phantora.trace.analysis.report import Report
from phantora.trace.diff.compare import Difference
from phantora.trace.export.selection import Selection
from phantora.trace.reader import Log
from phantora.view import perfetto_ui
from phantora.view.remembered import remember, remembered
from phantora.view.rows import step_rows
from phantora.view.what_if import Simulations, outcome, parse_change

_PART = ("kernels", "operators", "classes", "modules", "collectives", "links")
"""Tables of a report's details that follow the chosen rank and step."""


@dataclass
class Run:
    """A log and its report."""

    log: Log
    report: Report
    simulations: Simulations | None = None
    """None: the log contains no recording."""


@dataclass
class Reading:
    """The reading of a site's logs, in a thread of its own."""

    logs: dict[str, Log]
    """By the name of the run."""
    read: Callable[[Reading], tuple[dict[str, Run], Difference | None]]
    _: KW_ONLY
    failed: Callable[[], None] = lambda: None
    """Called after an error that nobody waits for any more."""
    done: float = 0.0
    """Share of the logs, from 0 to 1."""
    error: BaseException | None = None
    _read: int = 0

    def facts(self) -> list[str]:
        """``run.arrow: 8x8xH100, 64 ranks, 9,000,000 rows`` of each log."""
        metas = ((log, log.metadata) for log in self.logs.values())
        return [
            f"{log.shown}: {meta.cluster or meta.gpu}, {meta.world_size:,} ranks, {log.num_rows:,} rows"
            for log, meta in metas
        ]

    def verdicts(self) -> list[list[tuple[str, str]]]:
        """What is known of each log from its last reading."""
        return [remembered(log.path) for log in self.logs.values()]

    @contextmanager
    def watched(self, _: str) -> Iterator[Callable[[int, int], None]]:
        """A context in which one log is read; gives what to call with the parts done and all parts."""

        def progress(done: int, of: int) -> None:
            self.done = (self._read + done / max(1, of)) / len(self.logs)

        yield progress
        self._read += 1


@dataclass
class Site:
    """The served runs and pages."""

    runs: dict[str, Run] = field(default_factory=dict)
    """Runs by ``a`` and, if there are two, ``b``; empty while they are read."""
    difference: Difference | None = None
    chosen: Filters = field(default_factory=Filters)
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    reading: Reading | None = None

    def __post_init__(self) -> None:
        self._reading = threading.Lock()  # a Log has one position in its file
        self._traces: dict[str, IO[bytes]] = {}
        self._parts: dict[tuple[str, int | None, int | None], bytes] = {}

    @cached_property
    def ui(self) -> dict[str, Any]:
        """Files of Perfetto's UI."""
        return perfetto_ui.ui_files()

    @property
    def two(self) -> bool:
        """The site compares two runs."""
        return len(self.runs if self.reading is None else self.reading.logs) > 1

    def start(self, patience: float | None) -> None:
        """Begins to read and waits for `patience` seconds, in which short logs are read; None: to the end.

        Raises PhantoraError."""
        thread = threading.Thread(target=self._read, daemon=True, name="reading")
        thread.start()
        thread.join(patience)
        self.check()

    def check(self) -> None:
        """Raises the error that ended the reading, if one did."""
        if self.reading is not None and self.reading.error is not None:
            raise self.reading.error

    def _read(self) -> None:
        reading = self.reading
        assert reading is not None
        try:
            runs, self.difference = reading.read(reading)
            self.runs = runs  # at last: pages look at it
            if self.chosen == Filters():
                for run in runs.values():
                    remember(run.log.path, run.report)
        except BaseException as error:  # the terminal's thread raises it
            reading.error = error
            reading.failed()

    def offers(self, run: str) -> dict[str, Any]:
        """Links that a page may have."""
        own, simulations = self.runs[run], self.runs[run].simulations
        return {
            "run": run,
            "runs": {name: other.log.shown for name, other in self.runs.items()},
            "ui": bool(self.ui),
            "missing": perfetto_ui.MISSING,
            "typical": {name: _typical(other.report) for name, other in self.runs.items()},
            "steps": {name: [step.number for step in other.report.steps] for name, other in self.runs.items()},
            "what_if": simulations.gpus if simulations else None,
            "recorded": asdict(outcome(own.report, simulations.price)) if simulations else None,
        }

    def rows(self, run: str, step: int, ranks: Collection[int] = ()) -> bytes:
        """Rows of a step as an Arrow stream: of some ranks, or of all."""
        with self._reading:
            return step_rows(self.runs[run].log, self.runs[run].report, step, ranks)

    def part(self, run: str, rank: int | None, step: int | None) -> bytes:
        """The tables of a rank, of a step, or of both, as JSON. Raises PhantoraError."""
        key = run, rank, step
        with self._reading:
            if key not in self._parts:
                chosen = self.chosen
                chosen = chosen if rank is None else replace(chosen, ranks=frozenset([rank]))
                chosen = chosen if step is None else replace(chosen, steps=frozenset([step]))
                self._parts[key] = _tables(analyze(self.runs[run].log, chosen, paths=False))
            return self._parts[key]

    def what_if(self, run: str, query: dict[str, str]) -> bytes:
        """Step, memory and cost after the change that `query` asks for, as JSON."""
        simulations = self.runs[run].simulations
        if simulations is None:
            raise PhantoraError("the log contains no recording: run phantora trace without --no-recording")
        with self._reading:
            report = simulations.simulate(parse_change(query))
            return orjson.dumps(asdict(outcome(report, simulations.price)))

    def trace(self, run: str) -> IO[bytes]:
        """The run as a Perfetto trace, made when it is first asked for."""
        with self._reading:
            if run not in self._traces:
                selection = Selection(ranks=self.chosen.ranks, steps=self.chosen.steps)
                self._traces[run] = perfetto_ui.trace_file(self.runs[run].log, selection)
            return self._traces[run]

    def close(self) -> None:
        """Deletes the timelines that were written for the browser."""
        for trace in self._traces.values():
            trace.close()


def _tables(report: Report) -> bytes:
    """What the page's tables need of a report."""
    data = encode(report, units=False)
    names = ("headline", "steady", "by_class", "by_provenance", "unmeasured", "exposure")
    found = {name: data[name] for name in names}
    found["ranks"] = [rank.rank for rank in report.ranks]
    found["details"] = {name: data["details"][name] for name in _PART}
    return orjson.dumps(found, option=orjson.OPT_NON_STR_KEYS)


def _typical(report: Report) -> dict[str, int]:
    """The steady step of median time, or of about the mean where many wait for the host: its number, and from when to
    when it lasts (ns)."""
    steady = [step for step in report.steps if not step.note] or report.steps
    step = sorted(steady, key=lambda s: (s.times.time, s.number))[(len(steady) - 1) // 2]
    if report.headline.waits is not None:
        step = min(steady, key=lambda s: (abs(s.times.time - report.steady.time), s.number))
    own = [s for rank in report.ranks for s in rank.steps if s.number == step.number]
    return {"number": step.number, "start": min(s.start for s in own), "end": max(s.end for s in own)}
