"""The page that asks which machine to rent: who may ask, the command of a form, its progress and its answer."""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from phantora.cli.view import compare_command
from phantora.errors import PhantoraError
from phantora.view.ask import Asking, AskServer

PROGRAM = """
import sys, time
print("phantora: 1/2 1x1xH100: 25 ms a step", file=sys.stderr, flush=True)
time.sleep(float(sys.argv[1]))
print('{"verdict": ["1x1xH100 is the cheapest"], "best": [], "machines": []}')
"""


def command(fields: Mapping[str, str]) -> list[str]:
    return [sys.executable, "-c", PROGRAM, fields["script"]]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AskServer]:
    page = tmp_path / "compare.html"
    page.write_text("<p>charts</p>")
    asking = Asking(command_of=command, page=page)
    with AskServer(asking, {"gpus": ["H100"], "chosen": "H100"}) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()
    asking.close()


def ask(server: AskServer, method: str, path: str, body: str = "", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def own(server: AskServer) -> dict[str, str]:
    """Headers of the server's own page."""
    port = server.server_port
    cookie, origin = f"phantora-{port}={server.token}", f"http://127.0.0.1:{port}"
    return {"Cookie": cookie, "Origin": origin, "Content_Type": "application/json"}


def state(server: AskServer) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ask(server, "GET", "/state.json", **own(server))[1])
    return found


def ended(server: AskServer) -> dict[str, Any]:
    for _ in range(200):
        if not (found := state(server))["running"]:
            return found
        time.sleep(0.05)
    raise AssertionError("it still runs")


def test_only_its_own_page_may_ask(server: AskServer) -> None:
    assert ask(server, "GET", "/")[0] == 403 and b"form" in ask(server, "GET", f"/?token={server.token}")[1]
    form, mine = json.dumps({"script": "0"}), own(server)
    for wrong in (
        {"Cookie": "phantora=x"},
        {"Origin": "http://evil.example"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Content_Type": "text/plain"},
        {"Host": "evil.example"},
    ):
        assert ask(server, "POST", "/start", form, **{**mine, **wrong})[0] == 403, wrong
    assert ask(server, "POST", "/start", form, **{k: v for k, v in mine.items() if k != "Origin"})[0] == 403
    assert ask(server, "POST", "/start", "x" * 70_000, **mine)[0] == 413
    assert ask(server, "POST", "/start", "[1]", **mine)[0] == 400
    assert state(server) == {"running": False, "lines": []}, "nothing was started"


def test_progress_and_answer(server: AskServer) -> None:
    assert ask(server, "POST", "/start", json.dumps({"script": "0.3"}), **own(server))[0] == 200
    assert ask(server, "POST", "/start", json.dumps({"script": "0"}), **own(server))[0] == 400, "one at a time"
    found = ended(server)
    assert (found["done"], found["of"], found["lines"]) == (1, 2, ["1x1xH100: 25 ms a step"])
    assert found["answer"]["verdict"] == ["1x1xH100 is the cheapest"] and found["error"] == ""
    assert b"charts" in ask(server, "GET", "/answer", **own(server))[1]


def test_stop_ends_the_command(server: AskServer) -> None:
    ask(server, "POST", "/start", json.dumps({"script": "60"}), **own(server))
    while not state(server)["lines"]:
        time.sleep(0.05)
    ask(server, "POST", "/stop", "{}", **own(server))
    assert "answer" not in ended(server)


def test_the_command_of_a_form() -> None:
    fields = {"script": "train.py --layers '3 2'", "gpus": "H100,B200", "count": "8", "tokens": "2T", "price": " "}
    assert compare_command(fields)[3:] == [
        *("compare", "--json", "--output", "compare", "--gpus=H100,B200", "--count=8", "--tokens=2T"),
        *("train.py", "--layers", "3 2"),
    ]
    for wrong, message in (
        ({"script": ""}, "name a script"),
        ({"script": "-o /x y"}, "name a script"),
        ({"x": ""}, "no field x"),
    ):
        with pytest.raises(PhantoraError, match=message):
            compare_command(wrong)
