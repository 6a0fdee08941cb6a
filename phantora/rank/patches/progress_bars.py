"""Switches tqdm's monitor off: a thread that wakes every ten seconds of real time and draws bars more often.

The host time of its work would depend on real time.
"""

from __future__ import annotations

from types import ModuleType

from phantora.rank.importhook import on_import
from phantora.rank.patch import Patch, Rank, When

_MODULE = "tqdm.std"


def _meet(module: ModuleType) -> None:
    module.tqdm.monitor_interval = 0  # tqdm's own switch


def install(_: Rank) -> None:
    """Before or after tqdm was imported."""
    on_import((_MODULE,), _meet)


PATCH = Patch("progress bars", When.AFTER_TORCH, install)
