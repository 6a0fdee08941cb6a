"""Stand-in for ``natten.libnatten`` of natten: neighbourhood attention in one to three dimensions.

Its Python half allocates the results and calls these functions, inside of operators of torch or not. They have the
price of :mod:`phantora.cost.families.natten`. Checks and workspaces are those of its csrc (0.21.7).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from phantora.rank.standins.kernels import check, launch, operator

HOPPER_HEADS = (32, 64, 128, 256)
BLACKWELL_HEAD = 128
PERMUTED = ("hopper", "blackwell")
"""Architectures whose kernels take tokens in the order of tiles."""
ROWS_PER_BLOCK = 64
_BEFORE = "sum_OdO"  # sums of rows of gradient times result


def _tensors(**tensors: Any) -> None:
    for name, tensor in tensors.items():
        check(tensor.is_contiguous(), f"{name} must be contiguous")
        check(tensor.is_cuda, f"{name} must be a CUDA tensor.")
    kinds = {tensor.dtype for tensor in tensors.values()}
    check(len(kinds) == 1, "Input tensors must match in dtype!")


def _same(a: Any, b: Any, but_heads: bool = False) -> None:
    """One shape; with `but_heads` all but the size of heads."""
    for i, (one, other) in enumerate(zip(a.shape[: -1 if but_heads else None], b.shape, strict=False)):
        check(one == other, f"Tensor shape mismatch at dimension {i}: {one} != {other}")


def _window(windows: Any, strides: Any, dilations: Any, extents: Any) -> None:
    for extent, window, stride, dilation in zip(extents, windows, strides, dilations, strict=True):
        check(window > 1, f"Kernel size must be greater than 1, got {window}.")
        check(dilation >= 1, f"Dilation must be a positive integer, got {dilation}.")
        check(stride >= 1, f"Stride must be a positive integer, got {stride}.")
        small = f"Stride must be smaller than or equal to kernel size, got kernel_size={window}, stride={stride}."
        check(stride <= window, small)
        check(
            window * dilation <= extent,
            "Input axes must be greater than or equal to the product of kernel size and dilation. "
            f"Got kernel size {window}, dilation {dilation}, but dimension size was {extent}.",
        )


def _for(architecture: str, what: str, query: Any) -> None:
    """As the kernels of an architecture take them."""
    import torch

    capability, head = torch.cuda.get_device_capability(query.device), query.shape[-1]
    half = query.dtype in (torch.float16, torch.bfloat16)
    if architecture == "hopper":
        check(head in HOPPER_HEADS, f"Hopper {what.split()[0]} only supports head dims 32, 64, 128, and 256 for now.")
        check(capability == (9, 0), "This operation can only run on the Hopper architecture (SM90).")
        check(half, "Only FP16/BF16 is supported for now.")
    elif architecture == "blackwell":
        check(head <= BLACKWELL_HEAD, f"Blackwell {what} only supports head dims up to {BLACKWELL_HEAD}, got {head}")
        where = "the Blackwell (datacenter-class) architecture (SM100, SM103)."
        check(capability in ((10, 0), (10, 3)), f"Blackwell {what} can only run on {where}")
    else:
        check(capability >= (8, 0) or query.dtype != torch.bfloat16, "BF16 needs compute capability >= 80")


def _common(architecture: str, what: str, rank: int, query: Any, key: Any, value: Any) -> None:
    check(query.dim() == rank, f"Tensors must be {rank}-D.")
    _tensors(query=query, key=key, value=value)
    for title, tensor in (("Query", query), ("Value", value)):
        step = 16 // tensor.element_size()
        check(
            tensor.shape[-1] % step == 0,
            f"{title} head dimension must be a multiple of {step} for this data type to meet the 128-bit alignment "
            f"constraint, got {tensor.shape[-1]}.",
        )
    _for(architecture, what, query)


def _extents(architecture: str, query: Any, behind: tuple[Any, ...]) -> tuple[int, ...]:
    """Extents of the tokens: `behind` the scale they stand third where tokens are permuted."""
    return tuple(behind[2]) if architecture in PERMUTED else tuple(query.shape[1:-2])


def _workspace(architecture: str, query: Any) -> list[Any]:
    """What a backward pass allocates: gradients of queries in float32, rows of gradient times result; kernels of their
    own architecture keep the log-sum-exp in another base as well."""
    import torch

    if architecture == "reference":
        return []
    rows = prod(query.shape[:-1])
    each = 2 if architecture in PERMUTED else 1
    floats = rows * query.shape[-1] if query.dtype != torch.float32 or each == 2 else 0
    return [
        torch.empty(count, dtype=torch.float32, device=query.device)
        for count in ([floats + 2 * rows] if each == 2 else [rows, floats])
        if count
    ]


def _run(name: str, tensors: list[Any], options: tuple[Any, ...], *helpers: str) -> None:
    """`tensors` begin with (batch, ..., heads, head)."""
    blocks = -(-prod(tensors[0].shape[:-1]) // ROWS_PER_BLOCK)

    def kernels() -> None:
        for helper in helpers:
            launch(f"natten_{helper}", blocks)
        launch(f"natten_{name}", blocks, 384)

    given = [*tensors, *(list(each) if isinstance(each, tuple) else each for each in options)]
    operator(f"natten::{name}", given, kernels)


def _neighbourhood(architecture: str, dimensions: int) -> dict[str, Callable[..., None]]:
    """Forward and backward passes of one kind of kernels."""
    stem = f"{architecture and architecture + '_'}na{dimensions}d"
    permuted = architecture in PERMUTED
    rank = 4 if permuted else dimensions + 3

    def forward(out: Any, query: Any, key: Any, value: Any, logsumexp: Any, *options: Any) -> None:
        _common(architecture, "FNA forward", rank, query, key, value)
        windows, strides, dilations, _, _, *behind = options
        _window(windows, strides, dilations, _extents(architecture, query, tuple(behind)))
        if not permuted:
            _same(query, key)
            _same(query, value, but_heads=True)
        _same(out, query if permuted else value)
        _run(f"{stem}_forward", [query, key, value], options)

    def backward(*given: Any) -> None:
        dq, dk, dv, query, key, value, out, dout, logsumexp, *options = given
        _common(architecture, "FNA backward", rank, query, key, value)
        windows, strides, dilations, _, _, *behind = options
        _window(windows, strides, dilations, _extents(architecture, query, tuple(behind)))
        for gradient, tensor in ((dq, query), (dk, key), (dv, value), (dout, out)):
            _same(gradient, tensor)
        _made = _workspace(architecture, query)
        _run(f"{stem}_backward", [query, key, value, out, dout, logsumexp], tuple(options), _BEFORE)

    return {f"{stem}_forward": forward, f"{stem}_backward": backward}


def _attention(architecture: str) -> dict[str, Callable[..., None]]:
    """Attention to all keys."""
    stem = f"{architecture and architecture + '_'}fmha"

    def forward(out: Any, query: Any, key: Any, value: Any, logsumexp: Any, *options: Any) -> None:
        _common(architecture, "FMHA forward", 4, query, key, value)
        _same(key, value, but_heads=True)
        _run(f"{stem}_forward", [query, key, value], options)

    def backward(*given: Any) -> None:
        _, _, _, query, key, value, out, dout, logsumexp, *options = given
        _common(architecture, "FMHA backward", 4, query, key, value)
        _made = _workspace(architecture, query)
        _run(f"{stem}_backward", [query, key, value, out, dout, logsumexp], tuple(options), _BEFORE)

    return {f"{stem}_forward": forward, f"{stem}_backward": backward}


def _permutation(name: str) -> Callable[..., None]:
    def permute(out: Any, tensor: Any, *options: Any) -> None:
        """Tokens in the order of tiles, or back."""
        _tensors(out=out, input=tensor)
        operator(f"natten::{name}", [tensor, out], lambda: launch(f"natten_{name}", -(-out.numel() // 2048), 256))

    return permute


def compute_delta(out: Any, d_out: Any, delta: Any) -> None:
    """Sums of rows of gradient times result."""
    _tensors(out=out, d_out=d_out)
    given = [out, d_out, delta]
    operator("natten::compute_delta", given, lambda: launch("natten_compute_delta", -(-delta.numel() // 4), 128))


def exported() -> dict[str, Callable[..., Any]]:
    """All functions of the compiled module by name."""
    made: dict[str, Callable[..., Any]] = {"compute_delta": compute_delta}
    for architecture in ("", "hopper", "blackwell", "reference"):
        for dimensions in (1, 2, 3):
            made |= _neighbourhood(architecture, dimensions)
        if architecture != "reference":
            made |= _attention(architecture)
    for name in (f"token_{way}_{n}d" for way in ("permute", "unpermute") for n in (1, 2, 3)):
        made[name] = _permutation(name)
    return made
