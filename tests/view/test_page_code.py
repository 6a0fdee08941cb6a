"""The pages' own code on real answers of the server, under Node.js: what a machine without a browser can check."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from phantora.trace.analysis import summary
from phantora.trace.analysis.why import answer
from phantora.view.server import Server

SCRIPT = Path(__file__).parents[1] / "support" / "page.mjs"
if shutil.which("node") is None:
    pytest.skip("the pages' code runs in Node.js, and there is no `node` on PATH", allow_module_level=True)


def visit(server: Server, path: str, *actions: tuple[Any, ...], width: int = 1244) -> list[Any]:
    url = f"http://127.0.0.1:{server.server_port}{path}{'&' if '?' in path else '?'}token={server.site.token}"
    done = subprocess.run(
        ["node", str(SCRIPT), url, str(width)],
        input=json.dumps(actions),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    answers: list[Any] = json.loads(done.stdout)
    return answers


GEMM, COMMUNICATION, CARD = "#4c8fd0", "#e08a1e", "#ffffff"  # lib.js, style.css
LEFT, TOP = 244, 22 + 2 * 14  # of the first stream, under two host threads; with 1244 pixels a microsecond is one


def test_report_of_means_and_of_a_rank(server: Server) -> None:
    tiles = ("tile-time", "tile-compute", "tile-overlap", "tile-peak")
    *mean, rows, _, alone, _, title = visit(
        server,
        "/",
        *(("text", tile) for tile in tiles),
        ("wait", "timeline-text", "18 rows"),
        ("choose", "rank", "1"),
        ("text", "tile-overlap"),
        ("choose", "step", "2"),
        ("text", "tiles-title"),
    )
    assert [value.split()[0] for value in mean] == ["1.00", "40.0%", "57.1%", "3.00"]
    assert rows == "18 rows" and alone.startswith("66.7%") and title == "Step 2, rank 1"


def test_breakdown_of_a_class(server: Server) -> None:
    every, _, one = visit(server, "/", ("text", "works"), ("choose", "class", "communication"), ("text", "works"))
    assert "nvjet" in every and "ncclDevKernel_AllReduce" in every
    assert "nvjet" not in one and "ncclDevKernel_AllReduce" in one


def test_timeline_shows_the_rows_where_they_are(server: Server) -> None:
    """Rank 0: gemms from 100 to 300 and 400 to 600 us, an all-reduce from 300 that waits until 350."""
    first, shift = TOP + 5, LEFT + 300  # a step begins where the last kernel of the one before ended, at 700
    second, third = first + 14, first + 4 * 14
    asked = [(50, first), (200, first), (350, first), (450, first), (320, second), (400, second), (510, second)]
    asked += [(320, third + 14), (360, third + 14)]
    answers = visit(
        server,
        "/",
        ("wait", "timeline-text", "18 rows"),
        ("choose", "height", "14"),
        *(("pixel", shift + x, y) for x, y in asked),
        ("point", shift + 450, first),
        ("text", "timeline-text"),
        ("point", shift + 400, second),
        ("text", "timeline-text"),
        ("written",),
        ("choose", "class", "communication"),
        ("pixel", shift + 200, first),
        ("pixel", shift + 400, second),
    )
    colors = answers[2 : 2 + len(asked)]
    pale = colors[4]
    assert colors == [CARD, GEMM, CARD, GEMM, pale, COMMUNICATION, CARD, CARD, COMMUNICATION]
    assert pale not in (CARD, COMMUNICATION)  # it waits for rank 1, which comes last and waits for nobody
    _, gemm, _, reduce, words, _, dimmed, kept = answers[2 + len(asked) :]
    assert gemm.startswith("rank 0 / compute · aten::mm · gemm · 200.00 us · at 700.00 us · nvjet_tn")
    assert "communication · 200.00 us, waits 50.00 us · at 600.00 us · ncclDevKernel_AllReduce" in reduce
    bars, labels = words.split("|rank 0 / compute|", 1)
    assert bars.split("|")[:3] == ["cudaStreamSynchronize", "mm", "mm"]
    assert labels.startswith("rank 0 / all_reduce ")
    assert dimmed not in (GEMM, CARD) and kept == COMMUNICATION


def test_timeline_of_one_rank_and_of_all_in_view(server: Server) -> None:
    _, _, _, own, _, _, thin = visit(
        server,
        "/",
        ("wait", "timeline-text", "18 rows"),
        ("choose", "height", "5"),
        ("choose", "rank", "1"),
        ("written",),
        ("choose", "rank", ""),
        ("choose", "height", "all"),
        ("pixel", 44 + 200, TOP + 5),
        width=444,
    )
    assert own.startswith("1:host|") and "0:0" not in own  # narrow: short labels; streams too flat for all of theirs
    assert thin == GEMM


def test_a_click_tells_all_of_a_kernel(server: Server) -> None:
    at = LEFT + 300 + 450
    _, _, shown = visit(server, "/", ("wait", "timeline-text", "18 rows"), ("click", at, TOP + 5), ("text", "details"))
    reported = " ".join(shown.split())
    for part in (
        "operator aten::mm",
        "shapes",
        "class gemm",
        "rank 0, stream 0 (compute)",
        "duration 200.00 us",
        "price 200.00 us",
        "launched",
        "source interpolated",
        "flops",
    ):
        assert part in reported, reported


def test_where_mfu_goes(server: Server) -> None:
    """Losses, time without compute and MFU make up the peak; shares are the report's."""
    (shown,) = visit(server, "/", ("text", "waterfall"))
    shares = [float(n) for n in re.findall(r"([+-]?[\d.]+)%", shown)]
    assert shares[0] == 100 and abs(sum(shares[:-1]) - shares[-1]) < 0.5
    report = server.site.runs["a"].report
    for delay in report.delays:
        assert re.search(rf"{delay.name} +-{100 * delay.time / report.steady.time:.1f}%", shown)


