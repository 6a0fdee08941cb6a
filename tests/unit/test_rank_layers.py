"""The layers of the rank runtime: `stub/rank/LAYER`, and the files in `stub/rank` itself above all."""

from __future__ import annotations

import re
from graphlib import TopologicalSorter
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


def test_files_use_each_other_in_one_direction() -> None:
    texts = sources()
    home = {name: path for path, text in texts.items() for name in defined(text)}
    uses = {
        path: {home[name] for name in re.findall(r"\bph_\w+", text) if name in home} - {path}
        for path, text in texts.items()
    }
    list(TopologicalSorter(uses).static_order())  # CycleError names the files of a circle


def includes(path: Path) -> list[str]:
    return re.findall(r'#include "(rank/[\w/]+\.h)"', path.read_text())


def test_each_layer_includes_its_own_header() -> None:
    for path in sources():
        if path.parent != RANK:
            assert includes(path) == [f"rank/{path.parent.name}/{path.parent.name}.h"], path


def test_a_header_of_a_layer_includes_those_below_it() -> None:
    """`LAYER.h` is for stubs, `LAYER/LAYER.h` for the runtime alone."""
    below = ""
    for name in LAYERS:
        assert includes(RANK / f"{name}.h") == ([f"rank/{below}.h"] if below else []), name
        inner = [f"rank/{name}.h", *([f"rank/{below}/{below}.h"] if below else [])]
        assert includes(RANK / name / f"{name}.h") == inner, name
        below = name
    assert includes(RANK / "rank.h") == [f"rank/{below}.h"]


def test_a_header_declares_what_its_layer_defines() -> None:
    homes = {name: path for path, text in sources().items() for name in defined(text)}
    wrong = []
    for header in (*(RANK / f"{name}.h" for name in LAYERS), RANK / "rank.h"):
        declared = re.findall(
            r"^(?!typedef)[a-z_][\w *]*[ *](ph_\w+)\(", COMMENT.sub("", header.read_text()), re.MULTILINE
        )
        assert len(declared) > 5, header
        for name in declared:
            home = homes.get(name)
            if home and (home.parent.name if home.parent != RANK else "rank") != header.stem:
                wrong.append(f"{header.name} declares {name} of {home.relative_to(RANK)}")
    assert wrong == []
