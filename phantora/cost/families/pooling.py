"""Pools of images: largest, mean and adaptive ones."""

from __future__ import annotations

from math import ceil, gcd, prod

from phantora.cost import coordinates
from phantora.cost.coordinates import Place
from phantora.cost.families.elementwise import passes_memory
from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import int_tuples, item_bytes, nbytes, on_gpu
from phantora.cost.types import OperatorSignature, TensorSpec
from phantora.ttir.work import WARP

# Cycles of an SM per element of the input, forward and backward: read from traces on H200 (docs/accuracy.md).
CYCLES = (1.05, 2.60)
# Per element of a window, where windows overlap: Inception's 3x3 means of every pixel on an H100
# (validation/workloads/image_models.py) and ResNet's maxima of every other agree within a tenth.
WINDOW_CYCLES = (0.47, 0.55)
# Of images: SM cycles of an element that is written, and of each that it reads, by direction and channels last. From
# 117 pools of an H100 (validation/probes/operators_wide.py): 1 to 3 % off in the median.
STRIDE_CYCLES = 0.45  # and of each element between the first ones of two windows, means of channels last
IMAGES = {
    ("avg", False, False): (2.42, 0.14),
    ("avg", False, True): (4.0, 0.2),
    ("avg", True, False): (4.2, 0.51),
    ("avg", True, True): (4.2, 0.56),
    ("max", False, False): (2.3, 0.23),
    ("max", False, True): (0.36, 0.52),
    ("max", True, False): (2.42, 0.11),
    ("max", True, True): (0.59, 0.51),
}
# Largest of volumes: SM cycles of a warp for each element of its windows. 20 forward pools of H100 and H200 are within
# a tenth. Backward: of an atomic addition, of float32 and of 16-bit formats, and the least of a warp, from four pools
# of windows that do not overlap and one of bfloat16.
VOLUME_CYCLES, ADDED_CYCLES, ADDED_WARP_CYCLES = 16.0, (3.3, 6.6), 40.0
# Adaptive, channels first: a block of 8 rows of 32 threads for each plane, in two dimensions for as many parts of it as
# make 16 blocks of an image's channels. A thread goes over its places of the result (backward the mean adds to all
# places of a window). Of a place: ns of itself and of each element of its window, forward and backward; SM cycles of a
# warp. From 33 of them on an H200 (validation/probes/program_operators.py).
ADAPTIVE_BLOCK, ADAPTIVE_BLOCKS, ADAPTIVE_PER_SM = (8, 32), 16, 8
ADAPTIVE_NS = {
    ("avg", False): (700.0, 35.0),
    ("avg", True): (550.0, 6.0),
    ("max", False): (700.0, 36.0),
    ("max", True): (600.0, 0.0),
}
ADAPTIVE_VOLUME_NS = 200.0  # of an element, in three dimensions
ADDED_NS = 580.0  # of an element that is added to in 16 bits, by comparing and swapping
ADAPTIVE_WARP_CYCLES, ADAPTIVE_READ_CYCLES = 80.0, 4.3
# Channels last (54 of the shipped table): of an element that a thread reads, forward and backward; SM cycles of an
# element; threads of an image where the grid is not known.
LAST_START_NS, LAST_NS, LAST_CYCLES, LAST_THREADS = 2500.0, (290.0, 500.0), (0.4, 0.9), 1024


def classify(name: str) -> str | None:
    """Names hold it."""
    return "reduction" if "pool" in name else None


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """Bound by its loads, or by memory."""
    given = on_gpu(signature.args)
    if not given:
        return passes_memory(machine, signature, name, kernels)
    backward = "backward" in name
    x = given[1] if backward and len(given) > 1 else given[0]
    moved = float(sum(nbytes(t) for t in given) + (nbytes(x) if backward else 0.75 * nbytes(x)))
    if (work := _of_images(signature, name, x, backward)) > 0:
        return Estimate(max(machine.fit.floor_ns + machine.cycles_ns(work), machine.memory_ns(moved)), moved)
    if name.startswith("max_pool3d") and (ns := _of_volumes(machine, signature, given, backward)) > 0:
        return Estimate(max(machine.fit.floor_ns + ns, machine.memory_ns(moved)), moved)
    if "adaptive" in name and (ns := _adaptive(machine, signature, name, given, kernels)) > 0:
        moved = float(sum(nbytes(t) for t in given if t is not x)) if backward else moved
        return Estimate(max(machine.fit.floor_ns + ns, machine.memory_ns(moved)), moved)
    reads = max(prod(x.shape) * CYCLES[backward], _in_windows(signature, x) * WINDOW_CYCLES[backward])
    cycles = machine.cycles_ns(reads)
    return Estimate(max(machine.fit.floor_ns + cycles, machine.memory_ns(moved)), moved)


def _of_images(signature: OperatorSignature, name: str, x: TensorSpec, backward: bool) -> float:
    """SM cycles of a pool over two dimensions; 0 for others."""
    found = _windows(signature, x, 2)
    if not name.startswith(("avg_pool2d", "max_pool2d")) or len(x.shape) != 4 or found is None:
        return 0.0
    window, stride, sizes = found
    out, read = prod(x.shape[:2]) * prod(sizes), prod(window)
    start, each = IMAGES[name[:3], backward, x.stride[1] == 1]
    if backward:  # an element adds up the windows that it lies in
        return float(prod(x.shape) * (start + each * read * out / max(1, prod(x.shape))))
    between = prod(stride) - 1 if name.startswith("avg") and x.stride[1] == 1 else 0
    return float(out * (start + each * read + STRIDE_CYCLES * between))


