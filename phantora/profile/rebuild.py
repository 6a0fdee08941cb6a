"""A call of an operator from its signature, with operands of the same shapes, strides and dtypes.

Floating-point operands are cut from an :class:`Arena` of random numbers, so that building them costs
little and none shares memory with another. Values matter: divisions and roots take a slower path for what
is infinite, subnormal or no number. So what an operator writes is fresh for each operator, optimizers get
positive numbers, as their second moments are, and an arena contains the operands of one call at a time. Integers
are made so that they are valid where they mean something: indices lie inside what they index, offsets rise to
the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from phantora.cost.types import OperatorSignature, TensorSpec
from phantora.profile import triton_kernels
from phantora.profile.arena import DTYPES, Arena, Unbuildable, dtype_of
from phantora.ttir import store

STEP = 10  # of optimizers: a power of a whole number is computed faster than others
COPY = "phantora::copy"
MEMSET = "phantora::memset"

_WORDS: dict[str, Any] = {
    **DTYPES,
    **{str(layout).removeprefix("torch."): layout for layout in (torch.strided, torch.sparse_coo, torch.sparse_csr)},
    "contiguous_format": torch.contiguous_format,
    "preserve_format": torch.preserve_format,
    "channels_last": torch.channels_last,
    "channels_last_3d": torch.channels_last_3d,
    "generator": None,
    "nan": float("nan"),
    "inf": float("inf"),
    "-inf": float("-inf"),
}
# Operators whose kernels need a peer, or that wait for an answer of the GPU.
_NAMESPACES = ("c10d", "_c10d_functional", "profiler")
# Arguments that an operator writes although its schema does not say so. What they left in memory that others read
# would be NaN in another format.
_UPDATED = ("running_mean", "running_var")


@dataclass(frozen=True)
class Call:
    """An operator with its operands, until another is rebuilt in the same arena."""

    name: str
    """Without overload: what a profiler calls it."""
    run: Callable[[], Any]


def rebuild(signature: OperatorSignature, arena: Arena, kernel: Mapping[str, Any] | None = None) -> Call:
    """The call that `signature` describes, whose operands have the arena to themselves: calls rebuilt before can
    no longer run. `kernel` is the IR of a Triton kernel that came from another machine. Raises Unbuildable with the
    reason."""
    arena.reset()
    if signature.ir:
        kernel = kernel or store.kept(signature.ir)
        if kernel is None:
            raise Unbuildable("its IR is not on this machine: take the list that `phantora trace --missing` writes")
        return Call("", _while_held(arena, signature, triton_kernels.rebuild(signature, kernel, arena)))
    if signature.name in (COPY, MEMSET):
        return _transfer(signature, arena)
    operator = _operator(signature.name)
    arguments = operator._schema.arguments
    if len(signature.args) > len(arguments):
        raise Unbuildable(f"this torch's {signature.name} takes {len(arguments)} arguments, not {len(signature.args)}")
    values = _amended(signature)
    base = signature.name.rpartition("::")[2].partition(".")[0]
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for index, (value, argument) in enumerate(zip(values, arguments, strict=False)):
        positive = _takes_roots(base) or argument.name in _UPDATED
        built = _value(
            _Place(
                operator=base,
                argument=argument.name,
                index=index,
                arguments=values,
                written=_is_written(argument),
                positive=positive,
            ),
            value,
            arena,
        )
        if argument.kwarg_only:
            named[argument.name] = built
        else:
            positional.append(built)
    if base == "cudnn_batch_norm_backward":
        positional[-1] = _batch_norm_reserve(positional)
    run = _while_held(arena, signature, lambda: operator(*positional, **named))
    return Call(signature.name.partition(".")[0], run)


def _while_held(arena: Arena, signature: OperatorSignature, call: Callable[[], Any]) -> Callable[[], Any]:
    """`call`, which fails once another operator has the arena."""
    mine = arena.call

    def run() -> Any:
        if arena.call != mine:
            raise RuntimeError(f"the operands of {signature.name} gave way to those of another operator")
        return call()

    return run


def schema(name: str) -> Any:
    """The schema of the operator `name` (``aten::add.Tensor``). Raises Unbuildable for unknown ones."""
    return _operator(name)._schema


def _batch_norm_reserve(arguments: list[Any]) -> torch.Tensor:
    """The reserve of cuDNN's forward pass for the backward one, of a size that only cuDNN gives."""
    x, weight, mean, variance, epsilon = arguments[0], arguments[2], arguments[3], arguments[4], arguments[7]
    forward = torch.ops.aten.cudnn_batch_norm
    reserve: torch.Tensor = forward(x, weight, weight, mean, variance, True, 0.1, epsilon)[3]
    return reserve


