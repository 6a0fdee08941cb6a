"""Layer, RMS, group and batch norm."""

from __future__ import annotations

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
ROWS_PER_SM = 16  # in flight
# Below: H100, benchmarks/device/results/varied_h100.parquet (SegFormer's and a 3-D U-Net's norms).
ROW_CYCLES = 400  # SM cycles of a row of layer norm, which has a block of its own however short it is
# RMS norm (wide_h100.parquet): a row that is loaded 16 bytes at a time, one that is not, and one backward.
RMS_ROW_CYCLES, RMS_ODD_ROW_CYCLES, RMS_BACKWARD_ROW_CYCLES = 180, 1450, 880
GROUP_NS = 0.75  # an element of a group, which has one block however long it is (there, 0.62 to 0.87)
CHANNEL_NS = (430.0, 950.0)  # torch's own batch norm: a round of a channel's block of 512 threads, forward and backward
BLOCK = 512
BLOCKS_PER_SM = 4
# Evaluation, channels first (popular_h100.parquet): one pass, a block for each channel of an image.
EVALUATION, EVALUATION_CUDNN, PLANE_NS = 0.48, 0.85, 0.63
SPREAD_BLOCKS = 256 * 1024  # to as many blocks at most the forward pass writes its output


def classify(name: str) -> str | None:
    """Names hold the kind of norm."""
    of_rows = any(part in name for part in ("layer_norm", "rms_norm", "group_norm", "weight_norm"))
    return "normalization" if of_rows or _of_channels(name) else None


def _of_channels(name: str) -> bool:
    return "batch_norm" in name or "instance_norm" in name


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """Of channels, or of rows."""
    return (batch_norm if _of_channels(name) else norm)(machine, signature, name, kernels)


def norm(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """Layer, RMS and group norm. The backward pass also reduces over rows, for the weights."""
    if "backward" in name:
        grad, x = tensor_at(signature.args, 0), tensor_at(signature.args, 1)
        size = max((nbytes(t) for t in (grad, x) if t is not None), default=0)
        moved = 5.0 * size  # grad and input twice, the input's gradient once
        rows = prod(x.shape[:-1]) if x is not None and "rms_norm" in name else 0
        work = machine.cycles_ns(rows * RMS_BACKWARD_ROW_CYCLES)
        return Estimate(machine.fit.floor_ns + max(work, machine.memory_ns(moved, BACKWARD)), moved)
    given = on_gpu(signature.args)
    moved = 2.0 * nbytes(given[0]) if given else 0.0
    work = _of_rows(machine, signature, name, given[0]) if given and given[0].shape else 0.0
    return Estimate(max(machine.memory_ns(moved, FORWARD), work), moved)


def _of_rows(machine: Machine, signature: OperatorSignature, name: str, x: TensorSpec) -> float:
    """What rows take however few bytes they have, forward, in ns."""
    rows, width = prod(x.shape[:-1]), x.shape[-1]
    if name.startswith("native_layer_norm"):
        return machine.cycles_ns(rows * ROW_CYCLES)
    if name.startswith("native_group_norm"):
        groups = signature.args[6] if len(signature.args) > 6 else 1
        blocks = x.shape[0] * (groups if isinstance(groups, int) else 1)
        waves = ceil(blocks / (machine.gpu.sms * BLOCKS_PER_SM))
        return waves * prod(x.shape) / max(1, blocks) * GROUP_NS
    if "rms_norm" in name:
        even = width * item_bytes(x.dtype) % 16 == 0
        return machine.cycles_ns(rows * (RMS_ROW_CYCLES if even else RMS_ODD_ROW_CYCLES))
    return 0.0


def batch_norm(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """One block per channel (NCHW) or rows of channels (channels last)."""
    backward = "backward" in name
    given = [t for t in on_gpu(signature.args) if len(t.shape) > 1]
    if not given:
        return passes_memory(machine, signature, name, kernels)
    x = max(given, key=nbytes)
    size, channels = nbytes(x), max(1, x.shape[1])
    passes = 5.0 if backward else 3.0
    moved = passes * size
    last = len(x.shape) > 2 and x.stride[1] == 1 and prod(x.shape[2:]) > 1
    if not last and not backward and signature.args[5:6] == (False,):
        return _evaluated(machine, x, name.startswith("cudnn"))
    if last:  # channels last: torch's own kernels, bound by their loads
        ns = machine.cycles_ns(prod(x.shape) * BATCH_NORM_CYCLES[backward])
        return Estimate(max(2 * machine.fit.floor_ns + ns, machine.memory_ns(moved)), moved)
    if name.startswith("native_batch_norm"):
        return _by_channel(machine, x, backward, moved)
    used = min(1.0, channels / (machine.gpu.sms * (1.75 if backward else 1.1)))
    return Estimate(machine.fit.floor_ns + machine.memory_ns(moved, 0.72 * used), moved)


def _evaluated(machine: Machine, x: TensorSpec, cudnn: bool) -> Estimate:
    """With the statistics that it has: an elementwise pass."""
    moved = 2.0 * nbytes(x)
    ns = machine.memory_ns(moved, EVALUATION_CUDNN if cudnn else EVALUATION)
    planes = x.shape[0] * x.shape[1] if len(x.shape) > 2 else 0
    return Estimate(machine.fit.floor_ns + max(ns, planes * PLANE_NS), moved)


def _by_channel(machine: Machine, x: TensorSpec, backward: bool, moved: float) -> Estimate:
    """Torch's own kernels: a block goes over all of a channel, and so does the one that writes the output if there is
    a single image (instance norm)."""
    images, channels = x.shape[0], max(1, x.shape[1])
    pixels = prod(x.shape[2:])
    waves = ceil(channels / (machine.gpu.sms * BLOCKS_PER_SM))
    rounds = ceil(images * pixels / BLOCK) * waves
    if not backward:
        spread = max(1, min(images, SPREAD_BLOCKS // channels))
        rounds += ceil(ceil(images / spread) * pixels / BLOCK) * waves
    ns = rounds * CHANNEL_NS[backward]
    return Estimate(max(2 * machine.fit.floor_ns + ns, machine.memory_ns(moved)), moved)


def places(signature: OperatorSignature, name: str, compute: str, launches: int) -> tuple[Place, ...]:
    """Rows, of images the pixels."""
    return coordinates.by_rows(signature, name, launches, images=True)


def read_again(machine: Machine, signature: OperatorSignature, name: str) -> float:
    """The kernels of RMS and layer norm go over their rows twice, and three times backward."""
    x = tensor_at(signature.args, 0)
    if x is None or not x.shape or not name.startswith(("_fused_rms_norm", "native_layer_norm")):
        return 0.0
    size, backward = float(nbytes(x)), "backward" in name
    row = size / max(1, prod(x.shape[:-1]))
    flight = min(size, machine.gpu.sms * ROWS_PER_SM * row) * (3 if backward else 2)  # with what is written
    return size * (2 if backward else 1) * machine.misses(flight) / max(1.0, flight)


FAMILY = Family("normalization", classify, estimate, 20, places=places, read_again=read_again)
