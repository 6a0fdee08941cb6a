"""Imports of pandas fail in a process of Phantora.

With pandas installed, pyarrow imports it with its first array. The import takes 0.7 s, and an exception of a signal
handler during it is lost. Phantora's own processes use no pandas.
"""

from __future__ import annotations

import sys


class _WithoutPandas:
    """A finder for ``sys.meta_path`` that finds no pandas."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Raises ModuleNotFoundError for pandas."""
        if name == "pandas":
            raise ModuleNotFoundError("no module named 'pandas' in this process", name=name)


def block_pandas() -> None:
    """Blocks pandas in this process."""
    if not any(isinstance(finder, _WithoutPandas) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WithoutPandas())
