"""Output files that appear whole or not at all."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from phantora.outputs import open_output


@contextmanager
def replacing(path: str) -> Iterator[IO[bytes]]:
    """A file that takes `path`'s place once it is whole; compressed when the name ends with .gz."""
    part = f"{path}.part"
    try:
        with os.fdopen(open_output(part), "wb") as raw:
            if path.endswith(".gz"):
                with gzip.GzipFile("", "wb", 1, raw, 0) as packed:
                    yield packed  # type: ignore[misc]  # GzipFile is an IO[bytes] in all but name
            else:
                yield raw
        os.replace(part, path)
    except BaseException:
        if os.path.exists(part):
            os.remove(part)
        raise
