"""A Triton kernel as a run launched it, from its IR, grid and arguments: compiled and called again."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch

from phantora.cost.types import OperatorSignature, TensorSpec
from phantora.profile.arena import Arena, Unbuildable, dtype_of


def rebuild(signature: OperatorSignature, kernel: Mapping[str, Any], arena: Arena) -> Callable[[], Any]:
    """A function that launches the kernel. Raises Unbuildable: no Triton here, or one that does not take this IR."""
    try:
        import triton
    except ImportError as error:
        raise Unbuildable("Triton is not installed") from error
    with tempfile.TemporaryDirectory() as made:
        path = Path(made) / "kernel.ttir"
        path.write_text(kernel["ttir"])
        try:
            compiled = triton.compile(str(path), options={"num_warps": kernel["warps"], "num_stages": kernel["stages"]})
        except Exception as error:  # whatever its passes raise
            first = (str(error).splitlines() or [type(error).__name__])[0]
            raise Unbuildable(f"this Triton does not compile the kernel's IR: {first[:150]}") from error
    types = list(compiled.src.signature.values())
    if len(types) != len(signature.args):
        raise Unbuildable(f"the kernel takes {len(types)} arguments, {len(signature.args)} are known")
    given = [_argument(value, kind, arena) for value, kind in zip(signature.args, types, strict=True)]
    launch = compiled[tuple(signature.grid)]
    return lambda: launch(*given)


def _argument(value: Any, kind: str, arena: Arena) -> Any:
    """Numbers that decide nothing are 1; integers in memory that decide something are not rebuilt at all."""
    if not isinstance(value, TensorSpec):
        return value if value is not None else 1.0 if kind.startswith(("fp", "bf", "f")) else 1
    dtype = dtype_of(value.dtype)
    if dtype.is_floating_point or dtype.is_complex:
        return arena.cut(value, written=True)
    size = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride, strict=True)) if prod(value.shape) else 0
    return torch.zeros(size, dtype=dtype, device=arena.device).as_strided(value.shape, value.stride)
