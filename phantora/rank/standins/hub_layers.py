"""Layers and functions of the Hugging Face hub's kernels `activation`, `relu`, `rotary` and `liger-kernels`.

Layers have no state of their own: `kernelize` puts their ``forward`` in the place of a model's. Elementwise kernels
have the prices of torch's operators on the same tensors; liger's are its package's. Names and signatures are those of
kernels-community (August 2026).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phantora.rank.standins.kernels import ONE_TO_ONE, TWO_TO_ONE, check, launch, operator, spec

HALVES = ("silu_and_mul", "mul_and_silu", "gelu_and_mul", "gelu_tanh_and_mul", "fatrelu_and_mul")
WHOLES = ("gelu", "silu", "gelu_tanh", "gelu_fast", "gelu_new", "gelu_quick")
_LAYERS = (
    *(("SiluAndMul", "silu_and_mul"), ("MulAndSilu", "mul_and_silu"), ("GeluAndMul", "gelu_and_mul")),
    *(("GeluTanhAndMul", "gelu_tanh_and_mul"), ("Silu", "silu"), ("Gelu", "gelu"), ("GeluTanh", "gelu_tanh")),
    *(("FastGELU", "gelu_fast"), ("NewGELU", "gelu_new"), ("QuickGELU", "gelu_quick")),
)


def _elementwise(name: str) -> Callable[..., Any]:
    halves = name in HALVES

    def function(out: Any, x: Any, threshold: float = 0.0) -> Any:
        """Writes `out`: of halves of the last dimension of `x`, or of all of it."""
        check(out.shape[-1] * (2 if halves else 1) == x.shape[-1], "the last dimension of out does not fit")
        each = spec(x.dtype, *out.shape)
        given, price = ([each, each], TWO_TO_ONE) if halves else ([each], ONE_TO_ONE)
        operator(price, given, lambda: launch(f"{name}_kernel", -(-out.numel() // 1024), 256))
        return out

    return function


def activation() -> tuple[dict[str, Any], dict[str, Any]]:
    """Functions and layers of `activation`."""
    import torch

    functions = {name: _elementwise(name) for name in (*HALVES, *WHOLES)}

    def layer(title: str, name: str) -> type:
        function, parts = functions[name], 2 if name in HALVES else 1

        def forward(self: Any, x: Any) -> Any:
            return function(x.new_empty((*x.shape[:-1], x.shape[-1] // parts)), x.contiguous())

        return type(title, (torch.nn.Module,), {"forward": forward, "can_torch_compile": True})

    return functions, {title: layer(title, name) for title, name in _LAYERS}


def relu() -> tuple[dict[str, Any], dict[str, Any]]:
    """Functions and layers of `relu`."""
    import torch

    write = _elementwise("relu")

    def function(x: Any, out: Any = None) -> Any:
        return write(torch.empty_like(x) if out is None else out, x)

    def forward(self: Any, x: Any) -> Any:
        return function(x)

    return {"relu": function}, {"ReLU": type("ReLU", (torch.nn.Module,), {"forward": forward})}


def rotary() -> tuple[dict[str, Any], dict[str, Any]]:
    """Functions and layers of `rotary`."""
    import torch

    def apply_rotary(x1: Any, x2: Any, cos: Any, sin: Any, out1: Any, out2: Any, conj: bool) -> None:
        both = spec(x1.dtype, 2, *x1.shape)
        operator(ONE_TO_ONE, [both], lambda: launch("rotary_kernel", -(-x1.numel() // 1024), 256))

    def transformed(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> tuple[Any, Any]:
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        made = q.clone(), k.clone()
        for each in made:
            first, second = each.chunk(2, -1)
            apply_rotary(first, second, cos, sin, first, second, False)
        return made

    def forward(self: Any, q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> tuple[Any, Any]:
        return transformed(q, k, cos, sin, unsqueeze_dim)

    name = "apply_rotary_transformers"
    layers = {name: type(name, (torch.nn.Module,), {"forward": forward, "can_torch_compile": True})}
    return {"apply_rotary": apply_rotary, name: transformed}, layers


def liger() -> dict[str, Any]:
    """Layers of `liger-kernels`, out of the installed package liger-kernel."""
    import torch
    from liger_kernel.ops.geglu import LigerGELUMulFunction
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    def rms_norm(self: Any, hidden_states: Any) -> Any:
        return LigerRMSNormFunction.apply(hidden_states, self.weight, self.variance_epsilon, 0, "llama", True, None)

    def gated(function: Any) -> Callable[..., Any]:
        def forward(self: Any, x: Any) -> Any:
            return self.down_proj(function.apply(self.gate_proj(x), self.up_proj(x)))

        return forward

    def loss(
        self: Any, logits: Any, labels: Any, vocab_size: int, num_items_in_batch: Any = None, ignore_index: int = -100,
        shift_labels: Any = None, hidden_states: Any = None, lm_head_weight: Any = None, lm_head_bias: Any = None,
        **kwargs: Any,
    ) -> Any:  # fmt: skip
        from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

        if hidden_states is None or lm_head_weight is None:
            raise ValueError("LigerForCausalLMLoss requires the weight of the head and the last hidden state")
        size = kwargs["hidden_size"]
        if shift_labels is None:
            shift_labels = torch.nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:].contiguous()
        found = liger_fused_linear_cross_entropy(
            hidden_states.view(-1, size),
            lm_head_weight,
            shift_labels.view(-1),
            bias=lm_head_bias,
            ignore_index=ignore_index,
            reduction="mean" if num_items_in_batch is None else "sum",
            softcap=kwargs.get("final_logit_softcapping"),
        )
        return found if num_items_in_batch is None else found / num_items_in_batch

    disable: Any = torch.compiler.disable
    made: dict[str, dict[str, Any]] = {
        "LigerRMSNorm": {"forward": rms_norm},
        "LigerSwiGLUMLP": {"forward": gated(LigerSiLUMulFunction), "can_torch_compile": True},
        "LigerGEGLUMLP": {"forward": gated(LigerGELUMulFunction), "can_torch_compile": True},
        "LigerForCausalLMLossLayer": {"forward": disable(loss), "can_torch_compile": True},
    }
    return {name: type(name, (torch.nn.Module,), members) for name, members in made.items()}
