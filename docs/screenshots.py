"""Makes the pictures of docs/view.md from real runs, with Chromium.

    phantora trace --modules --cluster 1x2xH100 -o a.arrow samples/llama_fsdp2.py --layers 4 --steps 5
    phantora replay a.arrow --gpu H200 -o b.arrow
    python docs/screenshots.py a.arrow b.arrow [--folder docs]

With --all every page at 1440, 1024 and 390 pixels, light and dark, goes to that folder for looking at.
"""

from __future__ import annotations

import argparse
import io
import shutil
import threading
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
    "view-report": ("report", 1440, "light", 1500),
    "view-report-390": ("report", 390, "dark", 1500),
    "view-diff": ("diff", 1024, "dark", 1100),
    "view-perfetto": ("perfetto", 1440, "light", 800),
}
MOST_BYTES = 200_000


def report(page: Any, address: str) -> None:
    """The report, its timeline zoomed in, one module opened."""
    page.goto(f"{address}/")
    page.locator("#timeline-text", has_text="rows").wait_for()
    page.evaluate("chart.look(chart.view.rows.length * 0.3, chart.view.rows.length * 0.1)")
    for toggle in page.locator(".toggle:not([disabled])").all()[:1]:
        toggle.click()


def diff(page: Any, address: str) -> None:
    """The difference with both timelines."""
    page.goto(f"{address}/diff")
    for run in "ab":
        page.locator(f"#{run}-timeline-text", has_text="rows").wait_for()


def perfetto(page: Any, address: str) -> None:
    """Perfetto's UI with run a."""
    page.goto(f"{address}/perfetto?run=a")
    page.locator("#state").wait_for(state="hidden", timeout=120_000)
    page.frame_locator("iframe").get_by_text("stream 0", exact=False).first.wait_for(timeout=120_000)
    page.wait_for_timeout(4000)


PAGES = {"report": report, "diff": diff, "perfetto": perfetto}


def main() -> None:
    """Takes the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("a")
    parser.add_argument("b")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent)
    parser.add_argument("--all", type=Path, help="a folder for all looks of every page")
    options = parser.parse_args()
    wanted = {(name, width, scheme) for name, width, scheme, _ in KEPT.values()}
    if options.all:
        options.all.mkdir(parents=True, exist_ok=True)
        wanted = {(name, *look) for name in PAGES for look in LOOKS}
    pictures = {}
    site = site_of(options.a, options.b, filters(None, None, None))
    with Server(site) as server, sync_playwright() as tools:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        path = shutil.which("chromium") or tools.chromium.executable_path
        browser = tools.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for name, width, scheme in sorted(wanted):
            page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
            page.set_default_timeout(60_000)
            page.goto(server.url)  # its cookie lets the other addresses in
            PAGES[name](page, f"http://127.0.0.1:{server.server_port}")
            page.evaluate("scrollTo(0, 0)")
            page.wait_for_timeout(500)
            picture = page.screenshot(full_page=name != "perfetto")
            page.close()
            pictures[name, width, scheme] = picture
            if options.all:
                (options.all / f"{name}-{width}-{scheme}.png").write_bytes(picture)
        browser.close()
        server.shutdown()
    site.close()
    for name, (page_name, width, scheme, height) in KEPT.items():
        picture = Image.open(io.BytesIO(pictures[page_name, width, scheme])).convert("RGB")
        picture = picture.crop((0, 0, picture.width, min(height, picture.height)))
        target = options.folder / f"{name}.png"
        picture.quantize(128).save(target, optimize=True)
        if target.stat().st_size > MOST_BYTES:
            raise SystemExit(f"{target} has {target.stat().st_size} bytes; choose less of the page")


if __name__ == "__main__":
    main()
