"""Everything that is bound by moving bytes or by issuing an instruction per element."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from phantora.cost.machine import Machine
from phantora.cost.tensors import (
    broadcast,
    dense,
    ints_at,
    item_bytes,
    layout,
    nbytes,
    on_gpu,
    tensor_at,
    tensors,
    traffic,
)
from phantora.cost.types import KernelLaunch, OperatorSignature, TensorSpec

Estimate = tuple[float, float]  # ns of all kernels, bytes moved
Kernels = tuple[KernelLaunch, ...]

# Shares of a vectorised stream's speed, measured on H200 (docs/costs.md).
NORM_FORWARD = 0.74
NORM_BACKWARD = 0.60
SOFTMAX_FORWARD = 0.57
SOFTMAX_BACKWARD = 0.65
FILL = 1.06
OPTIMIZER_WIDE, OPTIMIZER_NARROW = 0.80, 0.64  # 4-byte and 2-byte state
RANDOM = 0.80
MATH = 0.93  # silu, gelu, exp and their like
SCATTERED = 0.25  # rows picked or written one by one
NLL_FLOOR_NS = 1500.0
RANDOM_FLOOR_NS = 800.0  # the generator's rounds before the first store
FILL_CYCLES = 0.156  # per element: 2-byte fills are bound by their stores
CAT_CYCLES, CAT_SHORT_CYCLES = 0.80, 1.17  # per element of cat's kernel for inputs that it cannot vectorise
SHORT_ROW = 1024
BATCH_NORM_CYCLES = (1.20, 1.00)  # per element, channels last: forward, backward
POOL_CYCLES = (1.05, 2.60)  # per element of the input: forward, backward


def elementwise(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """The default: read each GPU tensor once, write the result once."""
    inputs, output = operands(signature, name)
    moved = float(sum(traffic(t) for t in inputs) + nbytes(output))
    count = prod(output.shape)
    if _indexed(inputs, output, kernels):
        return max(machine.index_ns(count, moved), machine.memory_ns(moved)), moved
    return machine.memory_ns(moved, MATH if _mathematical(name) else 1.0), moved


def fused(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """A generated kernel: each tensor among its arguments, results included, passes memory once."""
    moved = float(sum(traffic(t) for t in on_gpu(signature.args)))
    return machine.memory_ns(moved), moved


def operands(signature: OperatorSignature, name: str) -> tuple[list[TensorSpec], TensorSpec]:
    """What is read, and what is written."""
    given = on_gpu(signature.args)
    if signature.outputs:
        return given, signature.outputs[0]
    overwrites = name.rstrip("_") in (
        "copy",
        "fill",
        "zero",
        "uniform",
        "normal",
        "random",
        "bernoulli",
        "exponential",
    )
    if not given:
        return [], created(signature)
    if name.endswith("_") and not name.endswith("__"):
        return (given[1:] if overwrites else given), given[0]
    shape = broadcast(t.shape for t in given)
    dtype = max(
        given, key=lambda t: (t.dtype.startswith(("float", "bfloat", "complex")), item_bytes(t.dtype))
    ).dtype
    if name in _PREDICATES:
        dtype = "bool"
    model = next((t for t in given if t.shape == shape and dense(t)), None)
    if model is not None:
        return given, TensorSpec(dtype, shape, model.stride)
    return given, TensorSpec(dtype, shape, _strides(shape))


_PREDICATES = frozenset(
    (
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "isnan",
        "isinf",
        "isfinite",
        "logical_and",
        "logical_or",
        "logical_not",
        "logical_xor",
    )
)
_MATH = (
    "silu",
    "gelu",
    "exp",
    "log",
    "sigmoid",
    "tanh",
    "softplus",
    "mish",
    "erf",
    "sin",
    "cos",
    "pow",
    "sqrt",
    "rsqrt",
    "elu",
    "selu",
    "logit",
    "hardswish",
)


def _mathematical(name: str) -> bool:
    return name.strip("_").startswith(_MATH)


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    step, result = 1, []
    for extent in reversed(shape):
        result.append(step)
        step *= max(1, extent)
    return tuple(reversed(result))


def created(signature: OperatorSignature) -> TensorSpec:
    """The tensor that a factory makes, from the first list of sizes (or number) and the dtype."""
    shape: tuple[int, ...] = ()
    dtype = "float32"
    for value in signature.args:
        if not shape and isinstance(value, tuple) and value and all(isinstance(v, int) for v in value):
            shape = tuple(max(0, int(v)) for v in value)
        elif not shape and type(value) in (int, float) and 0 < value < LARGEST:
            shape = (int(value),)
        elif isinstance(value, str) and value.removeprefix("torch.") in _KNOWN_DTYPES:
            dtype = value.removeprefix("torch.")
    return TensorSpec(dtype, shape, _strides(shape))


LARGEST = 1 << 40  # elements: what is larger is no size
_KNOWN_DTYPES = frozenset(
    (
        "float64",
        "float32",
        "float16",
        "bfloat16",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint8",
        "bool",
        "complex64",
        "float8_e4m3fn",
        "float8_e5m2",
    )
)


def _indexed(inputs: list[TensorSpec], output: TensorSpec, kernels: Kernels) -> bool:
    """Does the kernel compute an index (or cast) per element? Its name tells; else the operands do."""
    for kernel in kernels:
        if "vectorized_" in kernel.name:
            return False
        if "elementwise_kernel" in kernel.name:
            return True
    whole = [t for t in inputs if prod(t.shape) > 1]
    if any(not dense(t) or t.shape != output.shape or layout(t) != layout(output) for t in whole):
        return True
    # Widening casts and mixed inputs take the unrolled kernel; narrowing ones are vectorised.
    return any(item_bytes(t.dtype) < item_bytes(output.dtype) and t.dtype != "bool" for t in whole)


def norm(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """Layer, RMS and group norm. The backward pass also reduces over rows, for the weights."""
    if "backward" in name:
        grad, x = tensor_at(signature.args, 0), tensor_at(signature.args, 1)
        size = max((nbytes(t) for t in (grad, x) if t is not None), default=0)
        moved = 5.0 * size  # grad and input twice, the input's gradient once
        return machine.fit.floor_ns + machine.memory_ns(moved, NORM_BACKWARD), moved
    given = on_gpu(signature.args)
    moved = 2.0 * nbytes(given[0]) if given else 0.0
    return machine.memory_ns(moved, NORM_FORWARD), moved


def batch_norm(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """One block per channel (NCHW) or rows of channels (channels last)."""
    backward = "backward" in name
    given = [t for t in on_gpu(signature.args) if len(t.shape) > 1]
    if not given:
        return elementwise(machine, signature, name, kernels)
    x = max(given, key=nbytes)
    size, channels = nbytes(x), x.shape[1]
    passes = 5.0 if backward else 3.0
    moved = passes * size
    if len(x.shape) > 2 and x.stride[1] == 1:  # channels last: torch's own kernels, bound by their loads
        ns = machine.cycles_ns(prod(x.shape) * BATCH_NORM_CYCLES[backward])
        return max(2 * machine.fit.floor_ns + ns, machine.memory_ns(moved)), moved
    used = min(1.0, channels / (machine.gpu.sms * (1.75 if backward else 1.1)))
    return machine.fit.floor_ns + machine.memory_ns(moved, 0.72 * used), moved


def softmax(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    given = on_gpu(signature.args)
    if "backward" in name:
        moved = sum(nbytes(t) for t in given[:2]) + (nbytes(given[0]) if given else 0)
        return machine.memory_ns(float(moved), SOFTMAX_BACKWARD), float(moved)
    size = nbytes(given[0]) if given else 0
    half_to_float = signature.args[2:3] == (True,)
    moved = size + size * (2 if half_to_float else 1)
    return machine.memory_ns(float(moved), SOFTMAX_FORWARD), float(moved)


def nll_loss(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """One value per row is read, or written: the zero fill is an operator of its own."""
    given = on_gpu(signature.args)
    logits = given[1] if "backward" in name and len(given) > 1 else given[0] if given else None
    rows = logits.shape[0] if logits is not None and logits.shape else 1
    moved = float(rows * (32 + 8))
    # The forward reduction runs in a single block.
    per_row = 0.0 if "backward" in name else 1.0
    return machine.memory_ns(moved) + NLL_FLOOR_NS + rows * per_row, moved


def optimizer(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """Multi-tensor kernels: lists are read, the first list (and the state) is written."""
    lists = [a for a in signature.args if isinstance(a, tuple) and any(isinstance(t, TensorSpec) for t in a)]
    sizes = [sum(nbytes(t) for t in tensors(a) if t.device != "cpu") for a in lists]
    if not sizes:
        return elementwise(machine, signature, name, kernels)
    if name.startswith("_fused_"):
        # Parameters and state are read and written, gradients read.
        moved = 2.0 * sum(sizes) - sizes[1] if len(sizes) > 1 else 2.0 * sizes[0]
    elif "norm" in name or name in ("_foreach_max",):
        moved = float(sizes[0])
    elif "copy" in name:
        moved = float(sum(sizes))
    elif name.endswith("zero_"):
        moved = float(sizes[0])
    else:
        moved = float(sum(sizes) + sizes[0])
    first = next(iter(tensors(lists[0])), None)
    share = OPTIMIZER_NARROW if first is not None and item_bytes(first.dtype) < 4 else OPTIMIZER_WIDE
    if name.startswith("_fused_"):
        share *= 0.97
    extra = max(0, len(kernels) - 1) * machine.fit.floor_ns
    if "copy" in name:  # slices of a flat buffer, rarely aligned: an element at a time
        elements = sum(prod(t.shape) for t in tensors(lists[0]))
        return extra + max(machine.index_ns(elements, moved), machine.memory_ns(moved)), moved
    return machine.memory_ns(moved, share) + extra, moved


def cat(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """cat, stack, split copies, chunk_cat."""
    given = on_gpu(signature.args[:1])
    size = sum(nbytes(t) for t in given)
    elements = sum(prod(t.shape) for t in given)
    out = next((t for t in on_gpu(signature.args[1:])), None)
    written = max(size, nbytes(out)) if out is not None else size
    moved = float(size + written)
    if "chunk_cat" in name or "split_with_sizes_copy" in name:
        casts = out is not None and given and item_bytes(out.dtype) != item_bytes(given[0].dtype)
        if casts or "chunk_cat" in name:
            return max(machine.index_ns(elements, moved), machine.memory_ns(moved)), moved
        return machine.memory_ns(moved, 0.85), moved
    slow = any("CatArrayBatchedCopy" in k.name and not any(s in k.name for s in _CAT_FAST) for k in kernels)
    if not kernels:
        slow = any(not dense(t) for t in given)
    if slow:
        short = any(_row_elements(signature, t) < SHORT_ROW for t in given)
        cycles = machine.cycles_ns(elements * (CAT_SHORT_CYCLES if short else CAT_CYCLES))
        return max(machine.fit.floor_ns + cycles, machine.memory_ns(moved)), moved
    return machine.memory_ns(moved, 0.92), moved


def _row_elements(signature: OperatorSignature, t: TensorSpec) -> int:
    """Elements of `t` that lie side by side in the result of cat."""
    dims = ints_at(signature.args, 1)
    axis = dims[0] if dims else 0
    return prod(t.shape[axis if axis >= 0 else max(0, len(t.shape) + axis) :])


_CAT_FAST = ("vectorized", "aligned", "contig")


def fill(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    _, output = operands(signature, name)
    moved = float(nbytes(output))
    stores = machine.fit.floor_ns + machine.cycles_ns(prod(output.shape) * FILL_CYCLES)
    return max(machine.memory_ns(moved, FILL), stores), moved


def random(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    inputs, output = operands(signature, name)
    moved = float(nbytes(output) + sum(nbytes(t) for t in inputs))
    return RANDOM_FLOOR_NS + machine.memory_ns(moved, RANDOM), moved


def gather(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """index, gather, scatter and their kin: indices, and as many elements as they address."""
    given = on_gpu(signature.args)
    if not given:
        return elementwise(machine, signature, name, kernels)
    source = given[0]
    indices = [t for t in given[1:] if t.dtype in ("int64", "int32", "bool", "uint8")]
    values = [t for t in given[1:] if t not in indices and not name.startswith("gather")]
    if values:
        touched = sum(nbytes(t) for t in values) * 2
    elif name.startswith(("index_select", "index")) and indices:
        count = prod(broadcast(t.shape for t in indices))
        row = (
            prod(source.shape[len(indices) :])
            if not name.startswith("index_select")
            else _row(signature, source)
        )
        touched = 2 * count * row * item_bytes(source.dtype)
    elif indices:
        touched = 2 * prod(indices[0].shape) * item_bytes(source.dtype)
        if name.startswith("gather") and indices[0].stride and indices[0].stride[-1] == 0:  # whole rows
            return machine.memory_ns(float(touched)), float(touched)
    else:
        touched = 2 * nbytes(source)
    moved = float(min(touched, 64 * nbytes(source) + touched) + sum(nbytes(t) for t in indices))
    wide = name.startswith("index_select") or (
        bool(indices) and touched > 64 * sum(prod(t.shape) for t in indices)
    )
    return machine.memory_ns(moved, 0.8 if wide else SCATTERED), moved


def _row(signature: OperatorSignature, source: TensorSpec) -> int:
    dims = ints_at(signature.args, 1)
    axis = dims[0] if dims else 0
    extent = source.shape[axis] if -len(source.shape) <= axis < len(source.shape) else 1
    return prod(source.shape) // max(1, extent)


def pool(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    given = on_gpu(signature.args)
    if not given:
        return elementwise(machine, signature, name, kernels)
    backward = "backward" in name
    x = given[1] if backward and len(given) > 1 else given[0]
    moved = float(sum(nbytes(t) for t in given) + (nbytes(x) if backward else 0.75 * nbytes(x)))
    cycles = machine.cycles_ns(prod(x.shape) * POOL_CYCLES[backward])
    return max(machine.fit.floor_ns + cycles, machine.memory_ns(moved)), moved


Model = Callable[[Machine, OperatorSignature, str, Kernels], Estimate]
