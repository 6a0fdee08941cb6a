"""The sources of the libraries, what a build of them depends on, and the names of builds in the cache."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
from functools import cache
from pathlib import Path
from typing import Any

import phantora
from phantora.errors import PhantoraError
from phantora.stubs import imports
from phantora.wire import engine as engine_interface
from phantora.wire import layout

_INCLUDE = re.compile(rb'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def source_directory() -> Path:
    """The folder with the C sources: of the checkout, or of the installed package."""
    next_to = Path(phantora.__file__).parent.parent / "stub"
    if (next_to / "rank" / "rank.h").exists():
        return next_to
    spec = importlib.util.find_spec("phantora._stub")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        if (Path(location) / "rank" / "rank.h").exists():
            return Path(location)
    raise PhantoraError("the sources of the stub libraries are missing from the installation; install phantora again")


def engine_directory() -> Path:
    """The folder with the C++ sources of the simulator's engine."""
    return Path(phantora.__file__).parent / "sim" / "engine"


def engine_sources() -> list[Path]:
    """The files of the engine that are compiled."""
    root = engine_directory()
    return [path for folder in (root, *sorted(root.iterdir())) if folder.is_dir() for path in sources_of(folder)]


def sources_of(folder: Path) -> list[Path]:
    """The files of a folder that are compiled, in the order of their names."""
    return sorted(path for path in folder.iterdir() if path.suffix in (".c", ".cpp"))


def _sources() -> list[tuple[str, str]]:
    """Every source with its path below the folder of the stubs or of the engine."""
    found: list[tuple[str, str]] = []
    for root in (str(source_directory()), str(engine_directory())):
        for folder, _, names in os.walk(root):
            paths = (os.path.join(folder, name) for name in names if name.endswith((".c", ".cpp", ".h")))
            found += ((path[len(root) + 1 :], path) for path in paths)
    return sorted(found)


def source_digest() -> str:
    """Names what is compiled, and how."""
    folder = Path(__file__).parent
    others = (folder / "build.py", folder / "imports.py", *sorted(imports.FOLDER.glob("*.txt")))
    files = [*_sources(), *(("", str(path)) for path in others)]
    digest = _digest(tuple((*file, (state := os.stat(file[1])).st_mtime_ns, state.st_size) for file in files)).copy()
    digest.update(" ".join([*other_limits(), *sanitizers()]).encode())
    return str(digest.hexdigest())


@cache
def _digest(files: tuple[tuple[str, str, int, int], ...]) -> Any:
    """Digest of `files` (name, path, and what tells that they are as before) and of the generated headers."""
    digest = hashlib.sha256((layout.c_header() + engine_interface.c_header()).encode())
    for name, path, *_ in files:
        digest.update(name.encode() + b"\0" + Path(path).read_bytes())
    return digest


def library_key(sources: list[Path], *facts: str) -> str:
    """Names what a library is made of: its sources, the files that they include, and `facts`. Headers of torch and
    generated headers are not read; `facts` stand for them."""
    roots = (source_directory(), engine_directory())
    digest = hashlib.sha256("\0".join([*facts, *other_limits(), *sanitizers()]).encode())
    digest.update(Path(__file__).with_name("build.py").read_bytes())
    left, seen = list(sources), set(sources)
    while left:
        path = left.pop()
        text = path.read_bytes()
        digest.update(path.name.encode() + b"\0" + text)
        for name in _INCLUDE.findall(text):
            found = next((file for root in (path.parent, *roots) if (file := root / name.decode()).is_file()), None)
            if found and found not in seen:
                seen.add(found)
                left.append(found)
    return digest.hexdigest()


def other_limits() -> list[str]:
    """Macros of `PHANTORA_DEFINES` (NAME=NUMBER ...): limits of the stubs other than their own, for experiments on what
    they cost, such as PH_SMALL_ELEMENTS. Raises PhantoraError for anything else."""
    words = os.environ.get("PHANTORA_DEFINES", "").split()
    for word in words:
        if not re.fullmatch(r"PH_[A-Z_]+=\d+", word):
            raise PhantoraError(f"PHANTORA_DEFINES: {word!r} is not of the form PH_NAME=NUMBER")
    return [f"-D{word}" for word in words]


def sanitizers() -> list[str]:
    """Options of the compiler for `PHANTORA_SANITIZE`: ``address``, ``undefined``, ``address,undefined`` or ``thread``.

    The sanitizer's runtime must be loaded first (docs/reliability.md). Raises PhantoraError for anything else."""
    chosen = os.environ.get("PHANTORA_SANITIZE", "")
    if chosen not in ("", "address", "undefined", "address,undefined", "thread"):
        raise PhantoraError(f"PHANTORA_SANITIZE: {chosen!r} is not address, undefined, address,undefined or thread")
    return [f"-fsanitize={chosen}", "-fno-omit-frame-pointer"] if chosen else []


def is_usual() -> bool:
    """True if the environment asks for the stubs as they are, and not for an experiment or for sanitizers."""
    return not other_limits() and not sanitizers()
