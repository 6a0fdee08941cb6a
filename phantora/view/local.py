"""A server of pages on this machine, and who gets its answers.

A log says much about its owner's models, and any web page can make a browser send requests to 127.0.0.1. So every
request must carry the token of this start of the server, in the query or in the cookie that a page with the right
query sets; must name this machine as its host (else a foreign name that was rebound to 127.0.0.1 could read the
answers); and, with the cookie, must not come from another site or port.
"""

from __future__ import annotations

import hmac
from abc import ABC, abstractmethod
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from phantora.errors import PhantoraError, cause_of
from phantora.view import pages

ADDRESS = "127.0.0.1"
_NAMES = (ADDRESS, "localhost")
_MOST_FIELDS = 16  # of a query
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".wasm": "application/wasm",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
# Own pages hold all they need but for Arrow's library, which the server has, and run no other script; Perfetto's UI
# makes workers and compiles WebAssembly. Neither may ask the network, so the UI's console tells of a script of its
# makers and of a local trace processor that it may not ask for.
_POLICY = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_NO_SCRIPTS = _POLICY.format(scripts="'none'")


class LocalServer(ThreadingHTTPServer):
    """Listens on the local address; one thread a request."""

    daemon_threads = True

    def __init__(self, token: str, handler: type[LocalHandler], port: int = 0) -> None:
        """Listens at once. Raises PhantoraError when the port is taken."""
        self.token = token
        try:
            super().__init__((ADDRESS, port), handler)
        except OSError as error:
            raise PhantoraError(
                f"cannot listen on {ADDRESS}:{port}: {cause_of(error)}; choose another --port, or none"
            ) from error

    @property
    def url(self) -> str:
        """Address of the first page, with the token that opens it."""
        return self.address("/")

    def address(self, path: str) -> str:
        """Address of a page, with the token."""
        return f"http://{ADDRESS}:{self.server_port}{path}?token={self.token}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that closed its connection is no error."""


class LocalHandler(BaseHTTPRequestHandler, ABC):
    """Answers those who may ask."""

    server: LocalServer
    protocol_version = "HTTP/1.1"
    server_version = "phantora"
    sys_version = ""
    timeout = 60

    @abstractmethod
    def answer(self, path: str, query: dict[str, str]) -> None:
        """Answers a GET that carries the token. Raises PhantoraError for a path that does not exist."""

    def do_GET(self) -> None:
        """A page or its data."""
        asked = self.asked()
        if asked is None:
            return
        try:
            self.answer(*asked)
        except PhantoraError as error:
            self.refuse(HTTPStatus.NOT_FOUND, str(error))

    def asked(self) -> tuple[str, dict[str, str]] | None:
        """Path and query of a request that may be answered; None: it was refused."""
        try:
            url = urlsplit(self.path)
            query = {name: values[-1] for name, values in parse_qs(url.query, max_num_fields=_MOST_FIELDS).items()}
        except ValueError:
            self.refuse(HTTPStatus.BAD_REQUEST, "not an address")
            return None
        if self.headers.get("Host") not in [f"{name}:{self.server.server_port}" for name in _NAMES]:
            self.refuse(HTTPStatus.FORBIDDEN, "this server answers on this machine only")
        elif not self._may(query):
            self.refuse(HTTPStatus.FORBIDDEN, "open the address of phantora view: it contains the token")
        else:
            return url.path, query
        return None

    def _may(self, query: dict[str, str]) -> bool:
        if _equal(query.get("token", ""), self.server.token):
            return True
        # The cookie goes along with every request of the browser; what other origins ask for does not count.
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return False
        own = [f"http://{name}:{self.server.server_port}" for name in _NAMES]
        if self.headers.get("Origin", own[0]) not in own:  # browsers without the header above send this one
            return False
        # Not SimpleCookie: its time grows with the square of a header that is no cookie.
        sent = (pair.strip().partition("=") for pair in self.headers.get("Cookie", "").split(";"))
        return any(name == self._cookie and _equal(value, self.server.token) for name, _, value in sent)

    @property
    def _cookie(self) -> str:
        return f"phantora-{self.server.server_port}"  # cookies are shared by all ports

    # ------------------------------------------------------------------ answers

    def page(self, text: str) -> None:
        """A page of ours, whose scripts alone run."""
        self.send(text.encode(), TYPES[".html"], _POLICY.format(scripts=pages.script_sources(text)))

    def refuse(self, status: HTTPStatus, text: str) -> None:
        """A line of text."""
        self.send(f"{text}\n".encode(), "text/plain; charset=utf-8", status=status)

    def send(self, body: bytes, kind: str, policy: str = _NO_SCRIPTS, status: HTTPStatus = HTTPStatus.OK) -> None:
        """A whole answer."""
        self.head(status, kind, len(body), policy)
        self.wfile.write(body)

    def head(self, status: HTTPStatus, kind: str, length: int, policy: str = _NO_SCRIPTS) -> None:
        """What stands before the body."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        self.send_header("Content-Security-Policy", policy)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Cache-Control", "no-store")
        if status is HTTPStatus.OK:
            token = self.server.token
            self.send_header("Set-Cookie", f"{self._cookie}={token}; Path=/; HttpOnly; SameSite=Strict")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: requests hold the token."""


def _equal(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), token.encode())
