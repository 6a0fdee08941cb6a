"""Quantities as text: a number and its unit, such as ``12ms``, ``70GiB``, ``2GB/s``, ``5%`` and ``1.5T``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from phantora.errors import PhantoraError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
"""Sizes in bytes."""
_NUMBER = re.compile(r"\s*(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)\s*([^\d\s.]*)\s*")
_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BYTES = {f"{prefix}B": factor for prefix, factor in _DECIMAL.items()}
_BITS = {f"{prefix}b": factor / 8 for prefix, factor in _DECIMAL.items()}


@dataclass(frozen=True)
class Grammar:
    """A grammar of quantities."""

    example: str
    """A text of it, for messages."""
    units: Mapping[str, float] = field(repr=False)
    """The factor of each unit."""

    def read(self, text: str) -> float | None:
        """The value of a text; None for any other text, and for a number that is not finite."""
        match = _NUMBER.fullmatch(text)
        factor = self.units.get(match[2]) if match is not None else None
        if match is None or factor is None or not math.isfinite(value := float(match[1]) * factor):
            return None
        return value

    def of(self, option: str, text: str) -> float:
        """The value of the text of an option. Raises PhantoraError."""
        if (value := self.read(text)) is None:
            raise PhantoraError(f"{option} {text}: give {self.example}")
        return value


TIME = Grammar(
    "a time such as 250ms, 20s, 10m or 8h",
    {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9, "m": 60e9, "min": 60e9, "h": 3600e9, "d": 86400e9},
)
"""Times in ns."""
SIZE = Grammar("a size such as 70GiB", {**_BYTES, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": GIB << 10})
"""Sizes in bytes: ``GB`` is decimal, ``GiB`` binary."""
RATE = Grammar(
    "a rate such as 2GB/s or 80Gb/s",
    {f"{unit}{per}": factor for unit, factor in {**_BYTES, **_BITS}.items() for per in ("/s", "ps")}
    | {f"{unit}it/s": factor for unit, factor in _BITS.items()},
)
"""Rates in bytes per second; ``b`` is bits."""
SHARE = Grammar("a share such as 5%", {"%": 0.01, "": 1.0})
"""Shares: ``5%`` is 0.05."""
COUNT = Grammar("a number such as 200k, 1.5M or 1T", {**_DECIMAL, "B": 1e9})
"""Large numbers: of tokens, of steps."""
