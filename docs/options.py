"""Writes what is made from the fields of phantora/spec.py: docs/trace.md and phantora/keywords.py.

python docs/options.py
"""

from __future__ import annotations

from pathlib import Path

from phantora.cli.trace import trace
from phantora.options import HeadedCommand, keywords_module, page

ROOT = Path(__file__).parents[1]


def generated() -> dict[Path, str]:
    """Text by file."""
    assert isinstance(trace, HeadedCommand)
    return {ROOT / "docs" / "trace.md": page(trace), ROOT / "phantora" / "keywords.py": keywords_module()}


if __name__ == "__main__":
    for path, text in generated().items():
        path.write_text(text, encoding="utf-8")
