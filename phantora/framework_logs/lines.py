"""Lines of a text log, as a terminal shows them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from phantora.errors import PhantoraError, cause_of

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_END = re.compile(rb"[\r\n]")
_PART = 1 << 20
_LONGEST = 1 << 12  # bytes: what follows in a longer line is left out


def lines_of(path: str) -> Iterator[str]:
    """The lines of the file at `path`, without colours; each state of a progress bar is a line.

    Raises PhantoraError for a file that cannot be read or is no text.
    """
    try:
        with open(path, "rb") as file:
            rest = b""
            while part := file.read(_PART):
                if b"\x00" in part:
                    raise PhantoraError(f"{path} is no text: it is no log of a framework")
                *whole, rest = _END.split(rest + part)
                rest = rest[:_LONGEST]
                yield from map(_text, whole)
            yield _text(rest)
    except OSError as error:
        raise PhantoraError(f"cannot read {path}: {cause_of(error)}") from error


def _text(line: bytes) -> str:
    return _ANSI.sub("", line[:_LONGEST].decode(errors="replace"))
