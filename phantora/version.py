"""The version of Phantora."""

from __future__ import annotations

from importlib import metadata


def version() -> str:
    """Version of the installed package."""
    try:
        return metadata.version("phantora")
    except metadata.PackageNotFoundError:  # run from a checkout
        return "0.0.0+source"
