"""Operators for what torch has none: work is announced to the operator tracer, and what it launches is its own."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Announcer:
    """Speaks to the tracer's library."""

    def __init__(self, tracer: Path) -> None:
        self.library = ctypes.PyDLL(str(tracer))  # PyDLL: as short as these calls are, the GIL stays
        self.library.phantora_fused_begin.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        self.library.phantora_fused_end.restype = None

    def around(self, text: bytes, launch: Callable[[], Any]) -> Any:
        """Calls `launch` as the operator with the signature `text` (JSON, as the tracer writes it)."""
        if not self.library.phantora_fused_begin(text, len(text)):
            return launch()
        try:
            return launch()
        finally:
            self.library.phantora_fused_end()
