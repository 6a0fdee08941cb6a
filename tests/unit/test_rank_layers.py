"""The layers of the rank runtime: `stub/rank/LAYER`, and the files in `stub/rank` itself above all."""

from __future__ import annotations

import re
from pathlib import Path

RANK = Path(__file__).resolve().parents[2] / "stub" / "rank"
LAYERS = ("runtime", "clock", "memory", "torch_hooks")
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
FUNCTION = re.compile(r"^(?!static)[a-z_][\w *]*[ *](ph_\w+)\([^;{}]*\)\s*\{", re.MULTILINE)
VARIABLE = re.compile(
    r"^(?!static|extern|typedef)[\w()* ]+[ *](ph_\w+)(?:\[\])?(?: __attribute__.*)?(?: = .*)?;$", re.MULTILINE
)
TABLE = re.compile(r"^const ph_import (ph_\w+)", re.MULTILINE)


def layer(path: Path) -> int:
    return LAYERS.index(path.parent.name) if path.parent != RANK else len(LAYERS)


def sources() -> dict[Path, str]:
    return {path: COMMENT.sub("", path.read_text()) for path in RANK.rglob("*.c")}


def defined(text: str) -> list[str]:
    return [name for pattern in (FUNCTION, VARIABLE, TABLE) for name in pattern.findall(text)]


def test_no_layer_uses_one_above_it() -> None:
    """Functions and variables, whatever header declares them."""
    texts = sources()
    home = {name: path for path, text in texts.items() for name in defined(text)}
    assert len(home) > 150 and {"ph_rt", "ph_emit", "ph_listens", "ph_group_imports", "ph_connect"} <= home.keys()
    wrong = [
        f"{path.relative_to(RANK)} uses {name} of {home[name].relative_to(RANK)}"
        for path, text in texts.items()
        for name in sorted(set(re.findall(r"\bph_\w+", text)) & home.keys())
        if layer(home[name]) > layer(path)
    ]
    assert wrong == []


def test_each_layer_includes_its_own_header() -> None:
    for path in sources():
        if path.parent != RANK:
            included = re.findall(r'#include "(rank/\w+/\w+\.h)"', path.read_text())
            assert included == [f"rank/{path.parent.name}/{path.parent.name}.h"], path
