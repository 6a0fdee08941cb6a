"""Duration of a measured kernel inside a step: prices in the simulator, tables of `phantora profile`."""

from __future__ import annotations

from collections.abc import Sequence

from phantora.cost.table import Entry, TimedKernel
from phantora.cost.types import KernelLaunch

COLD_CLASSES = frozenset(("copy", "optimizer", "fill"))
"""Classes whose operands were written long before (parameters, gradients, states). If the L2 residency is unknown, they
take the time out of memory. Others follow the kernel that wrote their input, part of which is still in L2: they take
the mean of the cold and the warm time."""

# cuDNN launches this kernel before the one ahead of it has ended, and it waits for that one: in the traces of two
# ResNets it lasted up to 28 us, and ended 2.9 to 3.3 us after the other.
_EARLY, EARLY_NS = "init_device_workspace_kernel", 3100.0


def kernel_ns(kernel: TimedKernel, cls: str, l2_hits: float | None = None) -> float:
    """The time of a measured kernel as it runs in a step. `l2_hits`: the share of its operator's operands that L2
    holds; None: not known."""
    if l2_hits is None:
        l2_hits = 0.0 if cls in COLD_CLASSES else 0.5
    ns = kernel.cold * (1.0 - l2_hits) + kernel.warm * l2_hits
    return min(ns, EARLY_NS) if _EARLY in kernel.name else ns


def own_kernels(entry: Entry) -> list[TimedKernel]:
    """The kernels of an entry, without copies and memsets, which are recorded and priced separately."""
    return [kernel for kernel in entry.kernels if kernel.kind == "kernel"]


def launches_of(kernels: Sequence[TimedKernel]) -> tuple[KernelLaunch, ...]:
    """Measured kernels as launches."""
    return tuple(KernelLaunch(kernel.name, kernel.grid, kernel.block) for kernel in kernels)
