"""Timelines and step times of distributed PyTorch training, for clusters that you do not have.

``phantora.run`` runs a script, ``phantora.sweep`` runs it in many layouts, ``phantora.open`` opens a run's log
(``phantora/api.py``). They are imported at their first use, because every rank of a run imports this package, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phantora.api import (
        Run,
        RunFailed,
        calibrate,
        collective_time,
        compare,
        diff,
        fits,
        goodput,
        import_trace,
        plan,
        run,
        sweep,
        why,
    )
    from phantora.api import open_run as open
    from phantora.errors import PhantoraError

__all__ = [
    "PhantoraError",
    "Run",
    "RunFailed",
    "__version__",
    "calibrate",
    "collective_time",
    "compare",
    "diff",
    "fits",
    "goodput",
    "import_trace",
    "open",
    "plan",
    "run",
    "sweep",
    "why",
]


def __getattr__(name: str) -> Any:
    import importlib

    if name == "__version__":
        return importlib.import_module("phantora.version").version()
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("phantora.api"), {"open": "open_run"}.get(name, name))


def __dir__() -> list[str]:
    return __all__
