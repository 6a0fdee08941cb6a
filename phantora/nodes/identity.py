"""What must be equal on all nodes of a run: versions of Python, torch and Phantora."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from dataclasses import asdict, dataclass

from phantora.errors import PhantoraError
from phantora.stubs.sources import source_digest
from phantora.version import version


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The software of a node."""

    host: str
    python: str
    torch: str
    phantora: str
    sources: str
    """Digest of the sources of engine and stubs: of two checkouts with one version."""


def identity() -> Identity:
    """That of this machine."""
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = "none"
    return Identity(
        host=os.uname().nodename,
        python=platform.python_version(),
        torch=torch,
        phantora=version(),
        sources=source_digest()[:12],
    )


def compare(ours: Identity, theirs: Identity) -> None:
    """Raises PhantoraError where a node has another version than this machine."""
    for name in ("python", "torch", "phantora", "sources"):
        here, there = (asdict(one)[name] for one in (ours, theirs))
        if here != there:
            what = {"python": "Python", "torch": "torch"}.get(name, "phantora")
            raise PhantoraError(
                f"{theirs.host} has {what} {there}, and this machine has {here}: install the same on all nodes"
            )
