"""Runs a script of a checkout of Megatron-LM and prints what it would write for TensorBoard, as JSON lines.

    PYTHONPATH=CHECKOUT phantora trace --cluster 1x8xH100 -m validation.workloads.megatron_script SCRIPT [OPTION ...]

Megatron-LM's last rank writes bytes of memory and the time of each iteration there.
"""

from __future__ import annotations

import json
import runpy
import sys
import typing
from pathlib import Path
from types import ModuleType
from typing import Any

PRINTED = ("mem-allocated-bytes", "mem-max-allocated-bytes", "iteration-time")


class SummaryWriter:
    """Of TensorBoard, as far as Megatron-LM calls it."""

    def __init__(self, **_: Any) -> None:
        pass

    def add_scalar(self, name: str, value: Any, step: int) -> None:
        """Prints the scalars that tests of Megatron-LM record."""
        if name in PRINTED:
            print(json.dumps({"scalar": name, "value": float(value), "step": step}), flush=True)

    def add_text(self, name: str, text: str, **_: Any) -> None:
        """Does nothing."""

    def flush(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


def main() -> None:
    module: Any = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter
    sys.modules[module.__name__] = module
    if not hasattr(typing, "override"):  # before Python 3.12
        setattr(typing, "override", lambda method: method)  # noqa: B010
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
