"""Stand-ins for ``mlp_cuda`` and ``fused_dense_cuda`` of apex: products with what follows them in one kernel.

Products are torch's own, by cuBLASLt with the bias and the activation as its epilogue; so are values, and errors of
shapes. Workspaces and the order of calls are those of its csrc (July 2026).
"""

from __future__ import annotations

from typing import Any

from phantora.rank.standins.kernels import check

LT_WORKSPACE = 1 << 22  # elements
NONE, RELU, SIGMOID = range(3)


def _workspace(like: Any) -> Any:
    import torch

    return torch.empty((LT_WORKSPACE,), dtype=like.dtype, device=like.device)


def linear_bias_forward(x: Any, weight: Any, bias: Any) -> Any:
    """`x` (rows, in) times `weight` (out, in), with `bias` (out)."""
    import torch

    _space = _workspace(x)
    return torch.addmm(bias, x, weight.t())


def linear_bias_backward(x: Any, weight: Any, dout: Any) -> list[Any]:
    """Gradients of input, weight and bias; that of the bias is an epilogue of the weight's product."""
    import torch

    _space, bias = _workspace(x), torch.empty((weight.shape[0],), dtype=x.dtype, device=x.device)
    rows = dout.reshape(-1, weight.shape[0])
    of_weight = torch.mm(rows.t(), x)
    return [torch.mm(rows, weight), of_weight, bias]


def linear_gelu_linear_forward(x: Any, weight: Any, bias: Any, weight2: Any, bias2: Any) -> list[Any]:
    """Returns GELU of the first product, the second product, and the first one without GELU."""
    import torch

    _space = _workspace(x)
    inside = torch.empty((x.shape[0], weight.shape[0]), dtype=x.dtype, device=x.device)
    first = torch._addmm_activation(bias, x, weight.t(), use_gelu=True)
    return [first, torch.addmm(bias2, first, weight2.t()), inside]


def linear_gelu_linear_backward(x: Any, inside: Any, first: Any, weight: Any, weight2: Any, dout: Any) -> list[Any]:
    """Gradients of the input, and of both weights with their biases; GELU's is an epilogue."""
    import torch

    _space, biases = (
        _workspace(x),
        [torch.empty(w.shape[:1], dtype=x.dtype, device=x.device) for w in (weight, weight2)],
    )
    of_second = torch.mm(dout.t(), first)
    of_first = torch.mm(dout, weight2)
    of_weight = torch.mm(of_first.t(), x)
    return [torch.mm(of_first, weight), of_weight, biases[0], of_second, biases[1]]


def _layers(use_bias: int, inputs: Any) -> tuple[Any, list[Any], list[Any]]:
    """Input, weights (out, in), biases."""
    count = (len(inputs) - 1) // (2 if use_bias else 1)
    return inputs[0], list(inputs[1 : count + 1]), list(inputs[count + 1 :])


def _kind(x: Any, function: str) -> None:
    import torch

    check(x.dtype != torch.bfloat16, f"\"{function}\" not implemented for 'BFloat16'")


def _activate(x: Any, weight: Any, bias: Any, activation: int, out: Any) -> Any:
    """A layer into `out`: a bias and ReLU belong to the product's kernel."""
    import torch

    if bias is not None and activation == RELU:
        return torch.ops.aten._addmm_activation.out(bias, x, weight.t(), out=out)
    made = torch.mm(x, weight.t(), out=out) if bias is None else torch.addmm(bias, x, weight.t(), out=out)
    return {NONE: lambda: made, RELU: made.relu_, SIGMOID: made.sigmoid_}[activation]()


def mlp_forward(use_bias: int, activation: int, inputs: Any) -> list[Any]:
    """Input (rows, in), then all weights, then all biases. Returns the result, and a buffer of all layers' results."""
    import torch

    x, weights, biases = _layers(use_bias, inputs)
    _kind(x, "mlp_forward")
    rows, widths = x.shape[0], [weight.shape[0] for weight in weights]
    out = torch.empty((rows, widths[-1]), dtype=x.dtype, device=x.device)
    reserved = torch.empty((rows * sum(widths),), dtype=x.dtype, device=x.device)
    _space = _workspace(x)
    places = [*_kept(reserved, rows, widths)[:-1], out]
    for weight, bias, place in zip(weights, biases or [None] * len(weights), places, strict=True):
        x = _activate(x, weight, bias, activation, place)
    return [out, reserved]


def _kept(reserved: Any, rows: int, widths: list[int]) -> list[Any]:
    """Results of the layers in their buffer."""
    return [
        part.view(rows, width) for part, width in zip(reserved.split([rows * w for w in widths]), widths, strict=True)
    ]


def mlp_backward(use_bias: int, activation: int, gradient: Any, outputs: Any, inputs: Any) -> list[Any]:
    """Gradients of what :func:`mlp_forward` was given, in its order. One kernel makes those of an activation and of a
    bias."""
    import torch

    x, weights, _ = _layers(use_bias, inputs)
    _kind(x, "mlp_backward")
    out, reserved = outputs
    made = [torch.empty_like(each) for each in inputs]
    of_weights, of_biases = made[1 : len(weights) + 1], made[len(weights) + 1 :]
    rows, widths = x.shape[0], [weight.shape[0] for weight in weights]
    results = [*_kept(reserved, rows, widths)[:-1], out]
    space = torch.empty((2 * rows * sum(widths),), dtype=x.dtype, device=x.device).chunk(2)
    of_products, of_inputs = (_kept(half, rows, widths) for half in space)
    gradient = gradient.contiguous()
    for i in reversed(range(len(weights))):
        given = gradient
        if activation == RELU:
            given = torch.ops.aten.threshold_backward.grad_input(gradient, results[i], 0, grad_input=of_products[i])
        elif activation == SIGMOID:
            given = torch.ops.aten.sigmoid_backward.grad_input(gradient, results[i], grad_input=of_products[i])
        if of_biases and activation != RELU:
            torch.sum(given, dim=0, out=of_biases[i])
        if i > 0 or inputs[0].requires_grad:
            gradient = torch.mm(given, weights[i], out=of_inputs[i - 1] if i > 0 else made[0])
        torch.mm(given.t(), results[i - 1] if i > 0 else x, out=of_weights[i])
    return made
