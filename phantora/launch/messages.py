"""Notes of a rank for its user, next to the script's own output."""

from __future__ import annotations

import sys

from phantora.spec import rank_spec


def tell(text: str) -> None:
    """Prints a note on stderr, unless the run is quiet."""
    if not rank_spec().quiet:
        print(f"phantora: note: {text}", file=sys.stderr, flush=True)
