"""tqdm's monitor is switched off: a thread that wakes every ten seconds of real time, and then makes a lock that the
script makes if there is none, and lets bars be drawn more often. What that costs the host would depend on real time."""

from __future__ import annotations

from types import ModuleType

from phantora.launch.importhook import on_import

_MODULE = "tqdm.std"


def _meet(module: ModuleType) -> None:
    module.tqdm.monitor_interval = 0  # tqdm's own switch


def install() -> None:
    """Before or after tqdm was imported."""
    on_import((_MODULE,), _meet)
