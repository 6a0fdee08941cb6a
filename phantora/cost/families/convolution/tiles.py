"""Duration of a convolution's pass by its kernels: tiles in waves, changes of layout, groups one by one.

The kernels' names in the tables give tile and step. Constants are medians over the kernels of an H100's table.
"""

from __future__ import annotations

from math import ceil, hypot, log

from phantora.cost.families.convolution.model import LAYOUT_CYCLES, LAYOUT_ROW, LAYOUT_SHARE
from phantora.cost.families.convolution.passes import INPUT, OUTPUT, WEIGHT, Pass
from phantora.cost.families.gemm import STEP_BYTES
from phantora.cost.machine import Machine
from phantora.cost.tensors import item_bytes

BEGIN_NS = 3000.0  # of a kernel before and after its main loop
# A step of 128 bytes of the inner dimension takes so long on an SM, by the 64 x 64 blocks of a tile: sm90 kernels of
# cuDNN in bf16 (1,252 of 128x128: 404 ns, of 335 to 618; 115 of 256x128: 654; 102 of 64x128: 212; 96 of 64x64: 167)
# and, for tiles of as many bytes, in TF32.
STEP_NS = {1: 135.0, 2: 195.0, 4: 375.0, 8: 660.0}
TILES = ((64, 64), (64, 128), (128, 64), (128, 128), (256, 64), (64, 256), (256, 128), (128, 256))
# Kernels of Ampere, which take any number of channels together with their taps: narrow tiles, and a step's time.
OLD_TILES = ((64, 32, 90.0), (64, 64, 110.0), (128, 32, 110.0), (256, 32, 190.0), (128, 64, 190.0), (128, 128, 350.0))
OLD_NEXT_TO = 3  # tiles of these share an SM
# Filters as large as the image (of a double backward): each step waits for memory, which no other tile reads from L2.
# 18 to 22 ns of an element of the inner dimension in TF32, 8 to 23 in 16 bits (both tables).
LARGE_TAPS, LARGE_STEP_NS = 49, 600.0
LOOP_CHANNELS, LOOP_RESULTS = 16, 64  # the least, and the most in an image
# By arithmetic: how much longer a step takes on the kernels of Hopper, on those of Ampere, in weights' gradients.
SLOWER = {"half": (1.0, 2.0, 1.0), "tf32": (1.1, 3.0, 1.6)}
SLOWEST = (14.0, 14.0, 14.0)  # without tensor cores
STRIDED = 1.6  # an input's gradient with a stride: its taps are looked up
LEAST_STEPS = 16  # of a part of a weight's gradient whose sum is cut to fill all SMs
RESHAPED = 1.6  # weights' gradients whose taps are taken together: of as many more tiles
ALIGNED = {"half": 8}  # channels are padded to multiples of that many; of 4 in other formats
# Groups: one after the other, cut out of their tensors by nhwcSliceCKernel (1.2 to 1.6 TB/s) or nchwToNhwcKernel, or
# several at once as dense blocks of that many channels. tensorTransformGeneric pads: 8.4 us or more, 0.34 to 0.4 TB/s.
CUT_NS, SLICE_SHARE = 1700.0, 0.43
TRANSFORM_NS, TRANSFORM_SHARE = 9000.0, 0.12
TOGETHER = 64
# Groups of volumes in 16-bit formats, of few channels or many taps or one: products without tensor cores, one by one
# (implicit_convolveNd_sgemm; so were 33 of 33 such, and of those with 27 taps and 8 channels or more 2 of 41). Tiles of
# 64x128, two an SM, or 32x32, eight; each takes so long for an element of the inner dimension.
SINGLE_NS, NARROW, SINGLE_CHANNELS, SINGLE_TAPS = 220.0, 36, 8, 27
DIRECT_CYCLES = 0.25  # SM cycles of a multiply-add of dgrad2d_grouped_direct_kernel: 0.9e12 a second, 12 of them
SEVERAL_NS = 6000.0  # a channel with several filters, channels last: 3.5 to 10.6 us each (convolve_common_engine)
SM_PEAK = 989.4e3 / 132  # bf16 FLOP/ns of an SM of the H100, where all of these were measured
DEPTHWISE_CYCLES = 0.10  # SM cycles of a tap and result


def pass_ns(machine: Machine, work: Pass) -> tuple[float, float]:
    """ns, and for groups the logarithm of what they take one by one over what they take together."""
    memory = _bytes(work) / machine.stream_rate
    clock = _slower(machine)
    channels, filters = work.channels // work.groups, work.filters // work.groups
    if work.depthwise:
        return max(_depthwise_ns(machine, work, memory), _old_ns(machine, work, channels, filters)), 0.0
    if work.groups == 1:
        around = _padding_ns(machine, work) if work.last else _layout_ns(machine, work)
        return hypot(clock * _product(machine, work, channels, filters, 1), memory) + around, 0.0
    alone, together = _alone_ns(machine, work, clock), _together_ns(machine, work, clock)
    old = _old_ns(machine, work, channels, filters)
    return (old if old > 0.0 else min(alone, together)), log(alone / together)


