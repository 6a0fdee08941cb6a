"""Stand-ins for compiled halves of apex: norms, optimizers over lists of tensors, gradients of weights.

They have the prices of torch's operators. Shapes and checks are those of its csrc (July 2026).
"""

from __future__ import annotations

from math import prod
from typing import Any

from phantora.rank.standins.kernels import check, launch, operator

BLOCKS = 320  # of a launch over a list of tensors
TENSORS = (110, 64, 48, 36, 30)  # in a launch, by the number of lists
Lists = list[list[Any]]


def _contiguous(**tensors: Any) -> None:
    for name, tensor in tensors.items():
        check(tensor.is_cuda, f"{name} must be a CUDA tensor")
        check(tensor.is_contiguous(), f"{name} must be contiguous")


def _rows(x: Any, shape: Any, *weights: Any) -> int:
    """Rows of the normalised dimensions."""
    wide = tuple(shape)
    check(len(wide) > 0, "normalized_shape must have at least one dimension")
    fits = tuple(x.shape[-len(wide) :]) == wide
    check(fits, f"Given normalized_shape={list(wide)}, expected input with shape [*, ...], got {list(x.shape)}")
    for weight in weights:
        check(weight is None or tuple(weight.shape) == wide, "gamma and beta must have the shape normalized_shape")
    return prod(x.shape[: -len(wide)])


def _sums(x: Any, rows: int) -> Any:
    import torch

    kind = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    return torch.empty((rows,), dtype=kind, device=x.device)


def forward(x: Any, shape: Any, eps: float) -> list[Any]:
    """Returns the result, and each row's mean and inverse deviation."""
    return _layer_norm(x, shape, None, None, eps, x.dtype)


def forward_affine(x: Any, shape: Any, gamma: Any, beta: Any, eps: float) -> list[Any]:
    """Layer norm with weights."""
    _contiguous(gamma=gamma, beta=beta)
    return _layer_norm(x, shape, gamma, beta, eps, x.dtype)


def forward_affine_mixed_dtypes(x: Any, shape: Any, gamma: Any, beta: Any, eps: float) -> list[Any]:
    """Layer norm with a result of the weights' type."""
    return _layer_norm(x, shape, gamma, beta, eps, gamma.dtype)


def _layer_norm(x: Any, shape: Any, gamma: Any, beta: Any, eps: float, kind: Any) -> list[Any]:
    import torch

    _contiguous(input=x)
    rows = _rows(x, shape, gamma, beta)
    made = [torch.empty_like(x, dtype=kind), _sums(x, rows), _sums(x, rows)]
    given = [x, list(shape), gamma, beta, eps]
    operator("aten::native_layer_norm", given, lambda: launch("cuApplyLayerNorm", rows))
    return made


def rms_forward(x: Any, shape: Any, eps: float) -> list[Any]:
    """Returns the result, and each row's inverse deviation."""
    return _rms_norm(x, shape, None, eps, x.dtype)


def rms_forward_affine(x: Any, shape: Any, gamma: Any, eps: float) -> list[Any]:
    """RMS norm with weights."""
    _contiguous(gamma=gamma)
    return _rms_norm(x, shape, gamma, eps, x.dtype)


def rms_forward_affine_mixed_dtypes(x: Any, shape: Any, gamma: Any, eps: float) -> list[Any]:
    """RMS norm with a result of the weights' type."""
    return _rms_norm(x, shape, gamma, eps, gamma.dtype)


def _rms_norm(x: Any, shape: Any, gamma: Any, eps: float, kind: Any) -> list[Any]:
    import torch

    _contiguous(input=x)
    rows = _rows(x, shape, gamma)
    made = [torch.empty_like(x, dtype=kind), _sums(x, rows)]
    given = [x, list(shape), gamma, eps]
    operator("aten::_fused_rms_norm", given, lambda: launch("cuApplyRMSNorm", rows))
    return made


def backward(dout: Any, mean: Any, invvar: Any, x: Any, shape: Any, eps: float, memory_efficient: bool) -> Any:
    """Returns the gradient; `x` is the input, or the result with `memory_efficient`."""
    return _gradients("layer", dout, mean, invvar, x, shape, (None, None))[0]


