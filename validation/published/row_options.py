"""The command line of a study whose published values are rows of a file of JSON lines."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def parser(module: str, about: str | None, given: str, meaning: str) -> argparse.ArgumentParser:
    """FILE, a folder that is named `given`, ROW..., ``--out`` (by default a folder with the name of the file `module`)
    and ``--jobs``."""
    made = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("file", type=Path)
    made.add_argument(given, type=Path, help=meaning)
    made.add_argument("rows", nargs="+", metavar="ROW", help="number, words of a label, or all")
    made.add_argument("--out", type=Path, default=Path(module).with_suffix(""), metavar="FOLDER")
    made.add_argument("--jobs", type=int, default=1, help="rows that are simulated at the same time")
    return made


def chosen(file: Path, words: list[str], named: Callable[[Mapping[str, Any], int], str]) -> list[tuple[int, Row]]:
    """The rows of `file` with these numbers, or all of these words in their names; with their numbers."""
    every = list(enumerate(map(json.loads, file.read_text().splitlines())))
    numbers = {int(word) for word in words if word.isdigit()}
    texts = [word for word in words if word != "all"]
    return [(n, row) for n, row in every if n in numbers or (not numbers and all(t in named(row, n) for t in texts))]
