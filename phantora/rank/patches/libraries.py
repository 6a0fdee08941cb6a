"""Operators of torch's libraries at the end of a rank: they stay.

Each ``torch.library.Library`` takes its operators out of the dispatcher when the interpreter ends. Those that torch
makes while it is imported would write to 30 MB of pages that a rank shares with others, which takes 30 ms, for a
process that ends next.
"""

from __future__ import annotations

import weakref
from typing import Any

from phantora.rank.patch import Patch, Rank, When


def _install(_: Rank) -> None:
    from torch import library

    registry: dict[weakref.finalize[Any, Any], object] = weakref.finalize._registry  # type: ignore[attr-defined]
    for finalizer in list(registry):
        found = finalizer.peek()
        if found is not None and found[1] is library._del_library:
            finalizer.atexit = False


PATCH = Patch("libraries of operators", When.AFTER_TORCH, _install)
