"""The page that asks which machine to rent: a form, the progress of ``phantora compare``, and its answer.

Its server runs a command line that another function makes of the form. So what it starts, prints and answers is what
the command does in the terminal; the checks of ``local.py`` stand before all of it.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any

import orjson

from phantora.errors import PhantoraError, cause_of
from phantora.view import pages
from phantora.view.local import TYPES, LocalHandler, LocalServer

_MOST_BYTES = 1 << 16  # of a form
_MOST_LINES = 500
_PROGRESS = re.compile(r"phantora: (\d+)/(\d+) (.*)")


@dataclass(kw_only=True)
class Asking:
    """One question at a time: its process and what it has printed."""

    command_of: Callable[[Mapping[str, str]], list[str]]
    """The command line of a form's fields; its output is JSON. Raises PhantoraError."""
    page: Path
    """The page that the command writes."""
    _process: subprocess.Popen[str] | None = None
    _state: dict[str, Any] = field(default_factory=lambda: {"running": False, "lines": []})

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def start(self, fields: Mapping[str, str]) -> None:
        """Runs the command. Raises PhantoraError while another runs, and for fields that it cannot have."""
        command = self.command_of(fields)
        with self._lock:
            if self._state["running"]:
                raise PhantoraError("a comparison runs already: stop it first")
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
            except OSError as error:
                raise PhantoraError(f"cannot start it: {cause_of(error)}") from error
            shown = shlex.join(["phantora", *(word for word in command[3:] if word != "--json")])
            self._state = {"running": True, "lines": [], "done": 0, "of": 0, "error": "", "command": shown}
        threading.Thread(target=self._follow, args=(self._process,), daemon=True).start()

    def stop(self) -> None:
        """Ends what runs, as Ctrl-C does: the same question goes on where it was."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGINT)

    def close(self) -> None:
        """Ends what runs and waits for it."""
        self.stop()
        if self._process is not None:
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)

    def state(self) -> dict[str, Any]:
        """What the page shows."""
        with self._lock:
            return {**self._state, "lines": list(self._state["lines"])}

    def _follow(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None and process.stderr is not None
        errors = threading.Thread(target=self._read_lines, args=(process.stderr,), daemon=True)
        errors.start()
        output = process.stdout.read()
        errors.join()
        process.wait()
        with self._lock:
            try:
                self._state["answer"] = orjson.loads(output)
            except ValueError:
                lines = self._state["lines"]
                self._state["error"] = lines[-1] if lines else f"it ended with status {process.returncode}"
            self._state["running"] = False

    def _read_lines(self, stream: IO[str]) -> None:
        for line in stream:
            found = _PROGRESS.match(line)
            with self._lock:
                if found:
                    self._state["done"], self._state["of"] = int(found[1]), int(found[2])
                if len(self._state["lines"]) < _MOST_LINES:
                    self._state["lines"].append(found[3] if found else line.strip().removeprefix("phantora: "))


class AskServer(LocalServer):
    """Gives the form, and runs what it asks."""

    def __init__(self, asking: Asking, offers: Mapping[str, Any], port: int = 0) -> None:
        """`offers`: choices that the form names. Listens at once. Raises PhantoraError when the port is taken."""
        self.asking, self.offers = asking, offers
        super().__init__(secrets.token_urlsafe(24), _Handler, port)


class _Handler(LocalHandler):
    server: AskServer

    def answer(self, path: str, query: dict[str, str]) -> None:
        asking = self.server.asking
        if path == "/":
            self.page(pages.assemble("ask.html", "Which machine should I rent?", dict(self.server.offers)))
        elif path == "/state.json":
            self.send(orjson.dumps(asking.state()), TYPES[".json"])
        elif path == "/answer" and asking.page.is_file():
            self.page(asking.page.read_text(encoding="utf-8"))
        else:
            self.refuse(HTTPStatus.NOT_FOUND, "no such page")

    def do_POST(self) -> None:
        """Starts or stops a comparison. A form of another site cannot send JSON, nor a script of one this origin."""
        length = self.headers.get("Content-Length", "")
        body = self.rfile.read(int(length)) if length.isdecimal() and int(length) <= _MOST_BYTES else None
        if body is None:
            self.close_connection = True
            return self.refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too long a form")
        asked = self.asked()
        if asked is None:
            return None
        if self.headers.get("Content-Type") != TYPES[".json"] or self.headers.get("Origin") is None:
            return self.refuse(HTTPStatus.FORBIDDEN, "the page of this server alone may ask")
        try:
            fields = orjson.loads(body)
            if not isinstance(fields, dict) or not all(isinstance(value, str) for value in fields.values()):
                raise PhantoraError("fields are texts")
            if asked[0] == "/start":
                self.server.asking.start(fields)
            elif asked[0] == "/stop":
                self.server.asking.stop()
            else:
                return self.refuse(HTTPStatus.NOT_FOUND, "no such page")
        except (ValueError, PhantoraError) as error:
            return self.refuse(HTTPStatus.BAD_REQUEST, str(error))
        self.send(orjson.dumps(self.server.asking.state()), TYPES[".json"])
        return None
