"""Many runs of one script: which layout is fastest, cheapest, and fits (docs/sweeps.md)."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """The package is a function too: ``phantora.sweep("sweep.toml", ...)``."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from phantora.api import sweep

        return sweep(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
