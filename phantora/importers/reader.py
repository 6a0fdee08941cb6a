"""Interface of a reader: one format of traces (CONTRIBUTING.md, "Add an importer")."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from phantora.importers.rank import RankTrace, Vocabulary

Report = Callable[[int], None]
"""Gets the bytes of a file that are read."""


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A format of traces."""

    reads: Callable[[str], bool]
    """True if the file at this path has the format."""
    read: Callable[[str, Vocabulary, int, Report | None], list[RankTrace]]
    """The ranks' traces in the file. The number is its place among the files given: the rank where the file names none.
    Raises PhantoraError for a file that is damaged."""
    suffixes: tuple[str, ...] = ()
    """Ends of names by which `phantora analyze` and `view` take a file for a trace."""
    description: str = ""
    """What writes these files, for the help of `phantora import`."""
    takes_all: bool = False
    """It takes every file that no other reader takes, and refuses those that are no traces."""
    join: Callable[[str, Vocabulary, Sequence[RankTrace]], None] | None = None
    """Adds what the file tells to the traces of other files, if there are any; None: it stands alone."""