def _tensors(work: Pass) -> tuple[tuple[int, int], ...]:
    """Rows and pixels of image, result and weight."""
    return (
        (work.batch * work.channels, work.inside),
        (work.batch * work.filters, work.outside),
        (work.filters * work.channels // work.groups, work.taps),
    )


def _padding_ns(machine: Machine, work: Pass) -> float:
    """Rows of channels that are not aligned are padded before, those of the result cut after. Few are not."""
    total = 0.0
    results = {OUTPUT: 1, INPUT: 0}.get(work.which, 2)
    images = zip((work.channels, work.filters), _tensors(work)[:2], strict=True)
    for place, (channels, (rows, pixels)) in enumerate(images):
        if channels > ALIGNED["half"] and channels % _aligned(work):
            moved = 2.0 * rows * pixels * item_bytes(work.dtype) / machine.stream_rate
            cut = place == results
            total += TRANSFORM_NS + moved / TRANSFORM_SHARE if cut else CUT_NS + moved / SLICE_SHARE
    return total


def _alone_ns(machine: Machine, work: Pass, clock: float) -> float:
    """Groups one after the other: each is cut out of its tensors, and padded if its rows are not aligned."""
    channels, filters = work.channels // work.groups, work.filters // work.groups
    size = item_bytes(work.dtype)
    each = clock * _product(machine, work, channels, filters, 1)
    share = SLICE_SHARE if work.last else LAYOUT_SHARE
    odd = (channels % _aligned(work) > 0, filters % _aligned(work) > 0, False)
    total = 0.0
    for (rows, pixels), padded in zip(_tensors(work), odd, strict=True):
        moved = 2.0 * rows * pixels * size
        total += work.groups * CUT_NS + moved / (machine.stream_rate * share)
        total += padded * (work.groups * TRANSFORM_NS + moved / (machine.stream_rate * TRANSFORM_SHARE))
    return work.groups * hypot(each, _bytes(work) / work.groups / machine.stream_rate) + total


def _together_ns(machine: Machine, work: Pass, clock: float) -> float:
    """Several groups at once as dense blocks. Those as wide in as out, by a power of two, have kernels of their own."""
    channels, filters = work.channels // work.groups, work.filters // work.groups
    pack = max(1, min(work.groups, TOGETHER // max(channels, filters)))
    blocks = clock * _product(machine, work, channels * pack, filters * pack, ceil(work.groups / pack))
    ns = hypot(blocks, _bytes(work) / machine.stream_rate)
    if channels == filters and channels & (channels - 1) == 0 and work.last:
        return ns
    for rows, pixels in _tensors(work)[0 if work.last else 2 :]:
        moved = 2.0 * rows * pixels * item_bytes(work.dtype)
        ns += TRANSFORM_NS + moved / (machine.stream_rate * TRANSFORM_SHARE)
    return ns if work.last else ns + _layout_ns(machine, work)


def _depthwise_ns(machine: Machine, work: Pass, memory: float) -> float:
    """A channel a group, in kernels made for that."""
    results = work.channels * work.inside if work.which == INPUT else work.filters * work.outside
    return 2000.0 + hypot(machine.cycles_ns(work.batch * results * work.taps * DEPTHWISE_CYCLES), memory)


def _old_ns(machine: Machine, work: Pass, channels: int, filters: int) -> float:
    """Groups that only cuDNN's oldest kernels take, without tensor cores; 0 if others do."""
    half = work.arithmetic == "half"
    volumes = work.which == OUTPUT and work.dimensions == 3 and (work.last if work.depthwise else half)
    if volumes and (channels < SINGLE_CHANNELS or not 1 < work.taps <= SINGLE_TAPS):
        return work.groups * _single_ns(machine, work, channels, filters)
    if work.which == OUTPUT and work.depthwise and half and work.last and filters > 1:
        return work.groups * SEVERAL_NS
    if work.which == INPUT and work.dimensions == 3 and half and work.taps > SINGLE_TAPS and not work.last:
        results = work.batch * work.inside * work.channels
        return machine.cycles_ns(results * filters * work.taps / work.stride * DIRECT_CYCLES) * (not work.depthwise)
    return 0.0


def _slower(machine: Machine) -> float:
    """Time of an SM's work, relative to one of the H100."""
    return SM_PEAK * machine.gpu.sms / machine.peak("bfloat16")


def _bytes(work: Pass) -> float:
    weights = work.filters * work.channels // work.groups * work.taps
    images = work.batch * (work.channels * work.inside + work.filters * work.outside)
    return float(images + weights) * item_bytes(work.dtype)


def _aligned(work: Pass) -> int:
    return ALIGNED.get(work.arithmetic, 4)


def _product(machine: Machine, work: Pass, channels: int, filters: int, groups: int) -> float:
    """`groups` products of that many channels and filters each."""
    slower = SLOWER.get(work.arithmetic, SLOWEST)
    step = STEP_BYTES // 2 if work.arithmetic == "half" else STEP_BYTES // 4
    sms = machine.gpu.sms
    if work.which == WEIGHT:
        return BEGIN_NS + slower[2] * _weight_ns(sms, work, channels, filters, groups, step)
    if work.which == OUTPUT:
        rows, columns, inner, taps = work.batch * work.outside, filters, channels, float(work.taps)
    else:
        rows, columns, inner = work.batch * work.inside, channels, filters
        taps = max(1.0, work.taps * work.outside / work.inside) * (STRIDED if work.stride > 1 else 1.0)
    half_step = step / 2 if work.arithmetic == "half" else step  # such steps take half the time
    steps = taps * ceil(inner / half_step) * half_step / step  # a tap at a time
    new = min(
        ceil(ceil(rows / tm) * ceil(columns / tn) * groups / sms) * steps * STEP_NS[tm * tn // 4096] for tm, tn in TILES
    )
    old_steps = ceil(taps * ceil(inner / _aligned(work)) * _aligned(work) / step)
    counts = ((ceil(rows / tm) * ceil(columns / tn) * groups, ns) for tm, tn, ns in OLD_TILES)
    old = min(max(count / sms, ceil(count / sms / OLD_NEXT_TO)) * old_steps * ns for count, ns in counts)
    return BEGIN_NS + max(min(slower[0] * new, slower[1] * old), _loop_ns(work, channels))


def looped(machine: Machine, work: Pass) -> bool:
    """True if a loop over a filter about as large as the image takes the time of a product in TF32."""
    if work.arithmetic != "tf32" or work.dimensions != 2 or work.groups > 1 or work.stride > 1 or work.last:
        return False
    loop = _loop_ns(work, work.channels) if work.outside <= LOOP_RESULTS and work.channels >= LOOP_CHANNELS else 0.0
    return loop > 0.0 and _product(machine, work, work.channels, work.filters, 1) == BEGIN_NS + loop


def _loop_ns(work: Pass, channels: int) -> float:
    if work.which != OUTPUT or work.taps < LARGE_TAPS:
        return 0.0
    step = STEP_BYTES // 2 if work.arithmetic == "half" else STEP_BYTES // 4
    return ceil(work.taps * ceil(channels / _aligned(work)) * _aligned(work) / step) * LARGE_STEP_NS


def _weight_ns(sms: int, work: Pass, channels: int, filters: int, groups: int, step: int) -> float:
    """A weight's gradient: a sum over all positions, cut into parts where tiles are few."""
    steps = ceil(work.batch * work.outside / step)
    best = float("inf")
    for tm, tn in TILES:
        by_taps = ceil(channels / tn) * work.taps
        count = ceil(filters / tm) * min(by_taps, RESHAPED * ceil(channels * work.taps / tn)) * groups
        parts = max(1.0, min(sms // count, steps / LEAST_STEPS))
        best = min(best, max(1.0, count / sms) * steps / parts * STEP_NS[tm * tn // 4096])
    return best


def _single_ns(machine: Machine, work: Pass, channels: int, filters: int) -> float:
    """One group of an output without tensor cores."""
    rows = work.batch * work.outside
    if filters <= NARROW:
        blocks = ceil(rows / 32) * ceil(filters / 32) / 8
    else:
        blocks = ceil(rows / 64) * ceil(filters / 128) / 2
    return 2000.0 + _slower(machine) * ceil(blocks / machine.gpu.sms) * channels * work.taps * SINGLE_NS


def _layout_ns(machine: Machine, work: Pass) -> float:
    """Changes of the layout of all three tensors, where channels are not last."""
    if work.last or work.plain:
        return 0.0
    total = 0.0
    for rows, pixels in _tensors(work):
        moved = 2.0 * rows * pixels * item_bytes(work.dtype) / (machine.stream_rate * LAYOUT_SHARE)
        issue = machine.cycles_ns(rows * ceil(pixels / LAYOUT_ROW) * LAYOUT_ROW * LAYOUT_CYCLES)
        total += machine.fit.floor_ns + max(moved, issue)
    return total
