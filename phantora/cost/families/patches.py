"""Patches of images as columns (unfold) and back (fold): a thread goes over the taps of its window one after the other.

11 operators on an H200 (validation/probes/program_operators.py).
"""

from __future__ import annotations

from math import ceil, prod

from phantora.cost.families.elementwise import passes_memory
from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import ints_at, item_bytes, nbytes, tensor_at
from phantora.cost.types import OperatorSignature

NAMES = frozenset(("im2col", "col2im"))
LAUNCH_NS = 1000.0
# im2col: a launch for each image. A tap of a thread, and SM cycles of an element that is written.
TAP_NS, CYCLES = 245.0, 0.7
# col2im: a thread for each pixel of all images: itself, its taps (with 64-bit divisions), and threads of an SM.
BACK_NS, BACK_TAP_NS, BACK_THREADS = 2200.0, 900.0, 1024


def classify(name: str) -> str | None:
    """Class by name."""
    return "copy" if name in NAMES else None


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """Bound by the taps of a thread, by stores or by memory."""
    x, back = tensor_at(signature.args, 0), name == "col2im"
    window, dilation, padding, stride = (ints_at(signature.args, place + back) for place in range(1, 5))
    if x is None or not x.shape or not len(window) == len(dilation) == len(padding) == len(stride) == 2:
        return passes_memory(machine, signature, name, kernels)
    floor, taps = machine.fit.floor_ns, prod(window)
    if back:
        pixels = prod(x.shape[:-1]) // max(1, taps) * prod(ints_at(signature.args, 1))
        met = prod(ceil(w / max(1, s)) for w, s in zip(window, stride, strict=True))
        waves = max(1.0, pixels / (machine.gpu.sms * BACK_THREADS))
        moved = float(nbytes(x) + pixels * item_bytes(x.dtype))
        ns = max(waves * (BACK_NS + met * BACK_TAP_NS), machine.memory_ns(moved))
        return Estimate(floor + ns, moved)
    images = x.shape[0] if len(x.shape) > 3 else 1
    extents = zip(x.shape[-2:], window, dilation, padding, stride, strict=True)
    columns = prod(max(1, (n + 2 * p - d * (w - 1) - 1) // max(1, s) + 1) for n, w, d, p, s in extents)
    written = prod(x.shape[-3:-2]) * taps * columns
    moved = nbytes(x) / max(1, images) + float(written * item_bytes(x.dtype))
    each = LAUNCH_NS + max(taps * TAP_NS, machine.cycles_ns(written * CYCLES), machine.memory_ns(moved) - floor)
    return Estimate(images * (floor + each), images * moved)


FAMILY = Family("patches", classify=classify, estimate=estimate)
