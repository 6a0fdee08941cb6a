"""Images that are made larger or smaller, with weights between pixels."""

from __future__ import annotations

from math import prod

from phantora.cost import coordinates
from phantora.cost.coordinates import Place
from phantora.cost.families.elementwise import passes_memory
from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import ints_at, nbytes, on_gpu
from phantora.cost.types import OperatorSignature

# SM cycles of an element of the larger image, forward and backward; the backward pass adds it to four pixels. From the
# 52 measured calls of the H100's table.
CHANNELS_LAST = (2.35, 2.25)
CHANNELS_FIRST = (1.8, 2.6)
PLANE_NS = 390.0  # forward, channels first: a thread for each pixel goes over all channels of all images; 270 to 450


def classify(name: str) -> str | None:
    """Bilinear and bicubic ones; nearest ones copy."""
    return "elementwise" if name.startswith(("upsample_bilinear2d", "_upsample_bilinear2d_aa")) else None


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """Bound by what is computed for each element of the output, or of its gradient."""
    given = on_gpu(signature.args)
    if not given or len(given[0].shape) != 4:
        return passes_memory(machine, signature, name, kernels)
    backward, x = "backward" in name, given[0]
    size = ints_at(signature.args, 1)
    pixels = prod(x.shape[2:]) if backward or len(size) != 2 else prod(size)
    elements = float(prod(x.shape[:2]) * pixels)
    last = len(x.stride) == 4 and x.stride[1] == 1
    moved = float(nbytes(x)) + elements * nbytes(x) / max(1, prod(x.shape))
    work = machine.cycles_ns(elements * (CHANNELS_LAST if last else CHANNELS_FIRST)[backward])
    if not last and not backward:
        work = max(work, prod(x.shape[:2]) * PLANE_NS)
    return Estimate(max(machine.memory_ns(moved), machine.fit.floor_ns + work), moved)


def places(signature: OperatorSignature, name: str, compute: str, launches: int) -> tuple[Place, ...]:
    """By the elements, of each layout."""
    return coordinates.by_size(signature, name, compute, launches)


FAMILY = Family("resizing", classify, estimate, 62, places=places)
