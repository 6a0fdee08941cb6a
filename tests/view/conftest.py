"""A server of two small runs, for all tests of the pages."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from phantora.cli.analyze import filters
from phantora.cli.view import site_of
from phantora.view.server import Server
from tests.support.fakelog import Kind, small_run


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("view")
    (folder / "secret.txt").write_text("beside the run")
    longer = small_run(steps=4)
    for k in range(4):  # half of what the link could carry, for half of each step
        t = (10_000 + 1000 * k) * 1000
        longer.add(Kind.LINK, 0, t, t + 500_000, "h0.gpu0>h0.nvswitch", value=200_000_000_000, bytes=50_000_000)
    return small_run().write(folder / "a.arrow"), longer.write(folder / "b.arrow")


@pytest.fixture(scope="module")
def server(logs: tuple[Path, Path]) -> Iterator[Server]:
    site = site_of(str(logs[0]), str(logs[1]), filters(None, None, None))
    with Server(site) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()
    site.close()
