"""Serves the pages of one run, or of two and their difference, to a browser on this machine.

A log says much about its owner's models, and any web page can make a browser send requests to
127.0.0.1. So every request must carry the token of this start of the server, in the query or in the cookie
that a page with the right query sets; must name this machine as its host (else a foreign name that was
rebound to 127.0.0.1 could read the answers); and, with the cookie, must not come from another site or port.
Only the paths of a fixed table are served; none of them is looked up on the disk.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import orjson

from phantora.errors import PhantoraError, cause_of
from phantora.trace.analysis.report import to_json
from phantora.trace.diff.compare import Difference
from phantora.trace.diff.compare import to_json as difference_json
from phantora.view import pages
from phantora.view.equal_ranks import equal_ranks
from phantora.view.site import Site

ADDRESS = "127.0.0.1"
_NAMES = (ADDRESS, "localhost")
_MOST_FIELDS, _MOST_DIGITS = 16, 9  # of a query; of a number in it
_UI = "/perfetto/ui/"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".wasm": "application/wasm",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
_BINARY = "application/octet-stream"
_ARROW = "application/vnd.apache.arrow.stream"
# Own pages hold all they need but for Arrow's library, which the server has, and run no other script; Perfetto's UI
# makes workers and compiles WebAssembly. Neither may ask the network, so the UI's console tells of a script of its
# makers and of a local trace processor that it may not ask for.
_POLICY = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_NO_SCRIPTS = _POLICY.format(scripts="'none'")
_UI_POLICY = (
    "default-src 'self' data: blob:; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; frame-ancestors 'self'"
)


class Server(ThreadingHTTPServer):
    """Gives a site's pages on the local address; one thread a request."""

    daemon_threads = True

    def __init__(self, site: Site, port: int = 0) -> None:
        """Listens at once. Raises PhantoraError when the port is taken."""
        self.site = site
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            raise PhantoraError(
                f"cannot listen on {ADDRESS}:{port}: {cause_of(error)}; choose another --port, or none"
            ) from error

    @property
    def url(self) -> str:
        """Address of the report, with the token that opens it."""
        return self._address("/")

    @property
    def first_page(self) -> str:
        """Address to open: of two runs the difference, else the report."""
        return self._address("/diff" if self.site.two else "/")

    def _address(self, path: str) -> str:
        return f"http://{ADDRESS}:{self.server_port}{path}?token={self.site.token}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that closed its connection is no error."""


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    server_version = "phantora"
    sys_version = ""
    timeout = 60

    def do_GET(self) -> None:
        try:
            url = urlsplit(self.path)
            query = {name: values[-1] for name, values in parse_qs(url.query, max_num_fields=_MOST_FIELDS).items()}
        except ValueError:
            return self._refuse(HTTPStatus.BAD_REQUEST, "not an address")
        if self.headers.get("Host") not in [f"{name}:{self.server.server_port}" for name in _NAMES]:
            return self._refuse(HTTPStatus.FORBIDDEN, "this server answers on this machine only")
        if not self._may(query):
            return self._refuse(HTTPStatus.FORBIDDEN, "open the address of phantora view: it contains the token")
        run, site = query.get("run", "a"), self.server.site
        if not site.runs and site.reading is not None:
            return self._wait(url.path)
        if run not in site.runs:
            return self._refuse(HTTPStatus.NOT_FOUND, "no such run")
        answer = _PATHS.get(url.path)
        try:
            if answer is not None:
                answer(self, run, query)
            elif url.path.startswith(_UI):
                self._ui_file(url.path.removeprefix(_UI))
            else:
                self._refuse(HTTPStatus.NOT_FOUND, "no such page")
        except PhantoraError as error:
            self._refuse(HTTPStatus.NOT_FOUND, str(error))

    def _may(self, query: dict[str, str]) -> bool:
        if _equal(query.get("token", ""), self.server.site.token):
            return True
        # The cookie goes along with every request of the browser; what other origins ask for does not count.
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return False
        own = [f"http://{name}:{self.server.server_port}" for name in _NAMES]
        if self.headers.get("Origin", own[0]) not in own:  # browsers without the header above send this one
            return False
        # Not SimpleCookie: its time grows with the square of a header that is no cookie.
        sent = (pair.strip().partition("=") for pair in self.headers.get("Cookie", "").split(";"))
        return any(name == self._cookie and _equal(value, self.server.site.token) for name, _, value in sent)

    @property
    def _cookie(self) -> str:
        return f"phantora-{self.server.server_port}"  # cookies are shared by all ports

    def _wait(self, path: str) -> None:
        """The answer while the logs are read."""
        reading = self.server.site.reading
        assert reading is not None
        if path == "/state.json":
            state = {"done": reading.done, "error": str(reading.error or "")}
            self._send(orjson.dumps(state), _TYPES[".json"])
        elif path in ("/", "/diff"):
            self._page(pages.reading_page(reading.facts(), reading.verdicts()))
        else:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "the log is still read")

    # ------------------------------------------------------------------ paths

    def _state(self, run: str, query: dict[str, str]) -> None:
        self._send(orjson.dumps({"done": 1.0, "error": "", "ready": True}), _TYPES[".json"])

    def _report(self, run: str, query: dict[str, str]) -> None:
        site = self.server.site
        self._page(pages.report_page(site.runs[run].report, site.offers(run)))

    def _report_json(self, run: str, query: dict[str, str]) -> None:
        self._send(to_json(self.server.site.runs[run].report).encode(), _TYPES[".json"])

    def _diff(self, run: str, query: dict[str, str]) -> None:
        self._page(pages.diff_page(self._difference(), self.server.site.offers(run)))

    def _diff_json(self, run: str, query: dict[str, str]) -> None:
        self._send(difference_json(self._difference()).encode(), _TYPES[".json"])

    def _difference(self) -> Difference:
        if self.server.site.difference is None:
            raise PhantoraError("one run is open; give phantora view two logs to compare them")
        return self.server.site.difference

    def _rows(self, run: str, query: dict[str, str]) -> None:
        step, ranks = _number(query, "step"), query.get("ranks", "")
        if step is None:
            raise PhantoraError("say which step: step=2")
        own = [_number({"ranks": rank}, "ranks") for rank in ranks.split(",")] if ranks else []
        self._send(self.server.site.rows(run, step, {rank for rank in own if rank is not None}), _ARROW)

    def _part(self, run: str, query: dict[str, str]) -> None:
        rank, step = _number(query, "rank"), _number(query, "step")
        self._send(self.server.site.part(run, rank, step), _TYPES[".json"])

    def _equal_ranks(self, run: str, query: dict[str, str]) -> None:
        step = _number(query, "step")
        if step is None:
            raise PhantoraError("say which step: step=2")
        self._send(orjson.dumps(equal_ranks(self.server.site.runs[run].report, step)), _TYPES[".json"])

    def _what_if(self, run: str, query: dict[str, str]) -> None:
        self._send(self.server.site.what_if(run, query), _TYPES[".json"])

    def _arrow(self, run: str, query: dict[str, str]) -> None:
        self._send((pages.viewers() / "arrow.js").read_bytes(), _TYPES[".js"])

    def _perfetto(self, run: str, query: dict[str, str]) -> None:
        site = self.server.site
        self._page(pages.perfetto_page(Path(site.runs[run].log.shown).name, site.offers(run)))

    def _trace(self, run: str, query: dict[str, str]) -> None:
        trace = self.server.site.trace(run)
        length = os.fstat(trace.fileno()).st_size
        self._head(HTTPStatus.OK, _BINARY, length)
        for offset in range(0, length, 1 << 20):
            self.wfile.write(os.pread(trace.fileno(), 1 << 20, offset))

    def _ui_file(self, name: str) -> None:
        path = self.server.site.ui.get(name or "index.html")
        if path is None:
            raise PhantoraError("no such file")
        self._send(path.read_bytes(), _TYPES.get(path.suffix, _BINARY), _UI_POLICY)

    # ------------------------------------------------------------------ answers

    def _page(self, text: str) -> None:
        self._send(text.encode(), _TYPES[".html"], _POLICY.format(scripts=pages.script_sources(text)))

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        self._send(f"{text}\n".encode(), "text/plain; charset=utf-8", status=status)

    def _send(self, body: bytes, kind: str, policy: str = _NO_SCRIPTS, status: HTTPStatus = HTTPStatus.OK) -> None:
        self._head(status, kind, len(body), policy)
        self.wfile.write(body)

    def _head(self, status: HTTPStatus, kind: str, length: int, policy: str = _NO_SCRIPTS) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        self.send_header("Content-Security-Policy", policy)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Cache-Control", "no-store")
        if status is HTTPStatus.OK:
            token = self.server.site.token
            self.send_header("Set-Cookie", f"{self._cookie}={token}; Path=/; HttpOnly; SameSite=Strict")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: requests hold the token."""


def _number(query: dict[str, str], name: str) -> int | None:
    """None if the query does not have it. Raises PhantoraError."""
    text = query.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > _MOST_DIGITS:
        raise PhantoraError(f"{name}: a number, as {name}=2")
    return int(text)


def _equal(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), token.encode())


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
