"""Images that are made larger or smaller, or sampled at given points.

Constants: measured calls of the H100's table, 52 bilinear ones and those of validation/probes/operators_wide.py.
"""

from __future__ import annotations

from dataclasses import replace
from math import log2, prod

from phantora.cost import coordinates
from phantora.cost.coordinates import Place
from phantora.cost.families.elementwise import passes_memory
from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import ints_at, item_bytes, nbytes, on_gpu, tensor_at
from phantora.cost.types import OperatorSignature, TensorSpec

# Bilinear: SM cycles of an element of the larger image, forward and backward; the backward pass adds it to four pixels.
CHANNELS_LAST = (2.35, 2.25)
CHANNELS_FIRST = (1.8, 2.6)
PLANE_NS = 390.0  # forward, channels first: a thread for each pixel goes over all channels of all images; 270 to 450
# Backward, of images of one pixel: all additions of a plane go to one address, one after the other. deeplab of
# validation/workloads: 22.26 ms for 11.06 M elements from one pixel, and 0.5 ms of the other resizing.
ONE_PIXEL_NS = 1.97
NEAREST_CYCLES = (0.72, 1.63)  # of an element that is written, channels first and last
# Backward, nearest: an element that is written also adds up what it reads, SM cycles of each doubling of these (75 of
# the shipped table). Channels first, a thread goes over the images, one after the other (validation/probes/
# program_operators.py, with those below).
GATHERED_CYCLES, IMAGE_NS, GATHERED_NS = (0.4, 0.8), 400.0, 85.0
# Three dimensions, channels first (a video decoder on an H200, 3 to 42 M elements, torch.profiler): of an element that
# is written, forward and backward, and of each doubling of what it adds up. The start: the shipped tables' small ones.
VOLUME_CYCLES, VOLUME_GATHERED_CYCLES, VOLUME_START_NS = (3.25, 1.05), 1.46, 1200.0
# A thread goes over the images with one index, forward: what each further one adds (24 of volume_operators.py).
VOLUME_IMAGE = 0.1
# Of one and of three dimensions: a place of the output in a channel, forward and backward (32 and 16 bits).
LINE_NS, LINE_CYCLES, LINE_BACKWARD_NS = 300.0, 3.6, (800.0, 1100.0)
# Others give each place of the output, in all channels, to one thread: what a channel takes, and threads of a wave.
CUBIC_NS = (600.0, 4000.0)  # 16 points, channels first and last
CUBIC_BACKWARD_NS = (3700.0, 45000.0)  # additions in 32 and in 16 bits
SAMPLE_NS, SAMPLE_BACKWARD_NS = 300.0, (700.0, 1650.0)  # four points
WAVE, WAVE_OF_ADDITIONS = 2048, 182  # of an SM


def classify(name: str) -> str | None:
    """Class by name; resizing by area is a pool."""
    kinds = (
        "upsample_bilinear2d",
        "_upsample_bilinear2d_aa",
        "upsample_bicubic2d",
        "_upsample_nearest_exact",
        "upsample_nearest",
        "upsample_linear1d",
        "upsample_trilinear3d",
        "grid_sampler",
    )
    return "elementwise" if name.startswith(kinds) else None


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """Bound by what is computed for each element of the output, or of its gradient."""
    given = on_gpu(signature.args)
    if not given or not 3 <= len(given[0].shape) <= 5:
        return passes_memory(machine, signature, name, kernels)
    backward, x = "backward" in name, given[0]
    if name.startswith("grid_sampler"):
        return _sampled(machine, signature, x, backward)
    if "nearest" in name:
        return _nearest(machine, signature, x, backward)
    size = ints_at(signature.args, 1)
    pixels = prod(x.shape[2:]) if backward or len(size) != len(x.shape) - 2 else prod(size)
    planes = prod(x.shape[:2])
    elements = float(planes * pixels)
    moved = float(nbytes(x)) + elements * nbytes(x) / max(1, prod(x.shape))
    if "bicubic" in name:
        each = CUBIC_BACKWARD_NS[item_bytes(x.dtype) < 4] if backward else CUBIC_NS[_last(x)]
        return _by_place(machine, pixels, planes, each, WAVE, moved)
    if "linear" in name and len(x.shape) != 4:
        each = LINE_BACKWARD_NS[item_bytes(x.dtype) < 4] if backward else LINE_NS
        found = _by_place(machine, pixels, planes, each, WAVE, moved)
        return replace(found, ns=max(found.ns, machine.fit.floor_ns + machine.cycles_ns(elements * LINE_CYCLES)))
    last = _last(x)
    work = machine.cycles_ns(elements * (CHANNELS_LAST if last else CHANNELS_FIRST)[backward])
    if not last and not backward:
        work = max(work, planes * PLANE_NS)
    if backward and prod(ints_at(signature.args, 2)[2:]) == 1:
        work = max(work, elements * ONE_PIXEL_NS)
    return Estimate(max(machine.memory_ns(moved), machine.fit.floor_ns + work), moved)


