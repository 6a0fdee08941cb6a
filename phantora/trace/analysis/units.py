"""Numbers as text."""

from __future__ import annotations

import re


def duration(ns: float) -> str:
    """A time in a unit that fits: ``12.34 ms``; seconds to the millisecond, ``1.019 s``."""
    for unit, scale, digits in (("s", 1e9, 3), ("ms", 1e6, 2), ("us", 1e3, 2)):
        if abs(ns) >= scale:
            return f"{ns / scale:.{digits}f} {unit}"
    return f"{ns:.0f} ns"


def amount(number: float) -> str:
    """Up to four digits of a small number, all before the point of a large one: ``27.58``, ``112,983``."""
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.4g}"


def size(count: float) -> str:
    """Bytes in a unit that fits, binary as torch prints memory: ``1.25 GiB``, ``12.5 MiB``."""
    if abs(count) >= 2**30:
        return f"{count / 2**30:.2f} GiB"
    for unit, scale in (("MiB", 2**20), ("KiB", 2**10)):
        if abs(count) >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count:.0f} B"


def percent(part: float, whole: float) -> str:
    """``12.3%``, or ``-`` of nothing."""
    return f"{100 * part / whole:.1f}%" if whole else "-"


def rate(bytes_per_second: float | None) -> str:
    """GB/s, decimal as vendors and nccl-tests count."""
    return "-" if bytes_per_second is None else f"{bytes_per_second / 1e9:.1f} GB/s"


def cut(text: str, width: int) -> str:
    """`text`, with an ellipsis at its end where it is longer than `width` characters."""
    return text if len(text) <= width else text[: width - 1] + "…"


_TEMPLATE = re.compile(r"<[^<>]*>|\([^()]*\)")


def short_name(name: str, width: int) -> str:
    """A kernel's name without return type, template and call arguments, cut to `width`."""
    text = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    while (stripped := _TEMPLATE.sub("", text)) != text:
        text = stripped
    inner = re.search(r"(\w+(?:Functor|Op|_impl|_kernel)\w*)", name[len(text) :]) if "elementwise" in text else None
    text = text.replace("at::native::", "").strip() or name
    if inner:
        text = f"{text} {inner[1]}"
    return cut(text, width)
