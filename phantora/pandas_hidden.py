"""Where pandas is installed, pyarrow imports it with its first array. That takes 0.7 s, and swallows the exception of a
signal that comes meanwhile. Our own processes need none."""

from __future__ import annotations

import sys


class _WithoutPandas:
    """On ``sys.meta_path``: there is no pandas here."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Raises ModuleNotFoundError for pandas."""
        if name == "pandas":
            raise ModuleNotFoundError("no module named 'pandas' in this process", name=name)


def hide_pandas() -> None:
    """From this process."""
    if not any(isinstance(finder, _WithoutPandas) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WithoutPandas())
