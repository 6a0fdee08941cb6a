"""What takes the place of values that a simulation does not have, where zeros are a bad assumption (docs/values.md)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from phantora.errors import PhantoraError

OPTION = "--assume"
VARIABLE = "PHANTORA_ASSUME"
KEYS = {
    "choice": "spread (default: argmax, topk and sampling take other candidates in turn) or first",
    "mask": "the share of true elements in an unknown mask, 0 to 1 (default 0)",
    "loss": "the value of losses, or FIRST:LAST:STEPS, which falls by equal factors over optimizer steps (default 0)",
}


def parse_assumptions(given: Sequence[str]) -> str:
    """``KEY=VALUE`` options as the tracer reads them: ``choice=first,loss=2.5``. Raises PhantoraError."""
    found: dict[str, str] = {}
    for option in given:
        key, equals, value = option.partition("=")
        if not equals or key not in KEYS:
            known = "; ".join(f"{name}={meaning}" for name, meaning in KEYS.items())
            raise PhantoraError(f"{OPTION} {option}: give {known}")
        if not _is_valid(key, value):
            raise PhantoraError(f"{OPTION} {option}: {key} is {KEYS[key]}")
        found[key] = value
    return ",".join(f"{key}={value}" for key, value in sorted(found.items()))


def _is_valid(key: str, value: str) -> bool:
    if key == "choice":
        return value in ("spread", "first")
    try:
        numbers = [float(part) for part in value.split(":")]
    except ValueError:
        return False
    if not all(map(math.isfinite, numbers)):
        return False
    if key == "mask":
        return len(numbers) == 1 and 0 <= numbers[0] <= 1
    return len(numbers) == 1 or (len(numbers) == 3 and min(numbers) > 0)
