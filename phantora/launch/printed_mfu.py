"""The MFU that a script prints itself, from its output: ``mfu: 41.23%``, ``"mfu": 0.4123``."""

from __future__ import annotations

import re

_COLOUR = re.compile(rb"\x1b\[[\d;]*m")
_MFU = re.compile(
    rb"\bmfu(?:_\w+)?[^\w\r\n%]{0,6}%?[^\w\r\n%]{0,6}(\d+(?:\.\d+)?(?:e-\d+)?)\b(?![\w.]) ?(%?)", re.IGNORECASE
)
_MOST_VALUES = 10_000
_MOST_OF_LINE = 4096
_FRACTION = 1.5  # a number without a unit up to here is a share, above it a percentage


class PrintedMfu:
    """Values of MFU in the lines of all ranks."""

    def __init__(self) -> None:
        self._values: list[tuple[float, float]] = []
        self._begun: dict[int, bytes] = {}  # stream -> a line without its end

    def read(self, stream: int, data: bytes) -> None:
        """Takes what came from one of the streams, which may end within a line."""
        text = self._begun.pop(stream, b"") + data
        lines, cut, rest = text.rpartition(b"\n")
        if not cut:
            lines, rest = b"", text
        if rest:
            self._begun[stream] = rest[-_MOST_OF_LINE:]
        if b"mfu" in lines.lower() and len(self._values) < _MOST_VALUES:
            self._values += [_share(*found) for found in _MFU.findall(_COLOUR.sub(b"", lines))]

    def value(self) -> tuple[float, float] | None:
        """The median of the shares between 0 and 1, and half of its last digit; None if the script prints none."""
        found = sorted(value for value in self._values if 0 < value[0] < 1)
        return found[len(found) // 2] if found else None


def _share(number: bytes, percent: bytes) -> tuple[float, float]:
    value, half = float(number), 0.5 * 0.1 ** len(number.partition(b".")[2])
    return (value / 100, half / 100) if percent or value > _FRACTION else (value, half)
