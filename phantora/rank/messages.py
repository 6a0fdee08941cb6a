"""Notes of a rank for its user, next to the script's own output."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from multiprocessing import util

from phantora.rank.importhook import excluded
from phantora.spec import rank_spec


def tell(text: str) -> None:
    """Prints a note on stderr, unless the run is quiet."""
    if not rank_spec().quiet:
        print(f"phantora: note: {text}", file=sys.stderr, flush=True)


def report_at_end(library: ctypes.CDLL, report: Callable[[], None], every: bool = False) -> None:
    """Calls `report` as the process ends, in rank 0, or in `every` rank. It takes no virtual time, because it
    depends on this machine.

    `library`: the rank runtime.
    """

    def at_end() -> None:
        is_rank = hasattr(library, "ph_rank")  # a process without the runtime is none
        if is_rank and (every or library.ph_rank() == 0):
            report()

    util.Finalize(None, excluded, args=(at_end,), exitpriority=0)  # also in a process of multiprocessing
