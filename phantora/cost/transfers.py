"""Copies and memsets: latency plus bytes over the link that carries them, or read off a measured curve.

The formula is measured on H200 (PCIe 5.0 x16, mem_bw.py) between 1 KiB and 1 GiB.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from math import log2

import numpy as np

from phantora.cost.machine import Machine
from phantora.cost.table import Table
from phantora.cost.types import Price
from phantora.hardware.builders import PCIE_SHARE

LATENCY_NS = 1500.0  # on the device; the host's part is charged to the host
PAGEABLE_BANDWIDTH = 18e9  # bytes/s: through the driver's staging buffer, bound by one host core
PAGEABLE_LATENCY_NS = 6000.0
PEER_SHARE = 0.83  # of the NVLink's raw rate; two H100, 2 KiB to 32 MiB (validation/probes/symmetric_memory.py)
PEER_LATENCY_NS = 3700.0  # of copies behind each other, there
DEVICE_SHARE = 0.965  # of a vectorised stream
# Copies inside a GPU of more than SMALL bytes that are no whole number of pages take longer, as 57 sizes on an H100 say
# (1 to 2 KiB more than 1.5 MiB 4.8 us, 4 KiB more 2.7; at 6 MiB 8.0 and 5.8; at 96 MiB 70 and 67.5).
SMALL, PAGE, PART_PAGE_NS = 1 << 20, 4096, 2200.0
MEMSET_SHARE = 0.77
HOST_BANDWIDTH = 12e9  # from host memory to host memory

CURVE_ERROR = 0.11
"""Relative, between two measured sizes: 90th percentile with one size hidden (validation/compare/leave_out.py)."""
REPEATED_ERROR = 0.02
"""Relative, of a measured size: spread of repetitions."""


def copy_ns(machine: Machine, kind: str, size: int) -> float:
    """ns of a copy of `size` bytes; `kind` is ``d2d``, ``p2p`` or ``h2d``/``d2h`` with ``_pinned`` or ``_pageable``."""
    gpu = machine.gpu
    host = (gpu.host_bandwidth or gpu.pcie_bandwidth) * PCIE_SHARE  # the same share of NVLink-C2C: an assumption
    if kind in ("h2d_pinned", "d2h_pinned"):
        return LATENCY_NS + size / host * 1e9
    if kind in ("h2d_pageable", "d2h_pageable"):
        rate = min(PAGEABLE_BANDWIDTH, host)
        return PAGEABLE_LATENCY_NS + size / rate * 1e9
    if kind == "d2d":
        rest = 0.0 if in_pages(size) or size <= SMALL else PART_PAGE_NS
        return machine.memory_ns(2.0 * size, DEVICE_SHARE) + rest
    if kind == "p2p":
        link = gpu.nvlink_bandwidth or gpu.pcie_bandwidth
        return PEER_LATENCY_NS + size / (link * PEER_SHARE) * 1e9
    return LATENCY_NS + size / HOST_BANDWIDTH * 1e9  # h2h


def in_pages(size: int) -> bool:
    """True for a whole number of pages."""
    return size % PAGE == 0


def memset_ns(machine: Machine, size: int) -> float:
    """ns of a fill of `size` bytes."""
    return machine.memory_ns(float(size), MEMSET_SHARE)


def transfer_price(tables: Iterable[Table], base: Price, name: str, first: tuple[str, ...], size: int) -> Price:
    """The price of `size` bytes in the first table with a curve of the kind; `base` without one.

    `name` is ``copy``, with the kind of copy as `first` argument, or ``memset``.
    """
    for table in tables:
        points = curve(table, name, first, in_pages(size))
        if len(points) < 2 or size <= 0:
            continue
        measured = size in points
        return replace(
            base,
            durations=(max(1, round(read_curve(points, size))),),
            provenance="measured" if measured else "interpolated",
            error=REPEATED_ERROR if measured else CURVE_ERROR,
        )
    return base


@lru_cache(maxsize=64)
def curve(table: Table, name: str, first: tuple[str, ...], paged: bool) -> dict[int, float]:
    """Measured ns by bytes, ascending, of copies of one kind or of memsets.

    Copies inside a GPU have two curves: of `paged` sizes (whole pages), and of others. The caller does not change them.
    """
    found = {
        int(entry.parsed.args[-1]): float(sum(kernel.cold for kernel in entry.kernels))
        for entry in table.of_operator(name)
        if entry.parsed.name.startswith("phantora::") and entry.parsed.args[:-1] == first
    }
    if first == ("d2d",):
        found = {s: ns for s, ns in found.items() if s <= SMALL or in_pages(s) == paged}
    return dict(sorted(found.items()))


def read_curve(points: Mapping[int, float], size: int) -> float:
    """ns of `size` bytes: linear between logarithms, and the rate of the largest size beyond it."""
    at, ns = np.log2(np.maximum(1, list(points))), np.log(list(points.values()))
    beyond = max(1.0, size / 2.0 ** at[-1])
    return float(beyond * np.exp(np.interp(log2(size), at, ns)))
