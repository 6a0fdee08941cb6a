"""Operators of Transformer Engine on a real GPU: kernels' times with cold and with warm L2. Writes one file.

    python -m validation.probes.te_operators OUT [--budget 150]      # on a GPU: OUT/te_operators.jsonl
    phantora trace --cluster 1x1xH100 -o te.arrow -m validation.probes.te_operators --once

A line per case with its kernels in order: name, ns with cold and with warm L2 (medians of CUPTI's times), and with each
call of the extension `transformer_engine_torch` that launched some: its signature as `phantora/rank/patches/engine_calls.py`
writes it, from which `validation/fits/transformer_engine.py` takes the shares of kinds of kernels. The log of the second form has an annotation per case;
`validation/compare/extensions.py LOG OUT/te_operators.jsonl` puts both next to each other.

Needs transformer-engine 2.20.2 (docs/frameworks/megatron.md).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from phantora.rank.patches import engine_calls
from validation.probes.sections import Case, Probe

NUMBERS: dict[bytes, int] = {}
MARK, CALL, COLD, WARM = "case: ", "call: ", "cold", "warm"


def in_a_range(text: bytes, launch: Callable[[], Any]) -> Any:
    """A call of the extension, in a range with its signature's number."""
    with record_function(f"{CALL}{NUMBERS.setdefault(text, len(NUMBERS))}"):
        return launch()


if "--once" not in sys.argv:
    engine_calls.when_loaded(engine_calls.Calls(in_a_range))

import transformer_engine.pytorch as te  # noqa: E402 (after what wraps its extension)
import transformer_engine_torch as tex  # noqa: E402
from transformer_engine.common import recipe  # noqa: E402
from transformer_engine.pytorch.optimizers import FusedAdam  # noqa: E402

BF16, F32 = torch.bfloat16, torch.float32
REPEATS, FEWEST = 7, 3

RECIPES: dict[str, Callable[[], Any] | None] = {
    "bf16": None,
    "delayed": lambda: recipe.DelayedScaling(amax_history_len=16, amax_compute_algo="max"),
    "current": lambda: recipe.Float8CurrentScaling(),
    "block": lambda: recipe.Float8BlockScaling(),
}


def rand(*shape: int, dtype: torch.dtype = BF16, grad: bool = True) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype, requires_grad=grad)


def passes(label: str, module: Any, kind: str, inputs: tuple[torch.Tensor, ...], **more: Any) -> Iterator[Case]:
    """The forward pass and the backward pass of a module."""
    make = RECIPES[kind]
    chosen = make() if make else None

    def forward() -> Any:
        with te.autocast(enabled=chosen is not None, recipe=chosen):
            out = module(*inputs, **more)
        return out[0] if isinstance(out, tuple) else out

    yield f"{label} {kind} forward", forward
    out = forward()
    grad = torch.randn_like(out)
    yield f"{label} {kind} forward and backward", lambda: torch.autograd.backward(forward(), grad)


def linear_cases() -> Iterator[Case]:
    for kind in RECIPES:
        for rows, inner, outer in ((8192, 4096, 4096), (4096, 8192, 3584)):
            module = te.Linear(inner, outer, bias=False, params_dtype=BF16)
            yield from passes(f"Linear {rows} {inner} {outer}", module, kind, (rand(rows, inner),))
    module = te.Linear(2048, 8192, bias=True, params_dtype=BF16)
    yield from passes("Linear bias 4096 2048 8192", module, "bf16", (rand(4096, 2048),))
    for kind in RECIPES:
        module = te.LayerNormLinear(4096, 6144, bias=False, normalization="RMSNorm", params_dtype=BF16)
        yield from passes("LayerNormLinear RMSNorm 8192 4096 6144", module, kind, (rand(8192, 4096),))
    for kind in RECIPES:
        module = te.LayerNormMLP(
            4096, 14336, bias=False, normalization="RMSNorm", activation="swiglu", params_dtype=BF16
        )
        yield from passes("LayerNormMLP swiglu 4096 4096 14336", module, kind, (rand(4096, 4096),))
    module = te.LayerNormMLP(4096, 16384, params_dtype=BF16)
    for kind in ("bf16", "delayed"):
        yield from passes("LayerNormMLP gelu bias 4096 4096 16384", module, kind, (rand(4096, 4096),))


