"""The pages of ``phantora view`` in Chromium. Where it is missing, test_page_code.py checks what they do."""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import playwright.sync_api as playwright
import pytest

from phantora.cli.analyze import filters
from phantora.cli.view import reading_site, site_of
from phantora.sweeps.compare_page import write_compare_page
from phantora.sweeps.page import sweep_page
from phantora.trace.analysis.analyze import analyze
from phantora.trace.analysis.assumptions import Assumption
from phantora.trace.analysis.summary import lines
from phantora.trace.reader import open_log
from phantora.view.pages import report_page
from phantora.view.remembered import remembered
from phantora.view.server import Server
from tests.support.fakelog import small_run
from tests.support.sweeps import small_answer, small_comparison

REMEDY = "no Chromium: install the system's package `chromium`, or run `playwright install chromium`"
LOOKS = [(width, scheme) for width in (1440, 1024, 390) for scheme in ("light", "dark")]


def chromium(tools: Any) -> str:
    """The system's, or playwright's own."""
    for found in (shutil.which("chromium"), shutil.which("chromium-browser"), tools.chromium.executable_path):
        if found and Path(found).exists():
            return str(found)
    pytest.skip(REMEDY)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=chromium(tools), args=["--no-sandbox"])
        yield browser
        browser.close()


def open_page(browser: Any, width: int = 1280, scheme: str = "light") -> tuple[Any, list[str]]:
    """A page and what it complains of."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.set_default_timeout(15_000)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    return page, complaints


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_report(server: Server, browser: Any, width: int, scheme: str) -> None:
    page, complaints = open_page(browser, width, scheme)
    page.goto(server.url)
    page.locator("#verdict", has_text="HELD UP").wait_for()
    assert "token" not in page.url  # not for the history
    page.click("#tab-time")
    page.locator("#timeline-text", has_text="8 rows").wait_for()
    tiles = {name: page.locator(f"#tile-{name}").inner_text() for name in ("time", "compute", "overlap", "peak")}
    assert tiles == {"time": "1.00 ms", "compute": "40.0%", "overlap": "57.1%", "peak": "3.00 GiB"}
    page.select_option("#rank", "1")
    assert page.locator("#tile-overlap").inner_text() == "66.7%"
    page.select_option("#step", "2")
    page.locator("#timeline-step", has_text="step 2, rank 1").wait_for()
    assert page.locator("#tiles-title").inner_text() == "Step 2, rank 1"
    page.select_option("#class", "communication")
    page.click("#tab-kernels")
    assert "ncclDevKernel_AllReduce" in page.locator("#works").inner_text()
    assert "nvjet" not in page.locator("#works").inner_text()
    page.click("#tab-time")
    page.locator("#canvas").scroll_into_view_if_needed()
    box = page.locator("#canvas").bounding_box()
    left = 44 if box["width"] < 500 else 160 if box["width"] < 900 else 244
    gemm = left + 0.45 * (box["width"] - left), 22 + 2.5 * 14  # from 400 to 600 us, under two host threads
    page.mouse.move(box["x"] + gemm[0], box["y"] + gemm[1])
    page.locator("#timeline-text", has_text="rank 1 / compute · aten::mm · gemm · 200.00 us · at 400.00 us").wait_for()
    drawn = page.locator("#canvas").evaluate(
        "c => new Set(new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer)).size"
    )
    assert drawn > 4
    cut = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
    assert page.evaluate(cut) == 0  # every byte and share is seen
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert complaints == []
    page.close()


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_difference(server: Server, browser: Any, width: int, scheme: str) -> None:
    page, complaints = open_page(browser, width, scheme)
    page.goto(server.url)
    page.get_by_role("link", name="Difference").click()
    reported = "The runs do the same work: no cause to name."
    page.locator("#causes", has_text=reported).wait_for()
    assert page.locator("#headline").inner_text()
    assert page.locator("#waterfall .bar").count() >= 2 and page.locator("#waterfall .number").first.inner_text() == "a"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.click("#tab-time")
    assert page.locator("#a-timeline-step").inner_text() == page.locator("#b-timeline-step").inner_text()
    for run in "ab":  # both timelines
        page.locator(f"#{run}-timeline-text", has_text="rows").wait_for()
    assert page.locator("#timelines-legend span").count() > 3 and page.locator("#a-timeline-legend span").count() == 0
    page.get_by_role("link", name="Report b").click()
    page.click("#tab-time")
    page.locator("#timeline-text", has_text="rows").wait_for()
    assert page.locator("#step option").count() == 5
    assert complaints == []
    page.close()


def test_tables_are_sorted_and_searched(server: Server, browser: Any) -> None:
    page, complaints = open_page(browser)
    page.goto(server.url)
    page.click("#tab-time")
    first = page.locator("#by-rank tbody tr").last
    assert first.inner_text().startswith("1\t")
    page.locator("#by-rank th button", has_text="rank").first.click()
    assert first.inner_text().startswith("0\t")
    found = page.evaluate("matching([{n: 'a b'}, {n: 'b'}], [['', (r) => r.n, text]], 'B a').length")
    assert found == 1
    page.close()
    assert complaints == []


def test_keyboard(server: Server, browser: Any) -> None:
    """Parts by number and Tab; the timeline's keys are those of Perfetto's, arrows go from row to row."""
    page, complaints = open_page(browser)
    page.goto(server.url)
    page.keyboard.press("2")
    page.locator("#timeline-text", has_text="rows").wait_for()
    assert page.locator("#tab-time").get_attribute("aria-selected") == "true"
    reached = []
    for _ in range(20):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id"))
        if reached[-1] == "canvas":
            break
    order = ["tab-verdict", "tab-time", "tab-kernels", "tab-memory", "step", "rank", "class", "height", "canvas"]
    assert [name for name in reached if name in order] == order
    span = "Math.round(chart.view.to - chart.view.from)"
    for key, expected in (("w", 700_000), ("s", 1_000_000), ("w", 700_000), ("0", 1_000_000)):
        page.keyboard.press(key)
        assert page.evaluate(span) == expected
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.locator("#details", has_text="source").wait_for()
    page.keyboard.press("Escape")
    page.locator("#details", has_text="zoom").wait_for()
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("3")
    page.evaluate("details.kernels.push(...Array(20).fill(details.kernels[0])); showWork()")  # long enough to search in
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.className") == "search"
    page.keyboard.type("4nccl")
    assert page.locator("#tab-kernels").get_attribute("aria-selected") == "true"
    assert complaints == []
    page.close()


def test_equal_ranks_are_one(browser: Any, tmp_path: Path) -> None:
    """Of 12 ranks 11 do the same: the timeline has two, with their host threads, and all when asked."""
    site = site_of(str(small_run(12).write(tmp_path / "many.arrow")), None, filters(None, None, None))
    with Server(site) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page, complaints = open_page(browser)
        page.goto(server.url)
        page.click("#tab-time")
        page.locator("#timeline-text", has_text="rows").wait_for()
        labels = "chart.view.tracks.map((track) => chart.label(track, 1000))"
        shown = page.evaluate(labels)
        assert {"rank 0 / host", "rank 0 / compute", "ranks 1-11 / host", "ranks 1-11 / compute"} < set(shown)
        assert {label.split(" /")[0] for label in shown} == {"rank 0", "ranks 1-11"}
        assert page.locator("#by-rank tbody tr").count() == 2
        rows = int(page.locator("#timeline-text").inner_text().split()[0])  # of two ranks
        page.uncheck("#fold")
        page.locator("#timeline-text", has_text=f"{6 * rows} rows").wait_for()
        assert complaints == []
        page.close()
        server.shutdown()


def test_a_long_log_is_waited_for(logs: tuple[Path, Path], browser: Any) -> None:
    """The address answers before the log is read; the report follows by itself."""
    site, go = reading_site(str(logs[0]), None, filters(None, None, None)), threading.Event()
    assert site.reading is not None
    read = site.reading.read
    site.reading.read = lambda reading: (go.wait(), read(reading))[1]
    site.start(0.01)
    with Server(site) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page, complaints = open_page(browser)
        page.goto(server.first_page)
        page.locator("#logs", has_text="a.arrow: ").wait_for()
        page.locator("#state", has_text="0 %").wait_for()
        known = dict(remembered(str(logs[0])))  # the page of another test has read it
        assert page.locator("#known dd").all_inner_texts() == list(known.values())
        go.set()
        page.locator("#verdict", has_text="STEP").wait_for()
        assert complaints == []
        page.close()
        server.shutdown()
    site.close()
    assert dict(remembered(str(logs[0]))) == dict(lines(site.runs["a"].report))


def test_equal_ranks_are_one_on_timelines_of_two_runs(browser: Any, tmp_path: Path) -> None:
    few, many = (str(small_run(ranks).write(tmp_path / f"{ranks}.arrow")) for ranks in (10, 12))
    site = site_of(few, many, filters(None, None, None))
    with Server(site) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page, complaints = open_page(browser)
        page.goto(server.first_page)
        page.click("#tab-time")
        page.locator("#b-timeline-text", has_text="rows").wait_for()
        names = "(chart) => [...new Set(chart.view.tracks.map((track) => chart.label(track, 1000).split(' /')[0]))]"
        assert page.evaluate(f"pair.map({names})") == [["rank 0", "ranks 1-9"], ["rank 0", "ranks 1-11"]]
        assert complaints == []
        page.close()
        server.shutdown()


def test_memory_is_read_off(server: Server, browser: Any) -> None:
    page, complaints = open_page(browser)
    page.goto(server.url)
    page.click("#tab-memory")
    page.locator("#memory svg").hover()
    page.locator("#memory .timeline-text", has_text="GiB allocated").wait_for()
    page.select_option("#memory-time", "run")
    page.locator("#memory", has_text="The whole run.").wait_for()
    page.close()
    assert complaints == []


def test_one_file(server: Server, browser: Any, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text(report_page(server.site.runs["a"].report))
    page, complaints = open_page(browser)
    page.goto((tmp_path / "report.html").as_uri())
    page.click("#tab-time")
    assert page.locator("#tile-time").inner_text() == "1.00 ms"
    assert page.locator("#timeline").is_hidden()  # its rows come from the server
    assert complaints == []
    page.close()


def test_assumed_values_are_below_the_verdict(browser: Any, tmp_path: Path) -> None:
    report = analyze(open_log(small_run().write(tmp_path / "run.arrow")))
    report.assumptions = [Assumption("nonzero finds 0 in 5000 elements at train.py:12", 1)]
    (tmp_path / "run.html").write_text(report_page(report))
    page, complaints = open_page(browser)
    page.goto((tmp_path / "run.html").as_uri())
    page.locator("#assumed", has_text="nonzero finds 0 in 5000 elements").wait_for()
    assert page.locator("#assumed dt").all_inner_texts() == ["ASSUMED"] and not complaints
    page.close()


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_sweep(browser: Any, tmp_path: Path, width: int, scheme: str) -> None:
    (tmp_path / "sweep.html").write_text(sweep_page(small_answer(tmp_path)))
    page, complaints = open_page(browser, width, scheme)
    page.goto((tmp_path / "sweep.html").as_uri())
    assert page.locator("#tile-step").inner_text() == "100.00 ms\nstep"
    assert page.locator("#facts").inner_text() == "4 points ran, 2 do not fit, 0 failed, 2 were not run"
    assert page.locator("#lines polyline").count() == 6 and page.locator("#scatter circle").count() == 4
    page.locator("#scatter circle").nth(2).click()
    assert page.locator("#chosen-title").inner_text() == "3. tp=2 ac=none"
    assert page.locator("#chosen").inner_text() == "Host-bound: <b>"
    page.select_option("#against", label="exposed")
    assert page.locator("#scatter circle").count() == 4
    assert "1 of 8 ranks ran as processes" in page.locator("#folded").inner_text()
    assert "100.0%\tyes" in re.sub(r"\s+", "\t", page.locator("#table tr").nth(3).inner_text())  # slower, and surely
    assert "needs 93.00 GiB of 80.00 GiB" in page.locator("#rest").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert complaints == []
    page.close()


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_comparison(browser: Any, tmp_path: Path, width: int, scheme: str) -> None:
    path, _ = write_compare_page(*small_comparison(tmp_path))
    page, complaints = open_page(browser, width, scheme)
    page.goto(path.as_uri())
    assert page.locator("#verdict").inner_text() == "1x8xB200 is the cheapest <b>"
    assert page.locator("#speed-title").inner_text() == "Speed against the number of GPUs"
    assert page.locator("#speed circle").count() == 4 and page.locator("#speed polyline").count() == 4
    filled = page.locator("#cost circle").evaluate_all(
        "all => all.map((c) => c.getAttribute('fill') !== 'var(--card)')"
    )
    assert filled == [False, True, False, True]  # a B200 is faster and cheaper than each H100
    assert page.locator("#table tr").nth(2).inner_text().startswith("1x8xB200 ← chosen")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert complaints == []
    page.close()


def test_perfetto_opens_the_run(server: Server, browser: Any) -> None:
    page, _ = open_page(browser)  # the UI itself complains of what the server does not let it ask for
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(server.url.replace("/?", "/perfetto?"))
    page.locator("#state").wait_for(state="hidden", timeout=60_000)
    frame = page.frame_locator("iframe")
    frame.get_by_text("rank 0", exact=False).first.wait_for(timeout=60_000)
    assert frame.get_by_text("Oops").count() == 0 and frame.locator(".pf-modal-dialog").count() == 0
    assert any("/run.perfetto" in url for url in asked)
    page.close()


def test_hands_the_run_over_to_the_site(server: Server, browser: Any) -> None:
    """Against a page in its place that keeps to its protocol."""
    context = browser.new_context()
    listens = """<script>addEventListener("message", (event) => {
      if (event.data === "PING") event.source.postMessage("PONG", event.origin);
      else document.title = `${event.data.perfetto.title} ${event.data.perfetto.buffer.byteLength}`;
    })</script>"""
    context.route("https://ui.perfetto.dev/**", lambda route: route.fulfill(body=listens, content_type="text/html"))
    page = context.new_page()
    page.goto(server.url)
    with context.expect_page() as opened:
        page.locator("#online").click()
    length = os.fstat(server.site.trace("a").fileno()).st_size
    playwright.expect(opened.value).to_have_title(f"{server.site.runs['a'].log.path} {length}")
    context.close()