def test_tables_follow_rank_and_step(server: Server) -> None:
    """As `phantora analyze --ranks 1 --steps 2` prints them."""
    every, _, _, one = visit(
        server,
        "/",
        ("text", "exposure"),
        ("choose", "rank", "1"),
        ("choose", "step", "2"),
        ("wait", "exposure", "50.00 us"),
    )
    part = json.loads(server.site.part("a", 1, 2))
    assert part["ranks"] == [1] and [e["exposed"] for e in part["exposure"]] == [50_000]
    assert one != every and "75.00 us 25.00 us" in " ".join(every.split())  # the mean of both ranks


def test_verdict(server: Server, logs: tuple[Path, Path]) -> None:
    """The lines that end a run, and a command."""
    (shown,) = visit(server, "/", ("text", "verdict"))
    for word, line in summary.lines(server.site.runs["a"].report):
        assert f"{word} {line}" in shown
    assert f"NEXT {dict(answer(server.site.runs['a'].report))['NEXT']}" in shown


def test_a_call_of_a_kernel(server: Server) -> None:
    """The shortest and the longest, the share of the peaks of arithmetic and memory."""
    (shown,) = visit(server, "/", ("text", "works"))
    row = "nvjet_tn 66.7% 400.00 us 2 200.00 us 200.00 us 200.00 us 101.1%"
    assert row in " ".join(shown.split())


def test_links(server: Server) -> None:
    without, used = visit(server, "/", ("text", "links")) + visit(server, "/?run=b", ("text", "links"))
    assert without == ""
    shown = "h0.gpu0>h0.nvswitch 200.0 GB/s 47.7 MiB 500.00 us 25.0% 50.0%"
    assert shown in " ".join(used.split())


def test_difference(server: Server) -> None:
    headline, runs, nav, causes, rows = visit(
        server,
        "/diff",
        ("text", "headline"),
        ("text", "runs"),
        ("text", "nav"),
        ("text", "causes"),
        ("wait", "b-timeline-text", "18 rows"),
    )
    assert headline and "1.00 ms a step" in runs and "Difference" in nav
    assert "a.arrow" in runs and "b.arrow" in runs
    assert rows == "18 rows"
    shown = " ".join(causes.split())
    assert "The runs do the same work: no cause to name." in shown  # b has a step more


def test_a_step_that_the_run_does_not_have(server: Server) -> None:
    """The server's words are shown, not an old picture."""
    _, _, reported, tiles = visit(
        server,
        "/?run=b",
        ("wait", "timeline-text", "18 rows"),
        ("choose", "step", "9"),
        ("wait", "timeline-text", "no step"),
        ("text", "tiles"),
    )
    assert reported.endswith("b.arrow: no step 9\n") and tiles == "This rank has no such step."
