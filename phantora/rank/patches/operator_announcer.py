"""Announces work that is no operator of torch to the operator tracer, as an operator with its launches."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any


class Announcer:
    """Speaks to the tracer's library."""

    def __init__(self, tracer: Path) -> None:
        self.library = ctypes.PyDLL(str(tracer))  # PyDLL: as short as these calls are, the GIL stays
        self.library.phantora_fused_begin.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        self.library.phantora_fused_end.restype = None
        self.library.phantora_fused_operands.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        self.library.phantora_fused_operands.restype = None

    def around(
        self, text: bytes, launch: Callable[[], Any], given: Iterable[Any] = (), written: Collection[int] = ()
    ) -> Any:
        """Calls `launch` as the operator with the signature `text` (JSON, as the tracer writes it). Tensors among its
        arguments `given` are what it touches of a GPU's memory, and it stores to those at the places `written`."""
        if not self.library.phantora_fused_begin(text, len(text)):
            return launch()
        touched = array("Q")
        for place, value in enumerate(given):
            tensor = value.base if hasattr(value, "block_shape") else value
            if hasattr(tensor, "data_ptr") and tensor.is_cuda:
                touched.extend((tensor.data_ptr(), tensor.numel() * tensor.element_size(), place in written))
        self.library.phantora_fused_operands(touched.tobytes(), len(touched) // 3)
        try:
            return launch()
        finally:
            self.library.phantora_fused_end()
