"""Places of the published measurements: folders of github.com/ai-dynamo/aiconfigurator by our names of GPUs."""

from __future__ import annotations

import sys
from pathlib import Path

FOLDERS = {
    "a100_sxm": "A100-80GB",
    "l40s": "L40S",
    "b200_sxm": "B200",
    "b300_sxm": "B300",
    "gb200": "GB200",
    "gb300": "GB300",
    "rtx_pro_6000_server": "RTX-PRO-6000",
}
OURS = {"h100_sxm": "H100", "h200_sxm": "H200"}


def only(folder: Path, pattern: str) -> Path:
    """The newest file of the pattern."""
    found = sorted(folder.glob(pattern))
    if not found:
        sys.exit(f"{folder}: there is no {pattern}")
    return found[-1]