def _last(x: TensorSpec) -> bool:
    return len(x.stride) in (4, 5) and x.stride[1] == 1 and prod(x.shape[2:]) > 1 < x.shape[1]


def _nearest(machine: Machine, signature: OperatorSignature, x: TensorSpec, backward: bool) -> Estimate:
    size = ints_at(signature.args, 2 if backward else 1)
    dims, last = len(x.shape) - 2, _last(x)
    pixels = prod(size[-dims:]) if len(size) >= dims else prod(x.shape[2:])
    written = prod(x.shape[:2]) * pixels
    moved = item_bytes(x.dtype) * float(written + (prod(x.shape) if backward else min(prod(x.shape), 4 * written)))
    volume = dims == 3 and not last
    cycles, waits = VOLUME_CYCLES[backward] if volume else NEAREST_CYCLES[last], 0.0
    if backward:
        read = prod(x.shape) / max(1, written)
        cycles += (VOLUME_GATHERED_CYCLES if volume else GATHERED_CYCLES[last]) * log2(max(1.0, read))
        waits = 0.0 if last else x.shape[0] * (IMAGE_NS + GATHERED_NS * read)
    elif volume:
        cycles *= (1.0 + VOLUME_IMAGE * (x.shape[0] - 1)) / max(1, x.shape[0])
    work = max(machine.cycles_ns(written * cycles), waits) + volume * VOLUME_START_NS
    return Estimate(max(machine.memory_ns(moved), machine.fit.floor_ns + work), moved)


def _sampled(machine: Machine, signature: OperatorSignature, x: TensorSpec, backward: bool) -> Estimate:
    grid = tensor_at(signature.args, 2 if backward else 1)
    places = prod(grid.shape[:-1]) if grid is not None and len(grid.shape) > 3 else x.shape[0] * prod(x.shape[2:])
    moved = float(nbytes(x)) * (3 if backward else 2)
    if backward:
        each = SAMPLE_BACKWARD_NS[item_bytes(x.dtype) < 4]
        return _by_place(machine, places, x.shape[1], each, WAVE_OF_ADDITIONS, moved)
    return _by_place(machine, places, x.shape[1], SAMPLE_NS, WAVE, moved)


def _by_place(machine: Machine, places: int, planes: int, each: float, wave: int, moved: float) -> Estimate:
    waves = max(1.0, places / (machine.gpu.sms * wave))
    return Estimate(machine.fit.floor_ns + max(waves * planes * each, machine.memory_ns(moved)), moved)


def places(signature: OperatorSignature, name: str, compute: str, launches: int) -> tuple[Place, ...]:
    """Places by the elements, of each layout."""
    return coordinates.by_size(signature, name, compute, launches)


FAMILY = Family("resizing", classify=classify, estimate=estimate, precedence=62, places=places)
