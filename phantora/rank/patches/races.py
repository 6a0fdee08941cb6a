"""``--check races``: accesses to memory that no event, stream or wait of the host orders (docs/howto/find-races.md)."""

from __future__ import annotations

import ctypes

from phantora.rank.patch import Patch, Rank, When
from phantora.spec import rank_spec

OPTION = "races"


def install(rank: Rank) -> None:
    """Lets the tracer compare accesses, if the run checks them. Called once, before the script runs."""
    if rank_spec().check == OPTION:
        ctypes.CDLL(str(rank.tracer)).phantora_check_races()


PATCH = Patch("races", When.AFTER_TORCH, install)