def norm_cases() -> Iterator[Case]:
    for rows, columns in ((8192, 4096), (4096, 8192)):
        yield from passes(f"RMSNorm {rows} {columns}", te.RMSNorm(columns, dtype=BF16), "bf16", (rand(rows, columns),))
        norm = te.LayerNorm(columns, dtype=BF16)
        yield from passes(f"LayerNorm {rows} {columns}", norm, "bf16", (rand(rows, columns),))


def choose(backend: str) -> None:
    """Selects the next back end of attention; Transformer Engine keeps its choice otherwise."""
    from transformer_engine.pytorch.attention.dot_product_attention.dot_product_attention import _attention_backends

    os.environ["NVTE_FUSED_ATTN"], os.environ["NVTE_UNFUSED_ATTN"] = str(int(backend == "fused")), "1"
    _attention_backends["backend_selection_requires_update"] = True


def attention_cases() -> Iterator[Case]:
    for batch, length, heads, groups, mask in ((1, 4096, 32, 8, "causal"), (2, 2048, 32, 32, "causal"), (4, 1024, 16, 16, "no_mask")):
        shape = (length, batch, heads, 128), (length, batch, groups, 128), (length, batch, groups, 128)
        for backend in ("fused", "unfused"):
            if backend == "unfused" and length > 2048:
                continue
            choose(backend)
            module = te.DotProductAttention(heads, 128, num_gqa_groups=groups, attn_mask_type=mask)
            label = f"DotProductAttention {backend} {batch} {length} {heads} {groups} {mask}"
            yield from passes(label, module, "bf16", tuple(rand(*s) for s in shape))
    choose("fused")
    module = te.DotProductAttention(32, 128, attn_mask_type="causal", window_size=(1024, 0))
    yield from passes("DotProductAttention window 1 4096 32", module, "bf16", tuple(rand(4096, 1, 32, 128) for _ in range(3)))
    module = te.DotProductAttention(16, 64, attn_mask_type="causal", attention_dropout=0.1)
    yield from passes("DotProductAttention dropout 4 2048 16", module, "bf16", tuple(rand(2048, 4, 16, 64) for _ in range(3)))
    lengths = torch.arange(0, 8193, 1024, device="cuda", dtype=torch.int32)
    module = te.DotProductAttention(32, 128, num_gqa_groups=8, attn_mask_type="padding_causal", qkv_format="thd")
    given = rand(8192, 32, 128), rand(8192, 8, 128), rand(8192, 8, 128)
    yield from passes(
        "DotProductAttention thd 8x1024 32 8", module, "bf16", given,
        cu_seqlens_q=lengths, cu_seqlens_kv=lengths, max_seqlen_q=1024, max_seqlen_kv=1024,
    )


def layer_cases() -> Iterator[Case]:
    module = te.MultiheadAttention(
        4096, 32, num_gqa_groups=8, attention_dropout=0.0, bias=False, input_layernorm=True, normalization="RMSNorm",
        attn_mask_type="causal", fuse_qkv_params=True, params_dtype=BF16,
    )
    yield from passes("MultiheadAttention 2048 1 4096", module, "bf16", (rand(2048, 1, 4096),))
    for kind in RECIPES:
        module = te.TransformerLayer(
            4096, 14336, 32, num_gqa_groups=8, hidden_dropout=0.0, attention_dropout=0.0, bias=False,
            normalization="RMSNorm", activation="swiglu", self_attn_mask_type="causal", fuse_qkv_params=True,
            params_dtype=BF16,
        )
        yield from passes("TransformerLayer 4096 1 4096 14336", module, kind, (rand(4096, 1, 4096),))