def _adaptive(
    machine: Machine, signature: OperatorSignature, name: str, given: list[TensorSpec], kernels: Kernels
) -> float:
    """ns of an adaptive pool; 0 for one whose extents are not as expected."""
    dims, kind, backward = (3 if "3d" in name else 2), "max" if "max" in name else "avg", "backward" in name
    x = given[1] if backward and len(given) > 1 else given[0]
    sizes = given[0].shape[-dims:] if backward else next(iter(int_tuples(signature.args)), ())
    if len(sizes) != dims or len(x.shape) <= dims or 0 in sizes or 0 in x.shape:
        return 0.0
    planes = prod(x.shape[:-dims])
    window = prod(n / m + 1.0 - gcd(n, m) / m for n, m in zip(x.shape[-dims:], sizes, strict=True))  # mean
    rows, columns = ADAPTIVE_BLOCK
    if dims == 2 and kind == "avg" and x.stride[-3] == 1 and x.shape[-3] > 1:
        elements = prod(x.shape) if backward else planes * prod(sizes) * window
        threads = sum(prod(k.grid) * prod(k.block) for k in kernels) or LAST_THREADS * prod(x.shape[:-3])
        issue = machine.cycles_ns(elements * LAST_CYCLES[backward])
        return LAST_START_NS + max(elements / threads * LAST_NS[backward], issue)
    parts = max(1, ADAPTIVE_BLOCKS // x.shape[-3]) if dims == 2 and kind == "avg" else 1
    blocks = planes * (parts if dims == 2 else sizes[0])
    start, each = ADAPTIVE_NS[kind, backward]
    each = ADAPTIVE_VOLUME_NS if dims == 3 and not backward else each
    if backward and kind == "avg" and item_bytes(x.dtype) < 4:
        each = ADDED_NS
    turns = ceil(sizes[-2] / (rows * parts)) * ceil(sizes[-1] / columns)
    waves = max(1.0, blocks / (machine.gpu.sms * ADAPTIVE_PER_SM))
    warps = planes * (sizes[0] if dims == 3 else 1) * sizes[-2] * ceil(sizes[-1] / columns)
    issue = machine.cycles_ns(warps * (ADAPTIVE_WARP_CYCLES + (ADAPTIVE_READ_CYCLES * window if each else 0.0)))
    return float(max(waves * turns * (start + each * window), issue))


def _of_volumes(machine: Machine, signature: OperatorSignature, given: list[TensorSpec], backward: bool) -> float:
    """ns of a largest pool over three dimensions; 0 if its windows are not as expected.

    A warp takes results that lie in one row. Backward, it adds each gradient to the place of its maximum.
    """
    x = given[1] if backward and len(given) > 1 else given[0]
    found = _windows(signature, x, 3)
    if len(x.shape) not in (4, 5) or found is None:
        return 0.0
    window, _, sizes = found
    rows = prod(x.shape[:-3]) * sizes[0] * sizes[1]
    warps = rows * ceil(sizes[2] / WARP)
    if not backward:
        return machine.cycles_ns(warps * prod(window) * VOLUME_CYCLES)
    added = rows * sizes[2] * ADDED_CYCLES[item_bytes(x.dtype) < 4]
    return machine.cycles_ns(max(added, warps * ADDED_WARP_CYCLES))


_Extents = tuple[int, ...]


def _windows(signature: OperatorSignature, x: TensorSpec, dims: int) -> tuple[_Extents, _Extents, _Extents] | None:
    """Extents of windows, their strides, and the extents of the result; None if the operator gives no such windows."""
    given = int_tuples(signature.args)
    if len(given) < 3 or len(x.shape) <= dims or not given[0]:
        return None
    window, stride, padding = (v * dims if len(v) == 1 else v for v in (given[0], given[1] or given[0], given[2]))
    if not len(window) == len(stride) == len(padding) == dims or 0 in stride:
        return None
    extents = zip(x.shape[-dims:], padding, window, stride, strict=True)
    return window, stride, tuple(max(1, (n + 2 * p - k) // s + 1) for n, p, k, s in extents)


def _in_windows(signature: OperatorSignature, x: TensorSpec) -> float:
    """Elements of all windows on `x`; 0 where the operator does not say (adaptive ones: windows hardly overlap)."""
    given = int_tuples(signature.args)
    if len(given) < 2 or "adaptive" in signature.name:
        return 0.0
    window, stride = given[0], given[1] or given[0]
    dims = len(window)
    if len(stride) != dims or len(x.shape) <= dims:
        return 0.0
    return float(prod(x.shape)) * float(prod(w / max(1, s) for w, s in zip(window, stride, strict=True)))


def places(signature: OperatorSignature, name: str, compute: str, launches: int) -> tuple[Place, ...]:
    """Rows, by the extents and strides of windows."""
    windows = int_tuples(signature.args)[:2]
    if len(windows) == 2 and not windows[1]:
        windows[1] = windows[0]  # the stride of windows that lie one after the other
    return coordinates.by_rows(signature, name, launches, str(windows), wider=True, images="norm" in name)


FAMILY = Family("pooling", classify=classify, estimate=estimate, precedence=60, places=places)
