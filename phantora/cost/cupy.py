"""CuPy's elementwise kernels, priced by the bytes in their names.

``cupy_multiply__float32_float_float32`` takes an array and a Python number, and gives an array. A thread computes one
element. Broadcast arrays count in full.
"""

from __future__ import annotations

import re
from math import prod

from phantora.cost.family import Estimate
from phantora.cost.machine import Machine
from phantora.cost.types import KernelLaunch

ERROR = 0.5
"""Not measured; arrays may be broadcast or strided."""
_NAME = re.compile(r"cupy_\w+?__((?:(?:bool|(?:u?int|float|complex)\d*)(?:_|$))+)$")
_TYPE = re.compile(r"bool|[a-z]+(\d+)")


def estimate(machine: Machine, kernel: KernelLaunch) -> Estimate | None:
    """The time of its bytes; None for any other kernel."""
    found = _NAME.match(kernel.name)
    if not found:
        return None
    types = (_TYPE.fullmatch(name) for name in found[1].split("_"))
    width = sum(int(of[1] or 8) // 8 for of in types if of)  # numbers of Python have no width
    moved = float(prod(kernel.grid) * prod(kernel.block) * width)
    return Estimate(machine.memory_ns(moved), moved, error=ERROR, cls="elementwise")
