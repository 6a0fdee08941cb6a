"""Stand-ins for compiled modules of ``apex.contrib``: losses, norms, products by index, optimizers over shards.

Kernels have the prices of torch's operators that read and write the same tensors. Shapes and checks are those of
apex/contrib/csrc (July 2026).
"""

from __future__ import annotations

from math import prod
from typing import Any

from phantora.rank.standins import apex
from phantora.rank.standins.apex import Lists
from phantora.rank.standins.kernels import ONE_TO_ONE, TWO_TO_ONE, check, launch, operator

GROUPS = (16, 32)
CHANNELS = (
    *(128, 256, 320, 384, 448, 512, 640, 768, 896, 960, 1024, 1280, 1344, 1536, 1792, 1920, 2048, 2240, 2560),
    *(2688, 3072, 3136, 3584, 4096),
)
"""That the kernels of group norm are compiled for."""
SUMS = "aten::sum"  # reads a tensor once


def _given(**tensors: Any) -> None:
    for name, tensor in tensors.items():
        check(tensor.is_cuda, f"{name} must be a CUDA tensor")
        check(tensor.is_contiguous(), f"{name} must be contiguous")


def _rows(tensor: Any) -> int:
    return -int(-tensor.numel() // 2048)


def xentropy_forward(logits: Any, labels: Any, smoothing: float, half_to_float: bool) -> list[Any]:
    """`logits` (rows, classes), `labels` (rows). Returns losses in float32, and each row's log-sum-exp."""
    import torch

    check(logits.is_cuda, "input must be a CUDA tensor")
    _given(labels=labels)
    check(not half_to_float or logits.dtype == torch.float16, "conversion is supported for Half type only")
    check(labels.dtype == torch.int64, "Label type should be CUDA Long")
    check(logits.dim() == 2, "Currently only 2 dim input supported")
    check(labels.dim() == 1, "Labels should be 1 dimensional")
    check(logits.shape[0] == labels.shape[0], "Input and label should have same number of examples")
    check(logits.numel() > 0, "Number of classes in input should not be 0")
    logits = logits.contiguous()
    sums = torch.empty_like(labels, dtype=torch.float32 if half_to_float else logits.dtype)
    losses = torch.empty_like(labels, dtype=torch.float32)
    rows = logits.shape[0]
    operator("aten::logsumexp", [logits, [1], False], lambda: launch("cunn_SoftMaxXEntropyForward", rows, 1024))
    return [losses, sums]


def xentropy_backward(gradient: Any, logits: Any, sums: Any, labels: Any, smoothing: float) -> Any:
    """The gradient of `logits`."""
    import torch

    _given(max_log_sum_exp=sums, labels=labels)
    pair = (torch.float32, torch.float16)
    check(
        gradient.dtype == logits.dtype or (gradient.dtype, logits.dtype) == pair,
        "expected input and grad types to match, or input to be at::Half and grad to be at::Float",
    )
    check(logits.shape[0] == labels.shape[0], "Input and label should have same number of examples")
    check(labels.shape[0] == gradient.shape[0], "Label and loss should have same number of examples")
    made, logits, rows = torch.empty_like(logits), logits.contiguous(), logits.shape[0]
    operator(ONE_TO_ONE, [logits], lambda: launch("cunn_SoftMaxXEntropyBackward", rows, 1024))
    return made


def ln_fwd(x: Any, gamma: Any, beta: Any, epsilon: float) -> list[Any]:
    """`x` (rows, columns). Returns the result, and each row's mean and inverse deviation."""
    check(x.dim() == 2, "sizes.size() == 2")
    check(gamma.shape == beta.shape and gamma.numel() == x.shape[1], "hidden_size == cols")
    check(epsilon >= 0.0, "epsilon >= 0.f")
    return apex.forward_affine_mixed_dtypes(x, list(gamma.shape), gamma, beta, epsilon)


def ln_bwd(dout: Any, x: Any, mean: Any, inverse: Any, gamma: Any, beta: Any, memory_efficient: bool) -> list[Any]:
    """Returns the gradients of the input and of both weights, and the last two's parts of each block of threads."""
    import torch

    check(x.dim() == 2 and dout.shape == x.shape, "dz.sizes() == sizes")
    weights = gamma if beta is None else beta
    made = apex.backward_affine(dout, mean, inverse, x, list(gamma.shape), gamma, weights, 1e-5, memory_efficient)
    blocks = torch.cuda.get_device_properties(x.device).multi_processor_count
    parts = [torch.empty((blocks, gamma.numel()), dtype=torch.float32, device=x.device) for _ in range(2)]
    return [*made, *parts]


def _channels_last(x: Any, groups: int) -> None:
    import torch

    check(x.is_cuda, "input must be a CUDA tensor")
    check(x.is_contiguous(memory_format=torch.channels_last), "input must be channels last")
    check(groups in GROUPS, f"`groups` of {{16, 32}} are only supported but {groups} is passed")
    check(x.shape[1] in CHANNELS, f"`c` of {x.shape[1]} is not included in supported_c_values")


def _passes(x: Any, passes: int, last: str, given: list[Any], name: str) -> None:
    """With two passes a kernel of sums goes before."""
    blocks = _rows(x)
    if passes == 2:
        for each in given:
            operator(SUMS, [each, [2, 3], False], lambda: launch(f"{name}_two_passes_sum", blocks))
    operator(last, given, lambda: launch(f"{name}_{'two_passes_scale' if passes == 2 else 'one_pass'}", blocks))


def group_norm_forward(
    x: Any, groups: int, weight: Any, bias: Any, eps: float, passes: int, with_swish: bool = False
) -> list[Any]:
    """`x` (images, channels, height, width), channels last. Returns the result, and sums of all groups."""
    import torch

    _channels_last(x, groups)
    made = torch.empty_like(x), torch.empty((2 * x.shape[0] * groups,), dtype=torch.float32, device=x.device)
    _passes(x, passes, ONE_TO_ONE, [x], "group_norm_nhwc_fwd")
    return list(made)


def group_norm_backward(gradient: Any, sums: Any, x: Any, groups: int, weight: Any, bias: Any, *rest: Any) -> list[Any]:
    """Returns the gradients of input and weights."""
    import torch

    _channels_last(x, groups)
    _eps, passes, *_ = rest
    made = [torch.empty_like(each) for each in (x, weight, bias)]
    _passes(x, passes, TWO_TO_ONE, [gradient, x], "group_norm_nhwc_bwd")
    return made


def gn(
    x: Any, w: Any, b: Any, eps: float, silu: bool, num_groups: int, mean_var_out: Any = None, sm_margin: int = 0
) -> Any:
    """Group norm whose blocks of threads keep an image's group, in half precision."""
    import torch

    half = (torch.float16, torch.bfloat16)
    if x.dtype not in half or w.dtype != x.dtype:
        raise ValueError("gn only supports half or bfloat16 input and weight")
    made = torch.empty_like(x)
    _passes(x, 1, ONE_TO_ONE, [x], "gn_cuda")
    return made


def gn_bwd(grad_output: Any, x: Any, w: Any, b: Any, mean_var: Any, *rest: Any, **named: Any) -> tuple[Any, Any, Any]:
    """Returns the gradients of input and weights."""
    import torch

    if w.dtype != b.dtype or x.dtype != grad_output.dtype or mean_var.dtype != torch.float32:
        raise ValueError("gn_bwd dtype mismatch")
    made = torch.empty_like(x), torch.empty_like(w), torch.empty_like(w)
    _passes(x, 1, TWO_TO_ONE, [grad_output, x], "gn_bwd_cuda")
    return made


def focal_forward(scores: Any, targets: Any, positives: Any, classes: int, *options: Any) -> list[Any]:
    """`scores` (..., classes). Returns the loss, and the part of its gradient that is known."""
    import torch

    _given(cls_output=scores, cls_targets_at_level=targets, num_positives_sum=positives)
    check(prod(scores.shape[:-1]) == targets.numel(), "Mis-matched shape between class output and label.")
    check(classes <= scores.shape[-1], "Incorrect number of real classes.")
    loss, made = torch.zeros((), dtype=torch.float32, device=scores.device), torch.empty_like(scores)
    operator(ONE_TO_ONE, [scores], lambda: launch("focal_loss_forward_cuda_kernel", _rows(scores), 512))
    return [loss, made]


def focal_backward(gradient: Any, partial: Any, positives: Any) -> Any:
    """The gradient, in the place of `partial`."""
    _given(grad_output=gradient, partial_grad=partial)
    operator(ONE_TO_ONE, [partial], lambda: launch("focal_loss_backward_cuda_kernel", _rows(partial), 512))
    return partial


def index_mul_forward(out: Any, a: Any, b: Any, places: Any) -> None:
    """Rows `places` of `a` times the rows of `b`, into `out`."""
    _given(out=out, in1=a, in2=b, idx1=places)
    operator(TWO_TO_ONE, [b, out], lambda: launch("index_mul_2d", _rows(out), 256))


def index_mul_backward(of_a: Any, of_b: Any, gradient: Any, a: Any, b: Any, places: Any) -> None:
    """The gradient of `a` is added to, row by row."""
    _given(grad_out=gradient, in1=a, in2=b, idx1=places)
    operator(TWO_TO_ONE, [gradient, of_b], lambda: launch("index_mul_2d_grad", _rows(b), 256))
    operator("aten::index_add_", [of_a, 0, places, gradient], lambda: launch("index_mul_2d_grad_add", _rows(b), 256))


def index_mul_backward_backward(*tensors: Any) -> None:
    """Gradients of the gradient."""
    of_gradient, of_a, of_b, gradient, second_a, _, a, b, places = tensors
    index_mul_backward(of_a, of_b, gradient, second_a, b, places)
    index_mul_forward(of_gradient, a, b, places)


def _adam(kernel: str, chunk: int, lists: Lists, shown: Lists) -> None:
    apex._over("aten::_fused_adam_", kernel, chunk, lists, shown)


def multi_tensor_fused_adam(chunk_size: int, noop_flag: Any, tensor_lists: Lists, *options: Any) -> None:
    """Parameters, both moments, gradients, and where the new parameters go."""
    check(len(tensor_lists) == 5, "expected 5 tensor lists")
    p, m, v, g, _ = tensor_lists
    _adam("DistAdamFunctor", chunk_size, tensor_lists, [p, g, m, v])


multi_tensor_fused_adam_capturable = multi_tensor_fused_adam


def multi_tensor_fused_adam_with_param_remainders(
    chunk_size: int, noop_flag: Any, tensor_lists: Lists, *options: Any
) -> None:
    """Parameters in bfloat16, the other 16 bits of their float32, both moments, gradients, new parameters."""
    check(len(tensor_lists) == 6, "expected 6 tensor lists")
    _, _, m, v, g, _ = tensor_lists
    _adam("DistAdamWithParamRemaindersFunctor", chunk_size, tensor_lists, [m, g, m, v])  # a parameter has 4 bytes


def multi_tensor_lamb_compute_update_term(chunk_size: int, noop_flag: Any, tensor_lists: Lists, *options: Any) -> None:
    """Gradients, parameters, both moments, and where the update goes."""
    g, p, m, v, _ = tensor_lists
    _adam("DistOptLAMBStage1Functor", chunk_size, tensor_lists, [p, g, m, v])


def multi_tensor_lamb_update_weights(chunk_size: int, noop_flag: Any, tensor_lists: Lists, *options: Any) -> None:
    """Updates, parameters, and copies of these."""
    u, p, _ = tensor_lists
    apex._over("aten::_foreach_add", "DistOptLAMBStage2Functor", chunk_size, tensor_lists, [p, u])


def adam(p: Any, p_copy: Any, m: Any, v: Any, g: Any, *options: Any) -> None:
    """One tensor of parameters, a copy (or an empty tensor), moments and gradient."""
    _given(p=p)
    for name, tensor in (("m", m), ("v", v), ("g", g)):
        check(tensor.numel() == p.numel(), f"number of elements in {name} and p tensors should be equal")
    check(
        p_copy.numel() in (0, p.numel()),
        "number of elements in p_copy and p tensors should be equal, or p_copy should be empty",
    )
    _adam("adam_cuda_kernel", max(1, p.numel()), [[p], [g], [m], [v]], [[p], [g], [m], [v]])


def adam_mt(chunk_size: int, overflow: Any, tensor_lists: Lists, *options: Any) -> None:
    """Parameters, both moments, gradients, and copies of parameters if there are five lists."""
    check(len(tensor_lists) in (4, 5), "expected 4 or 5 tensor lists")
    p, m, v, g, *_ = tensor_lists
    _adam("AdamFunctor", chunk_size, tensor_lists, [p, g, m, v])


def maybe_cast(overflow: Any, given: Any, made: Any) -> None:
    """Copies `given` to `made`, of another type."""
    check(given.numel() == made.numel(), "number of elements in p_in and p_out should be equal")
    made.copy_(given)


def maybe_cast_mt(chunk_size: int, overflow: Any, tensor_lists: Lists) -> None:
    """Copies the first list to the second."""
    import torch

    given, made = tensor_lists
    torch._foreach_copy_(list(made), list(given))
