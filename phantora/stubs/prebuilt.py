"""Stub libraries that a wheel brings compiled, for some versions of torch.

``.ci/wheel`` makes such a wheel. A set is taken only if it was made from the sources that are installed, for a torch
and CUDA libraries like those that are installed. Else the stubs are compiled when they are first needed, as without it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

from phantora.stubs.build import StubSet, defines, link_names, read_set
from phantora.stubs.find import Torch, find_torch
from phantora.stubs.sources import source_digest

FOLDER = Path(__file__).parent / "prebuilt"


def portable_key(torch: Torch) -> str:
    """Names a set on any machine: torch's version and the sizes of its libraries, what was read from NVIDIA's headers,
    and the sources. A torch that somebody compiled has other sizes than PyPI's."""
    names = ("libtorch_cuda.so", "libtorch_cpu.so", "libc10_cuda.so")
    sizes = [(torch.libraries / name).stat().st_size for name in names]
    facts = json.dumps([torch.version, torch.cuda, sizes, defines(torch), source_digest()])
    return f"torch-{torch.version}-{hashlib.sha256(facts.encode()).hexdigest()[:16]}"


def find_prebuilt(torch: Torch) -> StubSet | None:
    """The set that came with the installation for this torch."""
    return read_set(FOLDER / portable_key(torch)) if FOLDER.is_dir() else None


def unpack(found: StubSet, target: Path) -> None:
    """Copies a set to `target`, with the links that a wheel cannot hold (:func:`link_names`)."""
    shutil.copytree(found.directory, target, dirs_exist_ok=True)
    link_names(target, found.coverage)


def prebuild(built: StubSet, into: Path = FOLDER) -> Path:
    """Puts what was built for the torch of this interpreter where a wheel takes it from; returns the folder."""
    target = into / portable_key(find_torch())
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for path in built.directory.iterdir():
        if path.is_file() and not path.is_symlink() and path.suffix != ".cpp":
            shutil.copy2(path, target / path.name)
    return target
