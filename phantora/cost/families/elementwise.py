"""Elementwise operators of torch, and all of its operators that nobody else takes.

Operands are read once, the result is written once.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from phantora.cost import coordinates, sectors
from phantora.cost.coordinates import Place
from phantora.cost.family import LAST, Estimate, Family, Kernels
from phantora.cost.kernels import UNKNOWN_WAVE_ERROR, unknown_ns
from phantora.cost.machine import Machine
from phantora.cost.tensors import broadcast, contiguous_strides, dense, item_bytes, layout, nbytes, on_gpu, traffic
from phantora.cost.types import OperatorSignature, TensorSpec

# SM cycles of an element of a kernel that computes an index for each: for itself, for each sector that its warp loads,
# for each that its block gets from L2, and for a conversion on the way. Fitted to 4,169 kernels of H100 and H200 (the
# shipped tables, validation/workloads), half of them within 8 %.
INDEX_CYCLES, LOAD_CYCLES, SECTOR_CYCLES, CAST_CYCLES = 0.55, 0.49, 0.61, 0.32
MATH_SHARE = 0.93  # of a vectorised stream's speed: silu, gelu, exp and their like, measured on H200
MISS_NS = 500.0  # of a kernel whose operands are not in L2: 2,764 small ones of H200's table take 1.5 us, not 1.0
LARGEST = 1 << 40  # elements: what is larger is no size


def classify(name: str) -> str | None:
    """All of torch's: it is asked last."""
    return None if "::" in name else "elementwise"


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """As :func:`passes_memory`; what has no tensor on the GPU by its kernels' grids."""
    if name.startswith(("tril", "triu")) and on_gpu(signature.args):
        return _triangle(machine, on_gpu(signature.args)[0])
    return without_operands(machine, signature, kernels) or _half_cold(
        machine, passes_memory(machine, signature, name, kernels)
    )


def _half_cold(machine: Machine, warm: Estimate) -> Estimate:
    """The mean of `warm`, with what fits out of L2, and of all out of memory: how the tables' times are taken where it
    is not known what L2 has."""
    cold = machine.fit.floor_ns + MISS_NS + warm.moved / machine.stream_rate
    return replace(warm, ns=(warm.ns + max(warm.ns, cold)) / 2.0)


def _triangle(machine: Machine, x: TensorSpec) -> Estimate:
    """tril and triu go row by row however the matrix lies; half of it is read, all is written."""
    by_row = TensorSpec(x.dtype, x.shape, stride=contiguous_strides(x.shape))
    load, sector = sectors.per_element(x, by_row)
    cycles = prod(x.shape) * (INDEX_CYCLES + 1.5 * (LOAD_CYCLES * load + SECTOR_CYCLES * sector))
    moved = 1.5 * nbytes(x)
    return Estimate(max(machine.fit.floor_ns + machine.cycles_ns(cycles), machine.memory_ns(moved)), moved)


def without_operands(machine: Machine, signature: OperatorSignature, kernels: Kernels) -> Estimate | None:
    """Estimate of a frame without information about its work (an extension's, an autograd function's); None for
    others."""
    if not kernels or on_gpu(signature.args):
        return None
    parts = tuple(unknown_ns(machine, kernel) for kernel in kernels)
    return Estimate(sum(parts), 0.0, parts=parts, cls="other", error=UNKNOWN_WAVE_ERROR)


def passes_memory(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """Read each GPU tensor once, write the result once."""
    inputs, output = operands(signature, name)
    moved = float(sum(traffic(t) for t in inputs) + nbytes(output))
    count = prod(output.shape)
    if _indexed(inputs, output, kernels):
        work = machine.cycles_ns(count * index_cycles(inputs, output, name))
        return Estimate(max(machine.fit.floor_ns + work, machine.memory_ns(moved)), moved)
    return Estimate(machine.memory_ns(moved, MATH_SHARE if _mathematical(name) else 1.0), moved)


def index_cycles(inputs: list[TensorSpec], output: TensorSpec, name: str) -> float:
    """SM cycles of an element where each operand has strides of its own."""
    whole = [t for t in inputs if prod(t.shape) > 1 and len(t.stride) == len(t.shape) <= len(output.shape)]
    touched = [sectors.per_element(t, output) for t in (*whole, output)]
    cycles = INDEX_CYCLES + LOAD_CYCLES * sum(w for w, _ in touched) + SECTOR_CYCLES * sum(b for _, b in touched)
    dtypes = {t.dtype for t in (*whole, output)} - {"bool"}
    return cycles + (CAST_CYCLES if len(dtypes) > 1 and not name.startswith("copy") else 0.0)


def operands(signature: OperatorSignature, name: str) -> tuple[list[TensorSpec], TensorSpec]:
    """The operands that are read, and the one that is written."""
    given = on_gpu(signature.args)
    if signature.outputs:
        return given, signature.outputs[0]
    overwrites = name.rstrip("_") in ("copy", "fill", "zero", "uniform", "normal", "random", "bernoulli", "exponential")
    if not given:
        return [], created(signature)
    if name.endswith("_") and not name.endswith("__"):
        return (given[1:] if overwrites else given), given[0]
    shape = broadcast(t.shape for t in given)
    dtype = max(given, key=lambda t: (t.dtype.startswith(("float", "bfloat", "complex")), item_bytes(t.dtype))).dtype
    if name in _PREDICATES:
        dtype = "bool"
    model = next((t for t in given if t.shape == shape and dense(t)), None)
    if model is not None:
        return given, TensorSpec(dtype, shape, stride=model.stride)
    model = next((t for t in given if t.shape == shape and len(t.stride) == len(shape) and 0 not in t.stride), None)
    if model is not None:  # gaps are closed, the order of the dimensions stays
        return given, TensorSpec(dtype, shape, stride=_closed(model))
    return given, TensorSpec(dtype, shape, stride=contiguous_strides(shape))


def _closed(tensor: TensorSpec) -> tuple[int, ...]:
    """Strides without gaps in the same order of dimensions."""
    strides, step = [1] * len(tensor.shape), 1
    for dim in reversed(layout(tensor)):
        strides[dim] = step
        step *= tensor.shape[dim]
    return tuple(strides)


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
    return TensorSpec(dtype, shape, stride=contiguous_strides(shape))


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
    """True if the kernel computes an index (or cast) per element: by its name, else by the operands."""
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


def places(signature: OperatorSignature, name: str, compute: str, launches: int) -> tuple[Place, ...]:
    """By size. Rows and columns whose result is larger than any of them have its size, in families of their own."""
    found = coordinates.by_size(signature, name, compute, launches)
    given = on_gpu(signature.args)
    if len(given) < 2 or coordinates.tensor_lists(signature):
        return found
    grown = prod(broadcast(t.shape for t in given)) / max(1, *(prod(t.shape) for t in given))
    if grown <= 1.0:
        return found
    return tuple(Place(f"{each.family} grown", (each.at[0] + coordinates.log(grown), *each.at[1:])) for each in found)


FAMILY = Family("elementwise", classify=classify, estimate=estimate, precedence=LAST, places=places)
