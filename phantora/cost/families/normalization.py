"""Layer, RMS, group and batch norm."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, prod

from phantora.cost import coordinates
from phantora.cost.coordinates import Place
from phantora.cost.families.elementwise import passes_memory
from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import item_bytes, nbytes, on_gpu, tensor_at
from phantora.cost.types import OperatorSignature, TensorSpec

# Shares of a vectorised stream's speed, measured on H200 (docs/costs.md).
FORWARD, BACKWARD = 0.74, 0.60
BATCH_NORM_CYCLES = (1.20, 1.00)  # per element, channels last: forward, backward
# Channels last (and matrices), forward: 128 blocks go over the images for every 32 channels. Fewer than three on an SM
# wait for memory, and lanes beyond the last channel idle (35 in validation/workloads).
CHANNELS_PER_BLOCK, WAITING_CYCLES, EVALUATED_LAST = 32, 3.0, 0.55
LAST_START_NS = (5000.0, 4000.0)  # of three kernels forward and two backward, which wait for each other's sums
ROWS_PER_SM = 16  # in flight
# Layer norm backward (405 in the shipped tables and there): a row of the gradients of the weights, where blocks do not
# share rows: one for 32 columns; a row of the gradient of the input.
SHARED_ROWS, WEIGHT_ROW_NS, INPUT_ROW_NS, WEIGHTS = 65536, 4.3, 0.84, 0.85
RMS_INPUT_ROW_NS = 0.68  # the same of RMS norm, which has no mean (131,072 rows of 128 on an H200, torch.profiler)
# Weight norm (46 there): two reductions of a block for each row.
WEIGHT_START_NS = 1300.0
# The same along the last dimension, forward and backward: a block for 32 columns goes over 16 rows at once.
COLUMN_ROWS, COLUMN_ROUND_NS = 16, (140.0, 178.0)
# Below: H100, validation/workloads (SegFormer's and a 3-D U-Net's norms).
ROW_CYCLES = 400  # SM cycles of a row of layer norm, which has a block of its own however short it is
# RMS norm (validation/probes/operators_wide.py): a row that is loaded 16 bytes at a time, one that is not, and one
# backward.
RMS_ROW_CYCLES, RMS_ODD_ROW_CYCLES, RMS_BACKWARD_ROW_CYCLES = 180, 1450, 880
GROUP_NS = 0.84  # an element of a group, which has one block however long it is: its sums (there, 0.80 to 0.87)
# Backward (192 in the shipped tables): its four kernels, and a wave of the first, which has a block for each channel of
# an image, however long it is.
GROUP_BACKWARD_NS, GROUP_WAVE_NS = 10000.0, 800.0
GROUP_SHARE, GROUP_CYCLES, GROUP_BYTE_CYCLES = 0.64, 0.62, 0.035  # the same out of memory; what then writes the output
CHANNEL_NS = (430.0, 950.0)  # torch's own batch norm: a round of a channel's block of 512 threads, forward and backward
BLOCK = 512
BLOCKS_PER_SM = 4
# A wave of its blocks, however few pixels a channel has, forward (both kernels) and backward: 17 operators on an H200
# with up to 20,480 channels (validation/probes/program_operators.py).
CHANNEL_WAVE_NS = (2200.0, 1000.0)
# A channel of cuDNN's batch norm, which has a block of its own, forward and backward: SM cycles however few pixels it
# has, from instance norms of 8,192 to 32,768 channels on an H200 (torch.profiler).
CUDNN_CHANNEL_CYCLES = (1900.0, 2120.0)
# SyncBatchNorm runs the kernels of batch norm one by one. Of each: tensors of the input's size that it reads or writes.
PASSES = {"stats": 1, "elemt": 2, "backward_reduce": 2, "backward_elemt": 3}
# Evaluation, channels first (35 popular programs): one pass, a block for each channel of an image.
EVALUATION, EVALUATION_CUDNN, PLANE_NS = 0.48, 0.85, 0.63
SPREAD_BLOCKS = 256 * 1024  # to as many blocks at most the forward pass writes its output


def classify(name: str) -> str | None:
    """Names hold the kind of norm."""
    of_rows = any(part in name for part in ("layer_norm", "rms_norm", "group_norm", "weight_norm"))
    return "normalization" if of_rows or _of_channels(name) else None


def _of_channels(name: str) -> bool:
    return "batch_norm" in name or "instance_norm" in name


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """Estimate of a norm over channels, or over rows."""
    return (batch_norm if _of_channels(name) else norm)(machine, signature, name, kernels)


def norm(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """Layer, RMS and group norm. The backward pass also reduces over rows, for the weights."""
    if "weight_norm" in name:
        return _of_weights(machine, signature, name)
    if name.startswith("native_layer_norm_backward"):
        return _layer_norm_backward(machine, signature, INPUT_ROW_NS)
    if name.startswith("_fused_rms_norm_backward") and signature.args[-1:] == ((True, False),):
        return _layer_norm_backward(machine, signature, RMS_INPUT_ROW_NS)  # no weights: the same kernel
    if name.startswith("native_group_norm_backward"):
        return _group_norm_backward(machine, signature)
    if "backward" in name:
        grad, x = tensor_at(signature.args, 0), tensor_at(signature.args, 1)
        size = max((nbytes(t) for t in (grad, x) if t is not None), default=0)
        moved = 5.0 * size  # grad and input twice, the input's gradient once
        rows = prod(x.shape[:-1]) if x is not None and "rms_norm" in name else 0
        work = machine.cycles_ns(rows * RMS_BACKWARD_ROW_CYCLES)
        return Estimate(machine.fit.floor_ns + max(work, machine.memory_ns(moved, BACKWARD)), moved)
    given = on_gpu(signature.args)
    moved = 2.0 * nbytes(given[0]) if given else 0.0
    if given and given[0].shape and name.startswith("native_group_norm"):
        return _of_groups(machine, signature, given[0])
    work = _of_rows(machine, name, given[0]) if given and given[0].shape else 0.0
    return Estimate(max(machine.memory_ns(moved, FORWARD), work), moved)


def _of_rows(machine: Machine, name: str, x: TensorSpec) -> float:
    """Least time of rows in the forward pass, whatever their bytes, in ns."""
    rows, width = prod(x.shape[:-1]), x.shape[-1]
    if name.startswith("native_layer_norm"):
        return machine.cycles_ns(rows * ROW_CYCLES)
    if "rms_norm" in name:
        even = width * item_bytes(x.dtype) % 16 == 0
        return machine.cycles_ns(rows * (RMS_ROW_CYCLES if even else RMS_ODD_ROW_CYCLES))
    return 0.0


def _of_groups(machine: Machine, signature: OperatorSignature, x: TensorSpec) -> Estimate:
    """Group norm: sums over each group, then a pass that scales channels."""
    groups = signature.args[6] if len(signature.args) > 6 else 1
    blocks = max(1, x.shape[0] * (groups if isinstance(groups, int) else 1))
    size, elements = float(nbytes(x)), prod(x.shape)
    waves = ceil(blocks / (machine.gpu.sms * BLOCKS_PER_SM))
    sums = max(machine.fit.floor_ns + waves * elements / blocks * GROUP_NS, machine.memory_ns(size, GROUP_SHARE))
    cycles = elements * (GROUP_CYCLES + GROUP_BYTE_CYCLES * 2 * item_bytes(x.dtype))
    scaled = max(machine.fit.floor_ns + machine.cycles_ns(cycles), machine.memory_ns(2 * size))
    return Estimate(sums + machine.fit.floor_ns + scaled, 3 * size)


def _group_norm_backward(machine: Machine, signature: OperatorSignature) -> Estimate:
    """Sums over each channel of an image, then the gradient of the input."""
    x = tensor_at(signature.args, 1)
    if x is None or len(x.shape) < 2:
        return Estimate(machine.fit.floor_ns, 0.0)
    size, blocks = float(nbytes(x)), prod(x.shape[:2])
    waves = ceil(blocks / (machine.gpu.sms * BLOCKS_PER_SM))
    each = prod(x.shape[2:]) * GROUP_NS / machine.clock_ratio
    sums = waves * GROUP_WAVE_NS + max(waves * each, machine.memory_ns(2 * size, BACKWARD))
    return Estimate(GROUP_BACKWARD_NS + sums + machine.memory_ns(3 * size, BACKWARD), 5 * size)


def _of_weights(machine: Machine, signature: OperatorSignature, name: str) -> Estimate:
    """Weight norm: rows are read twice, the second time out of a cache."""
    backward = "backward" in name
    x = tensor_at(signature.args, backward)
    if x is None or not x.shape:
        return Estimate(machine.fit.floor_ns, 0.0)
    moved = (2.0 + backward) * nbytes(x)
    dims = [a for a in signature.args if type(a) is int]
    rounds = prod(x.shape[:-1]) / COLUMN_ROWS if dims and dims[-1] % len(x.shape) else 0.0
    return Estimate(WEIGHT_START_NS + max(machine.memory_ns(moved), rounds * COLUMN_ROUND_NS[backward]), moved)


def _layer_norm_backward(machine: Machine, signature: OperatorSignature, input_row_ns: float) -> Estimate:
    """The gradient of the input, row by row, then those of the weights, column by column."""
    x = tensor_at(signature.args, 1)
    if x is None or not x.shape:
        return Estimate(machine.fit.floor_ns, 0.0)
    size, rows = float(nbytes(x)), prod(x.shape[:-1])
    row_ns = input_row_ns / machine.clock_ratio
    ns = max(machine.memory_ns(3 * size, WEIGHTS), machine.fit.floor_ns + rows * row_ns)
    mask = signature.args[-1]
    if isinstance(mask, tuple) and True not in mask[1:]:
        return Estimate(ns, 3 * size)
    columns = machine.memory_ns(2 * size, WEIGHTS)
    if rows <= SHARED_ROWS:
        columns = max(columns, 2 * machine.fit.floor_ns + rows * WEIGHT_ROW_NS / machine.clock_ratio)
    return Estimate(ns + columns, 5 * size)


def batch_norm(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """One block per channel (NCHW) or rows of channels (channels last)."""
    backward = "backward" in name
    given = [t for t in on_gpu(signature.args) if len(t.shape) > 1]
    if not given:
        return passes_memory(machine, signature, name, kernels)
    if name.startswith("batch_norm_gather_stats"):  # of a few numbers per rank and channel
        return Estimate(machine.fit.floor_ns, 0.0)
    x = max(given, key=nbytes)
    size, channels = nbytes(x), max(1, x.shape[1])
    part = name.removeprefix("batch_norm_")
    whole = 5.0 if backward else 3.0
    share = PASSES.get(part, whole) / whole
    moved = share * whole * size
    last = x.stride[1] == 1 and (len(x.shape) == 2 or prod(x.shape[2:]) > 1)
    if not last and not backward and signature.args[5:6] == (False,):
        return _evaluated(machine, x, name.startswith("cudnn"))
    if last:  # channels last: torch's own kernels, bound by their loads
        cycles = BATCH_NORM_CYCLES[backward]
        if not backward:
            blocks = ceil(channels / CHANNELS_PER_BLOCK)
            cycles = max(cycles, WAITING_CYCLES / blocks) * blocks * CHANNELS_PER_BLOCK / channels
            if signature.args[5:6] == (False,):  # only the second of its passes
                cycles *= EVALUATED_LAST
        ns, start = machine.cycles_ns(share * prod(x.shape) * cycles), share * LAST_START_NS[backward]
        return Estimate(start + max(ns, machine.memory_ns(moved)), moved)
    if name.startswith("native_batch_norm") or part in PASSES:
        return _by_channel(machine, x, part, backward, moved)
    used = min(1.0, channels / (machine.gpu.sms * (1.75 if backward else 1.1)))
    channels_ns = machine.cycles_ns(channels * CUDNN_CHANNEL_CYCLES[backward])
    return Estimate(machine.fit.floor_ns + max(channels_ns, machine.memory_ns(moved, 0.72 * used)), moved)


def _evaluated(machine: Machine, x: TensorSpec, cudnn: bool) -> Estimate:
    """Estimate with stored statistics: an elementwise pass."""
    moved = 2.0 * nbytes(x)
    ns = machine.memory_ns(moved, EVALUATION_CUDNN if cudnn else EVALUATION)
    planes = x.shape[0] * x.shape[1] if len(x.shape) > 2 else 0
    return Estimate(machine.fit.floor_ns + max(ns, planes * PLANE_NS), moved)


def _by_channel(machine: Machine, x: TensorSpec, part: str, backward: bool, moved: float) -> Estimate:
    """Torch's own kernels. A block sums up a channel. The output is written by a block for each image of a channel, or,
    of whole backward passes, by the block that summed up.

    The backward kernels of SyncBatchNorm are not measured: each counts as half of the whole pass."""
    images, channels = x.shape[0], max(1, x.shape[1])
    pixels = prod(x.shape[2:])
    waves = ceil(channels / (machine.gpu.sms * BLOCKS_PER_SM))
    summed = ceil(images * pixels / BLOCK) * waves
    spread = max(1, min(images, SPREAD_BLOCKS // channels))
    written = ceil(ceil(images / spread) * pixels / BLOCK) * waves
    forward_ns, backward_ns = CHANNEL_NS
    ns = {
        "stats": summed * forward_ns,
        "elemt": written * forward_ns,
        "backward_reduce": summed * backward_ns / 2,
        "backward_elemt": written * backward_ns / 2,
    }.get(part, summed * backward_ns if backward else (summed + written) * forward_ns)
    kernels = 1 if part in PASSES else 2
    ns += waves * CHANNEL_WAVE_NS[backward] / (2 if part in PASSES else 1)
    return Estimate(max(kernels * machine.fit.floor_ns + ns, machine.memory_ns(moved)), moved)


def places(signature: OperatorSignature, name: str, compute: str, launches: int) -> tuple[Place, ...]:
    """Rows, of images the pixels. Weight norm has its rows along a dimension that it is given."""
    if "weight_norm" in name:
        x = tensor_at(signature.args, 1 if "backward" in name else 0)
        dims = [a for a in signature.args if type(a) is int]
        if x is None or not dims or not -len(x.shape) <= dims[-1] < len(x.shape):
            return coordinates.by_size(signature, name, compute, launches)
        rows = x.shape[dims[-1]]
        at = (coordinates.log(rows), coordinates.log(prod(x.shape) / max(1, rows)))
        return (Place(f"{name} {x.dtype} {dims[-1] == 0}", at),)
    if _of_channels(name):
        signature = replace(signature, args=tuple(map(_as_image, signature.args)))
    return coordinates.by_rows(signature, name, launches, images=True)


def _as_image(value: object) -> object:
    """A matrix as images of one pixel, channels last: the same kernels normalise both."""
    if not isinstance(value, TensorSpec) or len(value.shape) != 2 or value.stride[1:] != (1,):
        return value
    step = value.stride[0]
    return replace(value, shape=(*value.shape, 1, 1), stride=(step, 1, step, step))


def read_again(machine: Machine, signature: OperatorSignature, name: str) -> float:
    """The kernels of RMS and layer norm go over their rows twice, and three times backward."""
    x = tensor_at(signature.args, 0)
    if x is None or not x.shape or not name.startswith(("_fused_rms_norm", "native_layer_norm")):
        return 0.0
    size, backward = float(nbytes(x)), "backward" in name
    row = size / max(1, prod(x.shape[:-1]))
    flight = min(size, machine.gpu.sms * ROWS_PER_SM * row) * (3 if backward else 2)  # with what is written
    return size * (2 if backward else 1) * machine.misses(flight) / max(1.0, flight)


FAMILY = Family(
    "normalization", classify=classify, estimate=estimate, precedence=20, places=places, read_again=read_again
)