def backward_affine(
    dout: Any, mean: Any, invvar: Any, x: Any, shape: Any, gamma: Any, beta: Any, eps: float, memory_efficient: bool
) -> list[Any]:
    """Returns the gradients of the input and of both weights."""
    _contiguous(gamma=gamma, beta=beta)
    return _gradients("layer", dout, mean, invvar, x, shape, (gamma, beta))


def rms_backward(dout: Any, invvar: Any, x: Any, shape: Any, eps: float, memory_efficient: bool) -> Any:
    """Returns the gradient."""
    return _gradients("rms", dout, None, invvar, x, shape, (None,))[0]


def rms_backward_affine(
    dout: Any, invvar: Any, x: Any, shape: Any, gamma: Any, eps: float, memory_efficient: bool
) -> list[Any]:
    """Returns the gradients of the input and of the weights."""
    _contiguous(gamma=gamma)
    return _gradients("rms", dout, None, invvar, x, shape, (gamma,))


def _gradients(kind: str, dout: Any, mean: Any, invvar: Any, x: Any, shape: Any, weights: tuple[Any, ...]) -> list[Any]:
    import torch

    _contiguous(dout=dout, invvar=invvar, input_or_output=x)
    rows = _rows(x, shape, *weights)
    made = [torch.empty_like(x), *(torch.empty_like(weight) for weight in weights if weight is not None)]
    wanted = [True, *(weight is not None for weight in weights)]
    if kind == "layer":
        name, given = "aten::native_layer_norm_backward", [dout, x, list(shape), mean, invvar, *weights, wanted]
    else:
        name, given = "aten::_fused_rms_norm_backward", [dout, x, list(shape), invvar, *weights, wanted]

    def kernels() -> None:
        if len(made) > 1:
            launch("cuComputePartGradGammaBeta", rows // 16 + 1)
            launch("cuComputeGradGammaBeta", prod(shape) // 32 + 1)
        launch("cuComputeGradInput", rows)

    operator(name, given, kernels)
    return made


def _over(name: str, kernel: str, chunk: int, lists: Lists, shown: Lists) -> None:
    """Launches over `lists` that have the price of the operator `name` of torch with the lists `shown`."""
    check(len(lists) > 0 and len(lists[0]) > 0, "tensor_lists[0].size() > 0")
    for each in lists:
        check(len(each) == len(lists[0]), "tensor_lists[l].size() == ntensors")
        check(all(t.is_cuda for t in each), "expected input to be on cuda")
        sizes = all(a.numel() == b.numel() for a, b in zip(each, lists[0], strict=True))
        check(sizes, "input tensors must have the same size")
    blocks = sum(-(-t.numel() // chunk) for t in lists[0])
    of_tensors = -(-len(lists[0]) // TENSORS[min(len(lists), len(TENSORS)) - 1])

    def kernels() -> None:
        for _ in range(max(of_tensors, -(-blocks // BLOCKS))):
            launch(kernel, min(blocks, BLOCKS), 512)

    operator(name, [list(each) for each in shown], kernels)


def multi_tensor_scale(chunk_size: int, noop_flag: Any, tensor_lists: Lists, scale: float) -> None:
    """The first list, scaled, goes into the second."""
    _over("aten::_foreach_mul", "multi_tensor_scale", chunk_size, tensor_lists, tensor_lists[:1])


def multi_tensor_axpby(chunk_size: int, noop_flag: Any, tensor_lists: Lists, a: float, b: float, checked: int) -> None:
    """The sum of two scaled lists goes into the third."""
    _over("aten::_foreach_add", "multi_tensor_axpby", chunk_size, tensor_lists, tensor_lists[:2])


def multi_tensor_l2norm(
    chunk_size: int, noop_flag: Any, tensor_lists: Lists, per_tensor_python: bool | None = None
) -> tuple[Any, Any]:
    """Returns the norm of all tensors, and that of each if asked for."""
    import torch

    _over("aten::_foreach_norm", "multi_tensor_l2norm", chunk_size, tensor_lists, tensor_lists[:1])
    each = len(tensor_lists[0]) if per_tensor_python else 0
    launch("multi_tensor_l2norm_cleanup", max(1, each), 512)
    return tuple(torch.zeros((n,), dtype=torch.float32, device=tensor_lists[0][0].device) for n in (1, each))  # type: ignore[return-value]


def multi_tensor_l2norm_mp(
    chunk_size: int, noop_flag: Any, tensor_lists: Lists, per_tensor_python: bool | None = None
) -> tuple[Any, Any]:
    """Norms, which stop at values that are not finite."""
    return multi_tensor_l2norm(chunk_size, noop_flag, tensor_lists, per_tensor_python)


def multi_tensor_l2norm_scale(
    chunk_size: int, noop_flag: Any, tensor_lists: Lists, scale: float, per_tensor_python: bool | None = None
) -> tuple[Any, Any]:
    """Scales the first list into the second, and returns its norms."""
    multi_tensor_scale(chunk_size, noop_flag, tensor_lists, scale)
    return multi_tensor_l2norm(chunk_size, noop_flag, tensor_lists, per_tensor_python)


def multi_tensor_unscale_l2norm(
    chunk_size: int, noop_flag: Any, tensor_lists: Lists, inv_scale: Any, per_tensor_python: bool | None = None
) -> tuple[Any, Any]:
    """Returns the norms of what is unscaled."""
    return multi_tensor_l2norm(chunk_size, noop_flag, tensor_lists, per_tensor_python)


def _optimizer(name: str, kernel: str, chunk: int, lists: Lists) -> None:
    """Lists of apex begin with gradients and parameters, those of torch with parameters and gradients."""
    _over(name, kernel, chunk, lists, [lists[1], lists[0], *lists[2:]])


def multi_tensor_adam(chunk_size: int, noop_flag: Any, tensor_lists: Lists, *options: Any) -> None:
    """Gradients, parameters, both moments, and float32 parameters where the others have 16 bits."""
    _optimizer("aten::_fused_adam_", "multi_tensor_adam", chunk_size, tensor_lists)


multi_tensor_adam_capturable = multi_tensor_adam
multi_tensor_adam_capturable_master = multi_tensor_adam


def multi_tensor_sgd(chunk_size: int, noop_flag: Any, tensor_lists: Lists, *options: Any) -> None:
    """Gradients, parameters, momenta, and copies of parameters in 16 bits if there are."""
    _optimizer("aten::_fused_sgd_", "multi_tensor_sgd", chunk_size, tensor_lists)


def multi_tensor_adagrad(chunk_size: int, noop_flag: Any, tensor_lists: Lists, *options: Any) -> None:
    """Gradients, parameters, sums of squares."""
    _optimizer("aten::_fused_adagrad_", "multi_tensor_adagrad", chunk_size, tensor_lists)


def multi_tensor_novograd(chunk_size: int, noop_flag: Any, tensor_lists: Lists, *options: Any) -> None:
    """Gradients, parameters, momenta."""
    _optimizer("aten::_fused_sgd_", "multi_tensor_novograd", chunk_size, tensor_lists)


def multi_tensor_lamb(chunk_size: int, noop_flag: Any, tensor_lists: Lists, *options: Any) -> None:
    """Gradients, parameters, both moments: the update goes into the gradients, then norms, then parameters."""
    _optimizer("aten::_fused_adam_", "multi_tensor_lamb_stage1", chunk_size, tensor_lists)
    for each in (tensor_lists[1], tensor_lists[0]):
        multi_tensor_l2norm(chunk_size, noop_flag, [each], True)
    pair = [tensor_lists[1], tensor_lists[0]]
    _over("aten::_foreach_add", "multi_tensor_lamb_stage2", chunk_size, pair, pair)


multi_tensor_lamb_mp = multi_tensor_lamb


def wgrad_gemm_accum_fp32(x: Any, dout: Any, gradient: Any) -> None:
    """Adds the gradient of weights, (out, in), to `gradient`: `x` is (..., in) and `dout` (..., out)."""
    _accumulate(x, dout, gradient)


def wgrad_gemm_accum_fp16(x: Any, dout: Any, gradient: Any) -> None:
    """Adds the gradient of weights to one of 16 bits."""
    _accumulate(x, dout, gradient)


def _accumulate(x: Any, dout: Any, gradient: Any) -> None:
    rows, columns = x.flatten(0, -2), dout.flatten(0, -2)
    check(rows.shape[0] == columns.shape[0], "input and d_output must have the same rows")
    check(tuple(gradient.shape) == (columns.shape[1], rows.shape[1]), "d_weight must have the shape (out, in)")
    tiles = -(-columns.shape[1] // 128) * -(-rows.shape[1] // 128)
    operator("aten::addmm", [gradient, columns.t(), rows, 1, 1], lambda: launch("gemm_accumulate", tiles, 384))
