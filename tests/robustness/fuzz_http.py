"""Target of fuzz.py: what a browser, or anything else, may send to the server of `phantora view`."""

from __future__ import annotations

import errno
import functools
import socket
import sys
import threading
from pathlib import Path
from typing import Any

from phantora.errors import PhantoraError
from phantora.view.server import Server
from phantora.view.site import Site

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "Phantora" * 4  # a word that no error message spells by chance, also of a damaged request
PORT = b"65432"  # in the seeds: the place of the true port
PATHS = (
    "/",
    "/report.json",
    "/diff",
    "/diff.json",
    "/rows.arrow?step=2",
    "/arrow.js",
    "/perfetto",
    "/run.perfetto",
    "/perfetto/ui/index.html",
    "/nothing",
)


class _Strict(Server):
    """Keeps what went wrong while a request was answered."""

    wrong: BaseException | None = None

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError | TimeoutError):
            self.wrong = error


@functools.cache
def _server() -> _Strict:
    """One for the process: a run of two ranks."""
    from phantora.cli.analyze import filters
    from phantora.cli.view import site_of

    site: Site = site_of(str(ROOT / "tests/golden/small.arrow"), None, filters(None, None, None))
    site.token = TOKEN
    server = _Strict(site)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    return server


def requests() -> list[bytes]:
    """Seeds: every path, with the token and with the cookie."""
    host = b"Host: 127.0.0.1:" + PORT + b"\r\n"
    cookie = b"Cookie: phantora-" + PORT + b"=" + TOKEN.encode() + b"\r\nSec-Fetch-Site: same-origin\r\n"
    found = []
    for path in PATHS:
        query = path + ("&" if "?" in path else "?") + f"token={TOKEN}&run=a"
        found.append(b"GET %s HTTP/1.1\r\n%s\r\n" % (query.encode(), host))
        found.append(b"GET %s HTTP/1.1\r\n%s%sConnection: close\r\n\r\n" % (path.encode(), host, cookie))
    return found


def ask(path: Path) -> None:
    """Sends the bytes of a file to the server and reads all that it answers. Raises what went wrong in the server, and
    PhantoraError if nothing was answered well."""
    server = _server()
    with socket.create_connection(server.server_address, timeout=20) as connection:  # type: ignore[arg-type]
        answer = b""
        asked = path.read_bytes().replace(PORT, b"%d" % server.server_port)
        try:
            connection.sendall(asked)
            connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(1 << 16):
                answer += piece
        except OSError as error:  # ENOTCONN: shutdown, after a server that had answered closed on what was still sent
            if not isinstance(error, ConnectionError) and error.errno != errno.ENOTCONN:
                raise
    if server.wrong:
        wrong, server.wrong = server.wrong, None
        raise wrong
    if TOKEN.encode() in answer and TOKEN.encode() not in asked:
        raise AssertionError("a client without the token got it")
    if b" 200 " not in answer[:20]:
        raise PhantoraError("refused")
