"""The event log and what is made from it.

The package can be called: ``phantora.trace("train.py", cluster="1x8xH100")`` is ``phantora.api.trace``, whatever part
of the package was imported before.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phantora.api import Run


class _Callable(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Run:
        import phantora.api

        return phantora.api.trace(*args, **options)


sys.modules[__name__].__class__ = _Callable
