"""What a rank tells its user beside the script's own output."""

from __future__ import annotations

import os
import sys

QUIET = "PHANTORA_QUIET"


def tell(text: str) -> None:
    """Prints a note on stderr, unless the run is quiet."""
    if os.environ.get(QUIET) != "1":
        print(f"phantora: note: {text}", file=sys.stderr, flush=True)
