"""Progress bars of tqdm: ``Epoch 0:  55%|█████▍    | 350/640 [00:09<00:07, 37.56it/s, v_num=0]``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from phantora.framework_logs.reader import NUMBER

_BAR = re.compile(
    r"(?:^|\s)(?:(?P<title>[A-Za-z][\w ]*?):?\s+)?(?:\d+%\|[^|]*\|\s*)?(?P<done>\d+)/(?P<whole>\d+) "
    rf"\[[\d:]+<[\d:?]+,\s*(?P<rate>{NUMBER})(?P<unit>it/s|s/it)"
)


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A state of a bar."""

    title: str
    done: int
    whole: int
    seconds: float
    """Time of an iteration, by the bar's rate."""
    digit: float
    """What the last digit of the rate stands for, as a share of it."""


def bar_of(line: str) -> Bar | None:
    """The bar in a line, if it has one with a rate."""
    match = _BAR.search(line) if "it/s" in line or "s/it" in line else None
    if match is None or not float(match["rate"]):
        return None
    rate = float(match["rate"])
    digit = 10.0 ** -len(match["rate"].partition(".")[2])
    return Bar(
        title=match["title"] or "",
        done=int(match["done"]),
        whole=int(match["whole"]),
        seconds=1 / rate if match["unit"] == "it/s" else rate,
        digit=digit / rate,
    )
