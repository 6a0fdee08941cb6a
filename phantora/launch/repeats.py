"""Warnings that several ranks write: shown once, and counted for the others.

Process: terminal.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from phantora.result import few

# Dates, processes and threads of torch's log lines: W1128 18:46:05.989000 6503 ...
_WHEN = re.compile(rb"[IWE]\d{4} [\d:.]+(?: \d+)? ")
_RANK = re.compile(rb"^(?:\[rank\d+\]:? ?)+")
_WARNING = re.compile(rb"warn|deprecat|^W\d{4} ", re.IGNORECASE)
_PYTHON = re.compile(rb":\d+: \w*Warning: ")


class Repeats:
    """Which warnings each rank has written."""

    def __init__(self) -> None:
        self._written: dict[bytes, Counter[int]] = defaultdict(Counter)
        self._left_out: dict[int, int] = {}
        self._source_follows: set[int] = set()

    def leaves_out(self, rank: int, line: bytes) -> bool:
        """True for a warning that another rank has written as often before."""
        text = _RANK.sub(b"", line)
        if rank in self._source_follows:  # Python shows the line of the code under its warning
            self._source_follows.discard(rank)
            if text.startswith(b"  "):
                return True
        if not _WARNING.search(text):
            return False
        written = self._written[_WHEN.sub(b"", text)]
        written[rank] += 1
        if not any(times >= written[rank] for other, times in written.items() if other != rank):
            return False
        self._left_out[rank] = self._left_out.get(rank, 0) + 1
        if _PYTHON.search(text):
            self._source_follows.add(rank)
        return True

    def line(self) -> str:
        """What was left out; "": nothing."""
        if not self._left_out:
            return ""
        ranks, most = tuple(sorted(self._left_out)), max(self._left_out.values())
        which = "the warning above" if most == 1 else f"{most} of the warnings above"
        ranks_wrote = f"rank{'s' if len(ranks) > 1 else ''} {few(ranks)} also wrote"
        return f"phantora: note: {ranks_wrote} {which}; --log-dir DIR keeps all output"
