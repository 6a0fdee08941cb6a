"""Makes the pictures of docs/ from real runs, with Chromium.

    phantora trace --cluster 1x4xH100 -o a.arrow samples/llama_fsdp2.py
    phantora trace --cluster 1x4xH100 --straggler rank=2:1.3 -o b.arrow samples/llama_fsdp2.py
    python -m benchmarks.large_log many.arrow 4000000 1024 4
    phantora sweep --preset fsdp2 --model small --cluster 1x4xH100 -o sweep
    phantora compare --gpus H100,H200,B200 --count 1,2,4,8 --tokens 10B -o compare samples/llama_ddp.py --layers 2
    python docs/screenshots.py a.arrow b.arrow many.arrow sweep compare [--folder docs]

With --all every page at 1440, 1024 and 390 pixels, light and dark, goes to that folder for looking at.
"""

from __future__ import annotations

import argparse
import io
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from phantora.cli.analyze import filters
from phantora.cli.view import site_of
from phantora.view.server import Server

LOOKS = [(width, scheme) for width in (1440, 1024, 390) for scheme in ("light", "dark")]
# Name in docs/: page, width, scheme, height.
KEPT = {
    "view-report": ("report", 1440, "light", 1250),
    "view-time": ("time", 1440, "light", 1250),
    "view-report-390": ("report", 390, "dark", 1500),
    "view-diff": ("diff", 1024, "dark", 1100),
    "view-perfetto": ("perfetto", 1440, "light", 800),
    "view-many": ("many", 1024, "dark", 760),
    "view-sweep": ("sweep", 1440, "light", 1500),
    "view-compare": ("compare", 1024, "light", 1100),
}
MOST_BYTES = 200_000


@dataclass(frozen=True)
class Site:
    """Where the pages are: two servers' addresses, with the tokens that let in, and the files of a sweep and of a
    comparison."""

    pair: str
    many: str
    sweep: str
    compare: str


def at(address: str, path: str) -> str:
    """The same server's address of another page."""
    return address.split("/?", 1)[0] + path


def report(page: Any, site: Site) -> None:
    """The report's verdict."""
    page.goto(site.pair)
    page.locator("#verdict", has_text="STEP").wait_for()


def time(page: Any, site: Site) -> None:
    """The report's part Time, the timeline zoomed in, with the details of a row."""
    page.goto(site.pair)
    page.click("#tab-time")
    page.locator("#timeline-text", has_text="rows").wait_for()
    page.evaluate("chart.look(chart.view.rows.length * 0.3, chart.view.rows.length * 0.1)")
    page.locator("#canvas").focus()
    for _ in range(3):
        page.keyboard.press("ArrowDown")


def diff(page: Any, site: Site) -> None:
    """The difference from a to b."""
    page.goto(site.pair)  # its cookie lets the other addresses in
    page.goto(at(site.pair, "/diff"))
    page.locator("#waterfall .bar").first.wait_for()


def aligned(page: Any, site: Site) -> None:
    """The timelines of both runs."""
    diff(page, site)
    page.click("#tab-time")
    for run in "ab":
        page.locator(f"#{run}-timeline-text", has_text="rows").wait_for()


def perfetto(page: Any, site: Site) -> None:
    """Perfetto's UI with run a."""
    page.goto(site.pair)
    page.goto(at(site.pair, "/perfetto?run=a"))
    page.locator("#state").wait_for(state="hidden", timeout=120_000)
    page.frame_locator("iframe").get_by_text("stream 0", exact=False).first.wait_for(timeout=120_000)
    page.wait_for_timeout(4000)


def many(page: Any, site: Site) -> None:
    """The timeline of a step of very many ranks, all streams in view."""
    page.goto(site.many)
    page.click("#tab-time")
    page.uncheck("#fold")
    page.locator("#timeline-text", has_text="rows").wait_for(timeout=120_000)
    page.evaluate("document.querySelectorAll('#story-time > section').forEach(e => e.id === 'timeline' || e.remove())")


def sweep(page: Any, site: Site) -> None:
    """The page of a sweep."""
    page.goto(site.sweep)
    page.locator("#table tr").first.wait_for()


def compare(page: Any, site: Site) -> None:
    """The page of a comparison of machines."""
    page.goto(site.compare)
    page.locator("#table tr").first.wait_for()


PAGES: dict[str, Callable[[Any, Site], None]] = {
    "report": report,
    "time": time,
    "diff": diff,
    "aligned": aligned,
    "perfetto": perfetto,
    "many": many,
    "sweep": sweep,
    "compare": compare,
}


@contextmanager
def served(log: str, other: str | None) -> Iterator[str]:
    """The address of a server of one run, or of two."""
    site = site_of(log, other, filters(None, None, None))
    with Server(site) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.url
        server.shutdown()
    site.close()


def taken(site: Site, wanted: list[tuple[str, int, str]]) -> dict[tuple[str, int, str], bytes]:
    """A picture of each wanted (page, width, scheme)."""
    pictures = {}
    with sync_playwright() as tools:
        path = shutil.which("chromium") or tools.chromium.executable_path
        browser = tools.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for name, width, scheme in wanted:
            page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
            page.set_default_timeout(60_000)
            PAGES[name](page, site)
            page.evaluate("scrollTo(0, 0)")
            page.wait_for_timeout(500)
            pictures[name, width, scheme] = page.screenshot(full_page=name != "perfetto")
            page.close()
        browser.close()
    return pictures


def main() -> None:
    """Takes the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("a", help="log of a run")
    parser.add_argument("b", help="log of another run")
    parser.add_argument("many", help="log of very many ranks")
    parser.add_argument("sweep", type=Path, help="folder of a sweep")
    parser.add_argument("compare", type=Path, help="folder of a comparison")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent)
    parser.add_argument("--all", type=Path, help="a folder for all looks of every page")
    options = parser.parse_args()
    wanted = {(name, width, scheme) for name, width, scheme, _ in KEPT.values()}
    if options.all:
        options.all.mkdir(parents=True, exist_ok=True)
        wanted |= {(name, *look) for name in PAGES for look in LOOKS}
    with served(options.a, options.b) as pair, served(options.many, None) as alone:
        files = options.sweep / "sweep.html", options.compare / "compare.html"
        pictures = taken(Site(pair, alone, *(file.resolve().as_uri() for file in files)), sorted(wanted))
    if options.all:
        for look, picture in pictures.items():
            (options.all / f"{'-'.join(map(str, look))}.png").write_bytes(picture)
    for name, (page_name, width, scheme, height) in KEPT.items():
        kept = Image.open(io.BytesIO(pictures[page_name, width, scheme])).convert("RGB")
        kept = kept.crop((0, 0, kept.width, min(height, kept.height)))
        target = options.folder / f"{name}.png"
        kept.quantize(256, method=Image.Quantize.MAXCOVERAGE).save(target, optimize=True)
        if target.stat().st_size > MOST_BYTES:
            raise SystemExit(f"{target} has {target.stat().st_size} bytes; choose less of the page")


if __name__ == "__main__":
    main()
