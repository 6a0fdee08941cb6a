"""Calls of the CuTe DSL as operators, with stand-ins for its modules: it is not installed where tests run."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from phantora.cost import KernelLaunch, model_for, parse_signature
from phantora.cost.families.cute import gated_gradient, product_among, product_of_experts
from phantora.cost.types import OperatorSignature, TensorSpec
from phantora.hardware import load_gpu
from phantora.rank.patches import cute_calls

MODEL = model_for(load_gpu("H100"))


def recorder() -> tuple[cute_calls.Calls, list[OperatorSignature]]:
    seen: list[OperatorSignature] = []

    def around(text: bytes, launch: Callable[[], Any]) -> Any:
        seen.append(parse_signature(text))
        return launch()

    return cute_calls.Calls(around), seen


def test_a_compiled_function_is_an_operator_with_its_tensors() -> None:
    class Compiled:
        function_name = "norm"

        def __call__(self, *given: Any) -> int:
            return len(given)

    module = ModuleType(cute_calls.EXECUTOR)
    vars(module).update(JitCompiledFunction=Compiled, JitExecutor=type("E", (Compiled,), {}))
    calls, seen = recorder()
    calls.wrap_classes(module)
    assert Compiled()(torch.ones(4, 8), 1e-6) == 2
    assert seen[0].name == "cute::norm" and isinstance(seen[0].args[0], TensorSpec)


def test_a_loaded_function_is_an_operator() -> None:
    class Loaded:
        def __getattr__(self, prefix: str) -> Any:
            return lambda *given: len(given)

    calls, seen = recorder()
    calls.wrap_loaded(SimpleNamespace(ExternalBinaryModule=Loaded))  # type: ignore[arg-type]
    assert Loaded().func(torch.ones(2), torch.ones(2)) == 2 and seen[0].name == "cute::func"


def attention(calls: cute_calls.Calls, launch: Callable[[], Any]) -> ModuleType:
    """A module with the arguments of FlashAttention-4's interface."""

    def forward(
        q: Any, k: Any, v: Any, qv: Any = None, cu_seqlens_q: Any = None, cu_seqlens_k: Any = None,
        max_seqlen_q: Any = None, max_seqlen_k: Any = None, page_table: Any = None, softmax_scale: Any = None,
        causal: bool = False, window_size_left: Any = None, window_size_right: Any = None,
    ) -> Any:  # fmt: skip
        return launch()

    def backward(
        q: Any, k: Any, v: Any, out: Any, dout: Any, lse: Any, softmax_scale: Any = None, causal: bool = False,
        window_size_left: Any = None, window_size_right: Any = None, cu_seqlens_q: Any = None,
        cu_seqlens_k: Any = None, max_seqlen_q: Any = None, max_seqlen_k: Any = None,
    ) -> Any:  # fmt: skip
        return launch()

    module = ModuleType(cute_calls.ATTENTION)
    vars(module).update(_flash_attn_fwd=forward, _flash_attn_bwd=backward)
    calls.wrap_attention(module)
    return module


def ns(signature: OperatorSignature, *names: str) -> list[int]:
    kernels = tuple(KernelLaunch(name, (132, 1, 1), (384, 1, 1)) for name in names)
    return list(MODEL.operator(signature, kernels).durations)


def test_flash_attention_4_is_an_attention_with_its_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    calls, seen = recorder()
    module = attention(calls, lambda: calls.call("cute::inner", [], lambda: None))
    q = torch.empty(2, 4096, 16, 128, dtype=torch.bfloat16, device="meta")
    module._flash_attn_fwd(q, q, q, causal=True)
    module._flash_attn_bwd(q, q, q, q, q, q, causal=True)
    assert [each.name.partition("::")[2] for each in seen] == ["_flash_attn_forward", "_flash_attn_backward"]
    assert 220e3 < ns(seen[0], "fwd")[0] < 300e3
    before, main, after = ns(seen[1], "flash_bwd_preprocess", "flash_bwd_sm90", "flash_bwd_postprocess")
    assert 600e3 < before + main + after < 800e3 and main > 4 * max(before, after)


