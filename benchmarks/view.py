"""Smoothness of the page of ``phantora view`` with a step of very many ranks, in Chromium.

    python -m benchmarks.view [--ranks 1024] [--events 4000000] [--chromium PATH]

Makes a log, serves it, opens the page, shows all streams at once, then zooms and moves for 240 frames. Prints what the
first picture took, and the time of drawing a frame and from frame to frame.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from benchmarks.large_log import write
from phantora.cli.analyze import filters
from phantora.cli.view import site_of
from phantora.view.server import Server

STEPS = 4
MOVES = """async (height) => {
  const choice = document.getElementById("height");
  choice.value = height;
  choice.dispatchEvent(new Event("change"));
  const frame = () => new Promise(requestAnimationFrame), drawn = [], between = [];
  const { view, draw } = chart;
  chart.draw = () => { const begin = performance.now(); draw(); drawn.push(performance.now() - begin); };
  await frame();
  let before = await frame();
  for (let i = 0; i < 240; i++) {
    const span = view.to - view.from;
    if (i < 80) chart.zoom(0.95, view.rows.length * 0.4);
    else if (i < 160) chart.look(view.from + span * 0.02, span);
    else chart.zoom(1.06, view.rows.length * 0.4);
    const now = await frame();
    between.push(now - before);
    before = now;
  }
  chart.draw = draw;
  return [drawn, between];
}"""


def spread(times: list[float]) -> str:
    ordered = sorted(times)
    return f"median {ordered[len(ordered) // 2]:5.1f} ms, 95 % {ordered[len(ordered) * 95 // 100]:5.1f} ms, " + (
        f"longest {ordered[-1]:5.1f} ms"
    )


def measure(page: Any, url: str) -> None:
    begin = time.perf_counter()
    page.goto(url)
    page.click("#tab-time")
    if page.locator("#fold-label").is_visible():
        page.uncheck("#fold")
    page.locator("#timeline-text", has_text="rows").wait_for(timeout=120_000)
    rows = page.locator("#timeline-text").inner_text()
    print(f"page with its timeline   {time.perf_counter() - begin:5.1f} s, {rows}")
    print(f"streams                  {page.evaluate('chart.view.tracks.length'):5}")
    for height, name in (("all", "all in view"), ("5", "flat"), ("14", "tall")):
        drawn, between = page.evaluate(MOVES, height)
        print(f"{name:12} drawing     {spread(drawn)}\n{'':12} from frame  {spread(between)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--events", type=int, default=4_000_000)
    parser.add_argument("--chromium", default=shutil.which("chromium"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        log = Path(place) / "run.arrow"
        print(f"{write(log, args.events, args.ranks, STEPS):,} rows of {args.ranks} ranks, {STEPS} steps")
        begin = time.perf_counter()
        site = site_of(str(log), None, filters(None, None, None))
        print(f"report                   {time.perf_counter() - begin:5.1f} s", flush=True)
        with Server(site) as server, sync_playwright() as tools:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            browser = tools.chromium.launch(executable_path=args.chromium, args=["--no-sandbox"])
            measure(browser.new_page(viewport={"width": 1280, "height": 900}), server.url)
            browser.close()
            server.shutdown()
        site.close()


if __name__ == "__main__":
    main()