def _operator(name: str) -> Any:
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    if namespace in _NAMESPACES:
        raise Unbuildable(f"operators of {namespace} need their peers")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    except (AttributeError, RuntimeError) as error:
        raise Unbuildable(f"{name} is not known to this torch; an extension's operator cannot be rebuilt") from error


def _takes_roots(operator: str) -> bool:
    """True if the operator expects positive numbers."""
    fused = ("_fused_adam", "_fused_sgd", "_fused_adagrad", "_foreach_", "_amp_foreach")
    return operator.startswith((*fused, "addcdiv")) or operator.rstrip("_") in ("sqrt", "rsqrt", "log", "pow")


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and bool(argument.alias_info.is_write)


def _amended(signature: OperatorSignature) -> tuple[Any, ...]:
    """The arguments, with those restored that the signature had rounded and that decide a size."""
    args = signature.args
    if signature.name in ("aten::arange.start_out", "aten::range.out") and isinstance(args[3], TensorSpec):
        start, step = args[0], args[2]
        if isinstance(start, (int, float)) and isinstance(step, (int, float)):
            return (start, start + step * prod(args[3].shape), step, args[3])
    return args


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Place of a value, which decides the meaning of integers in it."""

    operator: str
    argument: str
    index: int
    arguments: tuple[Any, ...]
    written: bool
    positive: bool


def _value(place: _Place, value: Any, arena: Arena) -> Any:
    if isinstance(value, TensorSpec):
        return _tensor(place, value, arena, 0)
    if isinstance(value, tuple):
        return [
            _tensor(place, item, arena, i) if isinstance(item, TensorSpec) else _value(place, item, arena)
            for i, item in enumerate(value)
        ]
    if isinstance(value, str):
        if place.argument == "device" or value == "cuda":
            return torch.device(arena.device if value == "cuda" else value)
        return _WORDS.get(value, value)
    return value


def _tensor(place: _Place, spec: TensorSpec, arena: Arena, position: int) -> torch.Tensor:
    dtype = dtype_of(spec.dtype)
    if spec.device != "cuda":
        if spec.device != "cpu":
            raise Unbuildable(f"it has an operand on {spec.device}")
        if spec.shape and dtype == torch.int64 and place.operator.strip("_").startswith("index"):
            return torch.randint(max(1, _bound(place, position)), spec.shape)  # one place for all would take longer
        return torch.ones(1, dtype=dtype).as_strided(spec.shape, (0,) * len(spec.shape))
    if len(spec.stride) != len(spec.shape):
        raise Unbuildable("it has an operand that is not strided")
    if dtype.is_floating_point or dtype.is_complex:
        cut = arena.cut(spec, place.written, place.positive)
        return cut.fill_(STEP) if place.argument == "state_steps" else cut
    tensor = torch.empty_strided(spec.shape, spec.stride, dtype=dtype, device=arena.device)
    rows = _rising_to(place)
    if rows is not None and spec.shape:
        ends = torch.arange(spec.shape[0], device=arena.device)
        if place.operator.startswith("_embedding_bag"):
            return tensor.copy_(ends * rows // spec.shape[0])
        first = 1 if place.argument == "offs" else 0
        count = max(1, spec.shape[0] - 1 + first)
        tensor.copy_((ends + first) * rows // count // (16 if first else 1) * (16 if first else 1))
        if first:
            tensor[-1] = rows
        return tensor
    bound = 0 if "philox" in place.argument or "rng" in place.argument else _bound(place, position)
    if dtype == torch.bool:
        return tensor.fill_(True) if bound == 1 else tensor.random_(0, 2)
    if bound <= 1 or (not dtype.is_signed and dtype != torch.uint8):
        return tensor.zero_()
    # Overlapping elements (an expanded index) are written several times, which does no harm.
    storage = tensor.as_strided((tensor.untyped_storage().nbytes() // dtype.itemsize,), (1,))
    storage.random_(0, min(bound, torch.iinfo(dtype).max))
    return tensor


def _rising_to(place: _Place) -> int | None:
    """Rows that an argument of offsets divides, or None if it is none."""
    tensors = [t for t in place.arguments if isinstance(t, TensorSpec)]
    if place.argument == "offs" and len(tensors) > 1:
        a, b = tensors[0], tensors[1]
        if len(a.shape) == 2:
            return a.shape[1] if len(b.shape) == 2 else a.shape[0]
        return b.shape[-1]
    if place.operator == "_embedding_bag" and place.argument == "offsets":
        return _size(place, 1, 0)
    if place.operator == "_embedding_bag_dense_backward" and place.argument == "offset2bag":
        return _size(place, 0, 0)
    if place.argument.startswith(("cum_seq", "cu_seqlens", "seqstart")):
        query = "_k" not in place.argument
        shapes = [t.shape for t in tensors if len(t.shape) >= 3]
        shift = 1 if "backward" in place.operator else 0
        if len(shapes) > 1 + shift:
            return shapes[shift if query else shift + 1][0 if len(shapes[0]) == 3 else 1]
    return None


def _size(place: _Place, index: int, dim: int) -> int:
    spec = place.arguments[index]
    return int(spec.shape[dim]) if isinstance(spec, TensorSpec) and spec.shape else 1


def _bound(place: _Place, position: int) -> int:
    """Integers of this argument are smaller than this."""
    name, index, args = place.operator, place.index, place.arguments
    first = next((a for a in args if isinstance(a, TensorSpec)), None)
    if name == "embedding":
        return _size(place, 0, 0)
    if name == "embedding_dense_backward":
        return int(args[2])
    if name == "_embedding_bag" and index == 1:
        return _size(place, 0, 0)
    if name == "_embedding_bag_dense_backward" and index in (1, 4):  # indices, and the largest of each column
        return int(args[5])
    if name.startswith("nll_loss"):
        return _size(place, 1 if "backward" in name else 0, 1)
    if name.startswith(("gather", "scatter", "index_select", "index_add", "index_copy", "index_fill")) and index == 2:
        return _size(place, 0, int(args[1]))
    if name.startswith("gather_backward") or name == "index_select_backward":
        return 1
    if name.strip("_").startswith(("index", "unsafe_index")) and index == 1 and first is not None:
        return int(first.shape[position])
    if name.startswith("take") and first is not None:
        return prod(first.shape)
    if "max_pool" in name and "backward" in name and place.argument == "indices":
        return prod(args[1].shape[-3 if "pool3d" in name else -2 :])  # of a plane or a volume
    if name.startswith(("repeat_interleave", "one_hot", "bincount")):
        return 2
    return 1000


def _transfer(signature: OperatorSignature, arena: Arena) -> Call:
    """Copies and memsets are no operators of torch: ``phantora::copy(kind, bytes)``."""
    kind, size = (str(signature.args[0]), int(signature.args[1])) if len(signature.args) == 2 else ("", 0)
    flat = TensorSpec("uint8", (size,), stride=(1,))
    if signature.name == MEMSET:
        size = int(signature.args[0])
        target = torch.empty(size, dtype=torch.uint8, device=arena.device)
        set_bytes = _memset()
        stream = torch.cuda.current_stream().cuda_stream
        return Call("", lambda: set_bytes(target.data_ptr(), 0, size, stream))
    there = torch.empty(flat.shape, dtype=torch.uint8, device=arena.device)
    if kind == "d2d":
        other = torch.empty(flat.shape, dtype=torch.uint8, device=arena.device)
    elif kind in ("h2d_pinned", "d2h_pinned", "h2d_pageable", "d2h_pageable"):
        other = torch.empty(flat.shape, dtype=torch.uint8, pin_memory=kind.endswith("pinned")).fill_(1)
    else:
        raise Unbuildable(f"copies {kind} need a second GPU")
    target, source = (there, other) if kind.startswith("h2d") else (other, there)
    return Call("", lambda: target.copy_(source, non_blocking=True))


def _memset() -> Callable[..., Any]:
    import ctypes

    for major in (13, 12):
        try:
            function = ctypes.CDLL(f"libcudart.so.{major}").cudaMemsetAsync
        except (OSError, AttributeError):
            continue
        function.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p)
        return function
    raise Unbuildable("the CUDA runtime is not where torch loads it from")
