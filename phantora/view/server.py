"""Serves the pages of one run, or of two and their difference, to a browser on this machine.

Only the paths of a fixed table are served; none of them is looked up on the disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

import orjson

from phantora.errors import PhantoraError
from phantora.trace.analysis.report import to_json
from phantora.trace.diff.compare import Difference
from phantora.trace.diff.compare import to_json as difference_json
from phantora.view import pages
from phantora.view.equal_ranks import equal_ranks
from phantora.view.local import TYPES, LocalHandler, LocalServer
from phantora.view.site import Site

_MOST_DIGITS = 9  # of a number in a query
_UI = "/perfetto/ui/"
_BINARY = "application/octet-stream"
_ARROW = "application/vnd.apache.arrow.stream"
_UI_POLICY = (
    "default-src 'self' data: blob:; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; frame-ancestors 'self'"
)


class Server(LocalServer):
    """Gives a site's pages."""

    def __init__(self, site: Site, port: int = 0) -> None:
        """Listens at once. Raises PhantoraError when the port is taken."""
        self.site = site
        super().__init__(site.token, _Handler, port)

    @property
    def first_page(self) -> str:
        """Address to open: of two runs the difference, else the report."""
        return self.address("/diff" if self.site.two else "/")


class _Handler(LocalHandler):
    server: Server

    def answer(self, path: str, query: dict[str, str]) -> None:
        run, site = query.get("run", "a"), self.server.site
        if not site.runs and site.reading is not None:
            return self._wait(path)
        if run not in site.runs:
            return self.refuse(HTTPStatus.NOT_FOUND, "no such run")
        found = _PATHS.get(path)
        if found is not None:
            found(self, run, query)
        elif path.startswith(_UI):
            self._ui_file(path.removeprefix(_UI))
        else:
            self.refuse(HTTPStatus.NOT_FOUND, "no such page")

    def _wait(self, path: str) -> None:
        """The answer while the logs are read."""
        reading = self.server.site.reading
        assert reading is not None
        if path == "/state.json":
            state = {"done": reading.done, "error": str(reading.error or "")}
            self.send(orjson.dumps(state), TYPES[".json"])
        elif path in ("/", "/diff"):
            self.page(pages.reading_page(reading.facts(), reading.verdicts()))
        else:
            self.refuse(HTTPStatus.SERVICE_UNAVAILABLE, "the log is still read")

    # ------------------------------------------------------------------ paths

    def _state(self, run: str, query: dict[str, str]) -> None:
        self.send(orjson.dumps({"done": 1.0, "error": "", "ready": True}), TYPES[".json"])

    def _report(self, run: str, query: dict[str, str]) -> None:
        site = self.server.site
        self.page(pages.report_page(site.runs[run].report, site.offers(run)))

    def _report_json(self, run: str, query: dict[str, str]) -> None:
        self.send(to_json(self.server.site.runs[run].report).encode(), TYPES[".json"])

    def _diff(self, run: str, query: dict[str, str]) -> None:
        self.page(pages.diff_page(self._difference(), self.server.site.offers(run)))

    def _diff_json(self, run: str, query: dict[str, str]) -> None:
        self.send(difference_json(self._difference()).encode(), TYPES[".json"])

    def _difference(self) -> Difference:
        if self.server.site.difference is None:
            raise PhantoraError("one run is open; give phantora view two logs to compare them")
        return self.server.site.difference

    def _rows(self, run: str, query: dict[str, str]) -> None:
        step, ranks = _number(query, "step"), query.get("ranks", "")
        if step is None:
            raise PhantoraError("say which step: step=2")
        own = [_number({"ranks": rank}, "ranks") for rank in ranks.split(",")] if ranks else []
        self.send(self.server.site.rows(run, step, {rank for rank in own if rank is not None}), _ARROW)

    def _part(self, run: str, query: dict[str, str]) -> None:
        rank, step = _number(query, "rank"), _number(query, "step")
        self.send(self.server.site.part(run, rank, step), TYPES[".json"])

    def _equal_ranks(self, run: str, query: dict[str, str]) -> None:
        step = _number(query, "step")
        if step is None:
            raise PhantoraError("say which step: step=2")
        self.send(orjson.dumps(equal_ranks(self.server.site.runs[run].report, step)), TYPES[".json"])

    def _what_if(self, run: str, query: dict[str, str]) -> None:
        self.send(self.server.site.what_if(run, query), TYPES[".json"])

    def _arrow(self, run: str, query: dict[str, str]) -> None:
        self.send((pages.viewers() / "arrow.js").read_bytes(), TYPES[".js"])

    def _perfetto(self, run: str, query: dict[str, str]) -> None:
        site = self.server.site
        self.page(pages.perfetto_page(Path(site.runs[run].log.shown).name, site.offers(run)))

    def _trace(self, run: str, query: dict[str, str]) -> None:
        trace = self.server.site.trace(run)
        length = os.fstat(trace.fileno()).st_size
        self.head(HTTPStatus.OK, _BINARY, length)
        for offset in range(0, length, 1 << 20):
            self.wfile.write(os.pread(trace.fileno(), 1 << 20, offset))

    def _ui_file(self, name: str) -> None:
        path = self.server.site.ui.get(name or "index.html")
        if path is None:
            raise PhantoraError("no such file")
        self.send(path.read_bytes(), TYPES.get(path.suffix, _BINARY), _UI_POLICY)


def _number(query: dict[str, str], name: str) -> int | None:
    """None if the query does not have it. Raises PhantoraError."""
    text = query.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > _MOST_DIGITS:
        raise PhantoraError(f"{name}: a number, as {name}=2")
    return int(text)


_PATHS: dict[str, Callable[[_Handler, str, dict[str, str]], None]] = {
    "/": _Handler._report,
    "/report.json": _Handler._report_json,
    "/diff": _Handler._diff,
    "/diff.json": _Handler._diff_json,
    "/state.json": _Handler._state,
    "/rows.arrow": _Handler._rows,
    "/part.json": _Handler._part,
    "/equal-ranks.json": _Handler._equal_ranks,
    "/what-if.json": _Handler._what_if,
    "/arrow.js": _Handler._arrow,
    "/perfetto": _Handler._perfetto,
    "/run.perfetto": _Handler._trace,
}
