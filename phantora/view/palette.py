"""Colours of concepts: those of ``viewers/style.css``, for what is drawn outside of the pages."""

from __future__ import annotations

import re
from functools import cache

from phantora.view.pages import viewers

_OTHER = re.compile(r"var\(--([\w-]+)\)")
_VARIABLE = re.compile(r"--([\w-]+): ([^;]+);")


def color(name: str) -> str:
    """``#rrggbb`` of a class of work, a cause of stalls or a kind of memory, as light pages have it; else grey."""
    found = _colors().get("color-" + re.sub(r"[^\w-]+", "-", name), "var(--color-other)")
    while other := _OTHER.fullmatch(found):
        found = _colors()[other[1]]
    return found


@cache
def _colors() -> dict[str, str]:
    style = (viewers() / "style.css").read_text(encoding="utf-8")
    return dict(_VARIABLE.findall(style.split("@media", 1)[0]))
