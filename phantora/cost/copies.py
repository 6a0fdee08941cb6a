"""Copies and memsets: latency plus bytes over the link that carries them.

Measured on H200 (PCIe 5.0 x16, mem_bw.py) between 1 KiB and 1 GiB.
"""

from __future__ import annotations

from phantora.cost.machine import Machine

PCIE_SHARE = 0.881  # 55.5 of 63 GB/s
LATENCY_NS = 1500.0  # on the device; the host's part is charged to the host
PAGEABLE_BANDWIDTH = 18e9  # bytes/s: through the driver's staging buffer, bound by one host core
PAGEABLE_LATENCY_NS = 6000.0
PEER_SHARE = 0.82  # of the NVLink's raw rate, copies by SMs or copy engines
PEER_LATENCY_NS = 2500.0
DEVICE_SHARE = 0.965  # of a vectorised stream
MEMSET_SHARE = 0.77
HOST_BANDWIDTH = 12e9


def copy_ns(machine: Machine, kind: str, size: int) -> float:
    gpu = machine.gpu
    if kind in ("h2d_pinned", "d2h_pinned"):
        return LATENCY_NS + size / (gpu.pcie_bandwidth * PCIE_SHARE) * 1e9
    if kind in ("h2d_pageable", "d2h_pageable"):
        rate = min(PAGEABLE_BANDWIDTH, gpu.pcie_bandwidth * PCIE_SHARE)
        return PAGEABLE_LATENCY_NS + size / rate * 1e9
    if kind == "d2d":
        return machine.memory_ns(2.0 * size, DEVICE_SHARE)
    if kind == "p2p":
        link = gpu.nvlink_bandwidth or gpu.pcie_bandwidth
        return PEER_LATENCY_NS + size / (link * PEER_SHARE) * 1e9
    return LATENCY_NS + size / HOST_BANDWIDTH * 1e9  # h2h


def memset_ns(machine: Machine, size: int) -> float:
    return machine.memory_ns(float(size), MEMSET_SHARE)