def test_packed_sequences_and_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    calls, seen = recorder()
    module = attention(calls, lambda: None)
    q, lengths = torch.empty(8192, 16, 128, dtype=torch.bfloat16, device="meta"), torch.zeros(3, dtype=torch.int32)
    packed = {"cu_seqlens_q": lengths, "cu_seqlens_k": lengths, "max_seqlen_q": 4096, "max_seqlen_k": 4096}
    module._flash_attn_fwd(q, q, q, causal=True, **packed)
    module._flash_attn_fwd(q, q, q, page_table=lengths)
    assert [each.name for each in seen] == ["flash_attn_4::_flash_attn_varlen_forward"]
    assert 220e3 < ns(seen[0], "fwd")[0] < 300e3


def spec(*shape: int, dtype: str = "bfloat16") -> TensorSpec:
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.insert(0, strides[0] * extent)
    return TensorSpec(dtype, shape, stride=tuple(strides))


def test_a_kernel_takes_its_bytes_or_its_product() -> None:
    norm = OperatorSignature("cute::norm", (spec(8192, 4096), spec(4096, dtype="float32"), spec(8192, 4096)))
    assert 40e3 < ns(norm, "norm")[0] < 60e3  # 134 MB at 3.35 TB/s: 40 us
    product = OperatorSignature("cute::gemm", (spec(8192, 4096), spec(8192, 4096), spec(8192, 8192)))
    assert 556e3 < ns(product, "gemm")[0] < 1000e3  # 550 GFLOP at 989 TFLOP/s
    assert product_among([spec(4096, 4096)] * 3) is None
    batched = product_among([spec(64, 32, 5), spec(48, 32, 5), spec(64, 48, 5)])
    assert batched is not None and (batched.m, batched.n, batched.k, batched.batch) == (64, 48, 32, 5)


def test_a_gated_gradient_takes_the_work_of_its_epilogue() -> None:
    """github.com/NVIDIA/cudnn-frontend, benchmark/cutedsl_fusion_kernels: 0.74 ms on a GB300, 0.81 ms on a GB200."""
    model = model_for(load_gpu("GB300"))

    def gradient(m: int, k: int, n: int, experts: int, *more: TensorSpec) -> float:
        given = (spec(m, k, dtype="float8_e4m3fn"), spec(experts, k, n, dtype="float8_e4m3fn"), spec(m, 2 * n))
        call = OperatorSignature("cute::grouped_gemm_dglu", (*given, spec(2, m, 2 * n, dtype="float8_e4m3fn"), *more))
        return model.operator(call, (KernelLaunch("grouped_gemm_dglu", (1024, 1, 1), (128, 1, 1)),)).durations[0]

    assert 0.70e6 < gradient(32768, 8192, 4096, 8) < 0.85e6
    narrow = gradient(65536, 2880, 2880, 8)
    assert 1.0e6 < narrow < 1.2e6  # its product alone takes a third of that
    assert gradient(65536, 2880, 2880, 8, spec(8, 5760)) == pytest.approx(1.12 * narrow, rel=0.01)
    cute = [
        spec(32768, 8192, 1, dtype="float8_e4m3fn"),
        spec(4096, 8192, 8, dtype="float8_e4m3fn"),
        spec(32768, 8192, 1),
    ]
    found = gated_gradient(cute)
    assert found is not None and (found.product.batch, found.product.n, found.product.k) == (8, 4096, 8192)


def test_products_of_experts_have_their_published_rate() -> None:
    """The same benchmark, `srelu`: 0.67 ms on a GB300, 0.77 ms on a GB200."""
    narrow = "float8_e4m3fn"
    forward = (spec(32768, 8192, dtype=narrow), spec(8, 8192, 4096, dtype=narrow), spec(32768, 4096))
    call = OperatorSignature("cute::grouped_gemm_quant", forward)
    kernel = KernelLaunch("grouped_gemm_quant", (1024, 1, 1), (128, 1, 1))
    model = model_for(load_gpu("GB300"))
    whole = model.operator(call, (kernel,)).durations[0]
    assert 0.66e6 < whole < 0.78e6
    fewer = model.operator(call, (KernelLaunch("grouped_gemm_quant", (2, 68, 1), (128, 1, 1)),))  # 8 clusters of 2 left
    assert 1.05 * whole < fewer.durations[0] < 1.16 * whole
    assert fewer.sms == 136
    weights = product_of_experts(
        [spec(32768, 2048, dtype=narrow), spec(32768, 4096, dtype=narrow), spec(8, 2048, 4096)]
    )
    assert weights is not None and (weights.m, weights.n, weights.k, weights.batch) == (2048, 4096, 4096, 8)