def expert_cases() -> Iterator[Case]:
    tokens, hidden, experts, chosen = 8192, 4096, 8, 2
    x = rand(tokens, hidden)
    index = torch.arange(tokens * chosen, device="cuda", dtype=torch.int32).view(tokens, chosen) % experts
    order = torch.zeros(tokens, experts, device="cuda", dtype=torch.int32)
    order.scatter_(1, index.long(), 1)
    made, rows = te.moe_permute(x, index, tokens * chosen, map_type="index")
    weight = torch.full((tokens, chosen), 0.5, device="cuda", dtype=F32)
    yield "moe_permute index 8192 4096 top 2", lambda: te.moe_permute(x, index, tokens * chosen, map_type="index")
    yield "moe_unpermute index 8192 4096 top 2", lambda: te.moe_unpermute(made, rows, weight, map_type="index")
    yield (
        "moe_permute mask 8192 4096 top 2",
        lambda: te.moe_permute(x, order, num_out_tokens=tokens * chosen, map_type="mask"),
    )
    for kind in ("bf16", "current", "delayed"):
        module = te.GroupedLinear(experts, hidden, 14336, bias=False, params_dtype=BF16)
        splits = [tokens * chosen // experts] * experts
        yield from passes("GroupedLinear 8 of 2048 4096 14336", module, kind, (rand(tokens * chosen, hidden),), m_splits=splits)


def other_cases() -> Iterator[Case]:
    x, y = rand(8192, 28672, grad=False), rand(8192, 14336, grad=False)
    yield "swiglu 8192 28672", lambda: tex.swiglu(x, None)
    yield "dswiglu 8192 28672", lambda: tex.dswiglu(y, x, None)
    yield "gelu 8192 14336", lambda: tex.gelu(y, None)
    for name, quantizer in quantizers().items():
        for columns in (4096, 14336):
            z = rand(8192, columns, grad=False)
            yield f"quantize {name} 8192 {columns}", partial(lambda z, q: tex.quantize(z, q), z, quantizer)
        yield f"swiglu {name} 8192 28672", partial(lambda q: tex.swiglu(x, q), quantizer)
    scores = rand(1, 32, 2048, 2048, grad=False)
    yield "causal softmax 32 2048", lambda: tex.scaled_upper_triang_masked_softmax_forward(scores[0], 0.1)
    frequencies = te.RotaryPositionEmbedding(128)(4096)
    q = rand(4096, 1, 32, 128)
    from transformer_engine.pytorch.attention.rope import apply_rotary_pos_emb

    yield "rope 4096 1 32 128", lambda: apply_rotary_pos_emb(q, frequencies, tensor_format="sbhd", fused=True)
    parameters = [torch.nn.Parameter(rand(4096, 4096, dtype=F32, grad=False)) for _ in range(12)]
    for p in parameters:
        p.grad = torch.randn_like(p)
    adam = FusedAdam(parameters, lr=1e-4)
    yield "FusedAdam 12 of 4096 4096", lambda: adam.step()
    from transformer_engine.pytorch.optimizers import multi_tensor_applier

    zero = torch.zeros(1, device="cuda", dtype=torch.int32)
    grads = [p.grad for p in parameters]
    yield (
        "l2norm 12 of 4096 4096",
        lambda: multi_tensor_applier(tex.multi_tensor_l2norm, zero, [grads], False),
    )
    yield (
        "scale 12 of 4096 4096",
        lambda: multi_tensor_applier(tex.multi_tensor_scale, zero, [grads, grads], 1.0),
    )
    logits = rand(4096, 1, 32000, dtype=F32)
    target = torch.randint(0, 32000, (4096, 1), device="cuda")
    yield "cross entropy 4096 32000", lambda: te.parallel_cross_entropy(logits, target)


def quantizers() -> dict[str, Any]:
    one = torch.ones(1, device="cuda")
    e4m3 = tex.DType.kFloat8E4M3
    return {
        "delayed": te.Float8Quantizer(one, torch.zeros(1, device="cuda"), e4m3),
        "current": te.Float8CurrentScalingQuantizer(e4m3, device=torch.device("cuda")),
        "block": te.Float8BlockQuantizer(e4m3, rowwise=True, columnwise=True, force_pow_2_scales=True, amax_epsilon=0.0),
    }


SECTIONS = {
    "linear": linear_cases, "norm": norm_cases, "attention": attention_cases, "layer": layer_cases,
    "expert": expert_cases, "other": other_cases,
}


class Events:
    """A profile's kernels, each with the innermost of our ranges around its launch."""

    def __init__(self, found: Any) -> None:
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            found.export_chrome_trace(file.name)
            events = json.loads(Path(file.name).read_text())["traceEvents"]
        done = [e for e in events if e.get("ph") == "X"]
        launches = {
            e["args"]["correlation"]: e
            for e in done
            if e.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in e.get("args", {})
        }
        ranges = [e for e in done if e.get("cat") == "user_annotation"]
        self.rounds = sorted((e for e in ranges if e["name"] in (COLD, WARM)), key=lambda e: e["ts"])
        calls = [e for e in ranges if e["name"].startswith(CALL)]
        self.kernels: list[tuple[float, str, float, float, str]] = []  # launched, name, start, us, call
        for e in done:
            if e.get("cat") != "kernel":
                continue
            launch = launches.get(e["args"].get("correlation"))
            if launch is None:
                continue
            around = [
                c for c in calls if c["tid"] == launch["tid"] and c["ts"] <= launch["ts"] <= c["ts"] + c["dur"]
            ]
            name = min(around, key=lambda c: c["dur"])["name"] if around else ""
            self.kernels.append((launch["ts"], e["name"], e["ts"], e["dur"], name))
        self.kernels.sort()  # as they were launched: several streams run them in another order each time

    def of_round(self, r: dict[str, Any]) -> list[tuple[str, float, str]]:
        """Name, us and call of the kernels that were launched within a range."""
        return [(name, us, call) for at, name, _, us, call in self.kernels if r["ts"] <= at <= r["ts"] + r["dur"]]


def measured(call: Callable[[], Any], flush: torch.Tensor) -> dict[str, Any]:
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as found:
        for _ in range(REPEATS):
            flush.zero_()
            torch.cuda.synchronize()
            with record_function(COLD):
                call()
                torch.cuda.synchronize()
            with record_function(WARM):
                call()
                torch.cuda.synchronize()
    events = Events(found)
    rounds = {kind: [events.of_round(r) for r in events.rounds if r["name"] == kind] for kind in (COLD, WARM)}
    every = [tuple(name for name, _, _ in r) for r in rounds[COLD] + rounds[WARM]]
    names = max(set(every), key=every.count)
    same = {kind: [r for r in rounds[kind] if tuple(name for name, _, _ in r) == names] for kind in rounds}
    if not names or min(map(len, same.values())) < FEWEST:
        raise RuntimeError(f"rounds of {list(map(len, every))} kernels")
    middle = [[int(1000 * median(r[i][1] for r in same[k])) for i in range(len(names))] for k in (COLD, WARM)]
    kernels = [
        {"name": name, "cold": cold, "warm": warm, "call": call}
        for (name, _, call), cold, warm in zip(same[WARM][0], *middle, strict=True)
    ]
    return {"kernels": kernels}


def row(call: Callable[[], Any], flush: torch.Tensor) -> dict[str, Any]:
    """Fields of a case; each kernel with the text of the call of tex that launched it."""
    found = measured(call, flush)
    texts = {f"{CALL}{n}": text.decode() for text, n in NUMBERS.items()}
    for kernel in found["kernels"]:
        kernel["call"] = texts.get(kernel["call"], "")
    return found


if __name__ == "__main__":
    Probe(
        __doc__, "te_operators.jsonl", {"kind": "te_operators", "te": getattr(te, "__version__", "")}, SECTIONS,
        mark=lambda label: record_function(MARK + label), measured=row, seconds=150.0,
    ).main()
