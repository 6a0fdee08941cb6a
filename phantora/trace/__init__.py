"""The log: its schema, writer and reader; exports, analysis and differences are made from it alone.

For one more release the package can be called: ``phantora.trace(...)`` is the old name of ``phantora.run(...)``.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phantora.api import Run


class _OldName(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Run:
        import phantora.api

        return phantora.api.trace(*args, **options)


sys.modules[__name__].__class__ = _OldName
