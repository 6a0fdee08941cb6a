"""Fused attention: blocks of 128 queries (forward) or keys (backward) that step over the other side.

A step is 128 x 64 scores; it costs a part for the softmax and a part per head element. The work of
all blocks is spread over the resident blocks; a causal mask makes blocks unequal, so half of the
longest one is exposed at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np

from phantora.cost import coordinates, flash_backward, flash_forward, flops
from phantora.cost.coordinates import Place
from phantora.cost.families.elementwise import passes_memory
from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import item_bytes, tensor_at
from phantora.cost.types import OperatorSignature, TensorSpec

PROLOGUES = ("dot_do_o", "bwd_preprocess", "BwdPreprocess")  # in names of FlashAttention 2, 4 and 3
EPILOGUES = ("convert_d", "bwd_postprocess", "BwdPostprocess")
HELPER_START_NS = (800.0, 1200.0)  # of these two, more than of any pass over memory: 707 of the H200's table
BLOCK = 128
STEP = 64
FLASH_HEADS = (32, 64, 96, 128, 192, 256)  # flash_attn/src/static_switch.h
# On one SM, for the random numbers of a step's 128 x 64 scores: 600 to 1,100 in cuDNN's and FlashAttention's kernels of
# heads of 64 and 128 (medians of the tables' operators with and without dropout).
DROPOUT_NS = 800.0
# Exposed share of the longest block, and start, of cuDNN's attention forward and backward: by
# validation/fits/cudnn_attention.py, and where steps alone are published (validation/published/cudnn_attention.py).
CUDNN_BLOCKS = ((0.60, 3100.0), (0.70, 740.0))
CUDNN_STEPS = ((1.05, 6000.0), (0.75, 10000.0))
# What is added to the scores is read for every head, through L2, at this share of a stream's speed; efficient
# attention's backward pass writes its gradient as well. By 29 operators of the tables. cuDNN's takes smaller
# tiles backward where heads are wide (one operator: 8 x 16 heads of 128, 2,048 queries, on an H100).
BIAS_SHARE = 0.8
BIAS_PASSES_BACKWARD = {"efficient": 2.0, "cudnn": 1.0}
BIASED_WIDE_HEAD, BIASED_WIDE = 64, 1.7
# Of few queries, as where tokens are generated: a block takes all query heads of one head of keys, and steps over a
# part of the keys. There are enough parts to fill the GPU. A second kernel joins them. By 786 operators of one
# query by cuDNN on an H100 (validation/probes/decode_operators.py). FlashAttention splits likewise (its
# num_splits_heuristic), efficient attention not at all; neither was measured with few queries.
FEW_QUERIES = 16
FEW_START_NS, FEW_STEP_NS = 3400.0, 540.0  # a step is 64 keys
FEW_OVERLAP = 1.3  # of steps and memory: 1 were one after the other
JOIN_NS, JOIN_PART_NS = 1800.0, 45.0
SPLIT_KEYS, LEAST_PART = 1024, 128  # keys from which they are split, and of a part


# Time in FP8 relative to 16 bits, forward and backward, by elements of a head. Medians of published times of 2,048 to
# 8,192 tokens (NVIDIA/cudnn-frontend, benchmark/sdpa_benchmark_training): cuDNN 9.22 with MXFP8 on GB200 and GB300,
# cuDNN 9.19 with one scale a tensor on H200. One scale a tensor on Blackwell: the backward pass of GB300. Its gradients
# are E5M2, those of MXFP8 E4M3.
FLOAT8_HEADS = (128, 192)
FLOAT8_BLACKWELL = ((0.79, 0.68), (1.09, 0.79))
FLOAT8_BLACKWELL_E5M2 = (0.84, 0.55)
FLOAT8_HOPPER = ((0.69, 0.69), (0.95, 0.95))


@dataclass(frozen=True, kw_only=True)
class Attention:
    """One call: heads and elements are counts, of one sequence of the batch."""

    kind: str  # flash, efficient, cudnn, flex
    backward: bool
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head: int
    value_head: int
    causal: bool
    dtype: str
    dropout: bool = False
    packed: bool = False
    """Sequences lie one after another, with their lengths given."""
    bias: int = 0
    """Bytes of what is added to the scores, for all heads of the batch."""
    step_ns: tuple[float, float] | None = None
    """Time of a step, if it differs from FlashAttention's: a fixed part, and a part per head element, at its clock."""
    gradient: str = ""
    """Type of the output's gradient, in the backward pass."""

    @property
    def flops(self) -> float:
        """Floating-point operations of the pass, of the whole square of queries and keys."""
        count = flops.attention_backward if self.backward else flops.attention
        return count(self.batch, self.heads, self.queries, self.keys, self.head, self.value_head)

    @property
    def computed(self) -> float:
        """The share of the square that a causal mask leaves."""
        return min(self.queries, self.keys) / (2 * max(self.queries, self.keys, 1)) if self.causal else 1.0

    @property
    def square(self) -> float:
        """Pairs of queries and keys, of all heads."""
        return float(self.batch * self.heads * self.queries * self.keys)

    @property
    def moved(self) -> float:
        """Bytes: queries, keys, values and outputs once; with their gradients in the backward pass."""
        q = self.batch * self.queries * self.heads * self.head
        kv = self.batch * self.keys * self.kv_heads * (self.head + self.value_head)
        out = self.batch * self.queries * self.heads * self.value_head
        once = (q + kv + out) * item_bytes(self.dtype)
        return float(once * 2.5 if self.backward else once)


BEGINNINGS = (
    "_scaled_dot_product_",
    "_flash_attention",
    "_efficient_attention_",
    "_cudnn_attention_",
    "_fused_sdp_choice_attention",
)


def classify(name: str) -> str | None:
    """Names begin so."""
    return "attention" if name.startswith(BEGINNINGS) else None


def _causal_index(name: str, backward: bool) -> int:
    """Position of is_causal (or of custom_mask_type) in the operator's schema."""
    if backward:
        return 14 if ("cudnn" in name or name.startswith("_efficient")) else 11
    if name.startswith("_scaled_dot_product_flash"):
        return 4
    if name.startswith("_scaled_dot_product"):
        return 6
    return {"_flash": 8, "_effic": 9, "_cudnn": 10}.get(name[:6], 4)


def _dropout_index(name: str, backward: bool) -> int:
    """Position of dropout_p in the operator's schema."""
    if backward and "efficient" in name:
        return 11 if name.startswith("_efficient") else 9
    return _causal_index(name, backward) - 1


def from_signature(signature: OperatorSignature, name: str) -> Attention | None:
    """The attention that operator `name` computes; None when its arguments are not as expected."""
    args = signature.args
    backward = "backward" in name
    kind = "cudnn" if "cudnn" in name else "efficient" if "efficient" in name else "flash"
    first = 1 if backward else 0
    q, k, v = (tensor_at(args, first + i) for i in range(3))
    if q is None or k is None or v is None or min(len(t.shape) for t in (q, k, v)) < 3:
        return None
    index = _causal_index(name, backward)
    causal = bool(args[index]) if index < len(args) and isinstance(args[index], (bool, int)) else False
    index = _dropout_index(name, backward)
    dropped = args[index] if index < len(args) else 0.0
    given = tensor_at(args, 0) if backward else None
    bias = tensor_at(args, 8 if kind == "cudnn" and backward else first + 3) if kind != "flash" else None
    heads_second = name.startswith(("_scaled_dot_product", "_cudnn_attention"))
    batch, heads, queries = _sizes(q, heads_second)
    _, kv_heads, keys = _sizes(k, heads_second)
    if len(q.shape) == 3:  # packed sequences: (total, heads, head) and cumulative lengths
        lengths = next((t for t in args[first + 3 :] if isinstance(t, TensorSpec) and len(t.shape) == 1), None)
        batch = max(1, lengths.shape[0] - 1) if lengths else 1
        queries, keys = ceil(queries / batch), ceil(keys / batch)
    return Attention(
        kind=kind,
        backward=backward,
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        queries=queries,
        keys=keys,
        head=q.shape[-1],
        value_head=v.shape[-1],
        causal=causal,
        dtype=q.dtype,
        dropout=isinstance(dropped, float) and dropped > 0.0,
        packed=len(q.shape) == 3,
        bias=batch * heads * queries * keys * item_bytes(bias.dtype)
        if bias is not None and len(bias.shape) == 4
        else 0,
        gradient=given.dtype if given is not None else "",
    )


def _sizes(tensor: TensorSpec, heads_second: bool) -> tuple[int, int, int]:
    """Batch, heads, sequence."""
    shape = tensor.shape
    if len(shape) == 3:
        return 1, shape[1], shape[0]
    if heads_second:
        return shape[0], shape[-3], shape[-2]
    return shape[0], shape[-2], shape[-3]


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """Estimate from the arguments; a pass over memory if these are not as expected."""
    found = from_signature(signature, name)
    if found is None:
        return passes_memory(machine, signature, name, kernels)
    return of(machine, found, kernels)


def of(machine: Machine, a: Attention, kernels: Kernels) -> Estimate:
    """Estimate of all kernels: FlashAttention's helpers of the backward pass separately, the others share the rest."""
    whole = Estimate(attention_ns(machine, a), a.moved, flops=a.flops, format=a.dtype, computed=a.computed)
    if not a.backward or len(kernels) < 2:
        return whole
    before, after = helper_ns(machine, a)
    sides = ((before, PROLOGUES), (after, EPILOGUES))
    own = [sum(ns for ns, parts in sides if any(part in k.name for part in parts)) for k in kernels]
    main = own.count(0.0)
    if not main or main == len(kernels):
        return whole
    each = max(machine.fit.floor_ns, (whole.ns - sum(own)) / main)
    return replace(whole, parts=tuple(share or each for share in own))


def of_call(machine: Machine, library: Mapping[str, Any]) -> Estimate | None:
    """Estimate of a call of cuDNN as the stub describes it; None if it is no attention."""
    if library.get("call") not in ("sdpa_fwd", "sdpa_bwd"):
        return None
    batch, heads, queries, keys, head = (int(library.get(key, 0)) for key in ("b", "h", "sq", "skv", "d"))
    share = float(library.get("share", 1.0))
    whole = of(
        machine,
        Attention(
            kind="cudnn",
            backward=library["call"] == "sdpa_bwd",
            batch=batch,
            heads=heads,
            kv_heads=int(library.get("hkv", heads)),
            queries=queries,
            keys=keys,
            head=head,
            value_head=int(library.get("dv", head)),
            causal=bool(library.get("causal", 0)),
            dtype="bfloat16",
            dropout=bool(library.get("dropout", 0)),
        ),
        (),
    )
    if share >= 1.0:
        return whole
    ns = max(machine.memory_ns(whole.moved), whole.ns * share)
    return replace(whole, ns=ns, computed=whole.computed * share)


def places(signature: OperatorSignature, name: str, compute: str, launches: int) -> tuple[Place, ...]:
    """The coordinates of the attention among the arguments; none if these are not as expected."""
    found = from_signature(signature, name)
    return places_of(found, name) if found is not None else ()


def places_of(a: Attention, name: str) -> tuple[Place, ...]:
    """Sequences and heads, queries, keys; heads of one size, then of any."""
    # A short last wave matters as little as many blocks there are.
    log = coordinates.log
    at = (log(a.batch * a.heads), log(a.queries), log(a.keys), 0.3 * log(a.heads / max(1, a.kv_heads)))
    kind = f"{32 if a.dtype == 'float32' else 16} {a.dropout}{' biased' * (a.bias > 0)}"
    narrow, wide = f"{name} {a.causal} {a.head} {kind}", f"{name} {kind}"
    return Place(narrow, at), Place(wide, (*at, log(a.head)))


def attention_ns(machine: Machine, a: Attention) -> float:
    """Duration of all kernels of the operator, ns."""
    fit, sms = machine.fit, machine.gpu.sms
    if min(a.batch, a.heads, a.queries, a.keys) <= 0:
        return fit.floor_ns
    if a.queries <= FEW_QUERIES and not a.backward and a.kind != "flex":
        parts = _few_queries_ns(machine, a), machine.memory_ns(a.moved) - fit.floor_ns
        return float(sum(part**FEW_OVERLAP for part in parts) ** (1.0 / FEW_OVERLAP))
    of_flash = a.kind == "flash" and not (a.step_ns or a.dtype.startswith("float8"))
    if of_flash and not _published_scale(machine, a, fit.flash_forward_ns):
        return max(_flash_ns(machine, a), machine.memory_ns(a.moved))
    # Which side the blocks are cut from, and what a block steps over.
    rows, columns = (a.keys, a.queries) if a.backward else (a.queries, a.keys)
    longest = ceil(columns / STEP)
    blocks = ceil(rows / BLOCK)
    steps = float(longest * blocks)
    if a.causal:
        steps = steps * (blocks + 1) / (2 * blocks)
    steps *= a.batch * a.heads
    of_block = 0.0  # next to its steps
    if a.kind == "cudnn" and machine.gpu.compute_capability >= (9, 0):
        base, per_head = fit.cudnn_backward_ns if a.backward else fit.cudnn_forward_ns
        scale = _published_scale(machine, a, fit.cudnn_forward_ns)
        if a.backward and machine.gpu.attention_backward_step_ns:
            scale = _step_ns(machine.gpu.attention_backward_step_ns, a.head) / (base + per_head * a.head)
        resident, (tail, start) = 1, CUDNN_STEPS[a.backward] if scale else CUDNN_BLOCKS[a.backward]
        if not scale:
            scale = _tensor_scale(machine)
            block, per_element = fit.cudnn_backward_block_ns if a.backward else fit.cudnn_forward_block_ns
            of_block = (block + per_element * (a.head + a.value_head) / 2) * scale
    else:
        base, per_head = a.step_ns or (fit.flash_backward_ns if a.backward else fit.flash_forward_ns)
        scale = 1.0 / machine.clock_ratio
        if a.kind == "flash":
            scale = 2.0 * _published_scale(machine, a, fit.flash_forward_ns) or scale
        resident, tail, start = (1, 0.6, fit.floor_ns) if a.backward else (2, 0.5, fit.floor_ns)
    slow = 1.5 if a.kind == "efficient" else 1.0
    width = (_padded(a, a.head) + _padded(a, a.value_head)) / 2 * max(1.0, item_bytes(a.dtype) / 2)
    step = (base + per_head * width) * scale * slow
    if a.dtype.startswith("float8"):
        step, of_block = (ns * _float8_share(machine, a) for ns in (step, of_block))
    if a.dropout:
        step += DROPOUT_NS / machine.clock_ratio * resident * slow
    slots = sms * resident
    exposed = tail if a.causal else 0.0
    # Without a mask blocks are equal: they run in whole waves.
    waves = a.batch * a.heads * blocks / slots
    work, waves = (steps / slots, waves) if a.causal else (ceil(waves) * longest, ceil(waves))
    busy = max(work * step + waves * of_block + exposed * longest * step, longest * step * (0.5 + 0.5 / resident))
    compute = start + busy
    if a.backward and a.kind not in ("cudnn", "flex"):
        compute += sum(helper_ns(machine, a))
    if a.bias and a.backward and a.kind == "cudnn" and a.head > BIASED_WIDE_HEAD:
        compute *= BIASED_WIDE
    passes = BIAS_PASSES_BACKWARD.get(a.kind, 1.0) if a.backward else 1.0
    return max(compute, machine.memory_ns(a.moved)) + passes * a.bias / (machine.stream_rate * BIAS_SHARE)


def _flash_ns(machine: Machine, a: Attention) -> float:
    """Time of the kernels of FlashAttention 2, without the limit of memory."""
    width = (_padded(a, a.head) + _padded(a, a.value_head)) // 2
    splits = not (a.dropout or a.packed)
    shape = flash_forward.Shape(
        sequences=a.batch * a.heads, queries=a.queries, keys=a.keys, head=width, causal=a.causal, splits=splits
    )
    dropout = DROPOUT_NS if a.dropout else 0.0
    if a.backward:
        main = flash_backward.backward_ns(shape, machine.gpu.sms, dropout)
        return main / machine.clock_ratio + sum(helper_ns(machine, a))
    small = machine.gpu.compute_capability >= (9, 0)
    dropout *= flash_forward.RESIDENT
    return flash_forward.forward_ns(shape, machine.gpu.sms, dropout, small) / machine.clock_ratio


def _few_queries_ns(machine: Machine, a: Attention) -> float:
    """Time of the kernels for few queries, without the limit of memory."""
    blocks = a.batch * a.kv_heads
    fill = 2 * machine.gpu.sms // blocks  # two blocks lie on an SM
    splits = a.keys >= SPLIT_KEYS and a.kind != "efficient"
    parts = max(1, min(fill, a.keys // LEAST_PART)) if splits else 1
    steps = ceil(a.keys / parts / STEP) * max(1.0, blocks * parts / (2 * machine.gpu.sms))
    joined = JOIN_NS + parts * JOIN_PART_NS if parts > 1 else 0.0
    slow = 1.5 * item_bytes(a.dtype) / 2 if a.kind == "efficient" else 1.0
    return FEW_START_NS + steps * FEW_STEP_NS * slow + joined


def _float8_share(machine: Machine, a: Attention) -> float:
    """Time of a step in FP8 relative to one in 16 bits."""
    shares = FLOAT8_HOPPER if machine.gpu.compute_capability < (10, 0) else FLOAT8_BLACKWELL
    if shares is FLOAT8_BLACKWELL and a.gradient == "float8_e5m2":
        return float(np.interp(a.head, FLOAT8_HEADS, FLOAT8_BLACKWELL_E5M2))
    return float(np.interp(a.head, FLOAT8_HEADS, shares[a.backward]))


def _padded(a: Attention, head: int) -> int:
    """Elements of a head that kernels compute: FlashAttention has kernels for some sizes."""
    return next((size for size in FLASH_HEADS if size >= head), head) if a.kind == "flash" else head


def helper_ns(machine: Machine, a: Attention) -> tuple[float, float]:
    """FlashAttention's backward prologue (rows of grad . out) and epilogue (gradient from float32)."""
    out = a.batch * a.queries * a.heads * a.value_head
    # Both touch 2 tensors of 16 bits and write or read one of 32.
    before, after = HELPER_START_NS if a.kind == "flash" else (0.0, 0.0)
    return before + machine.memory_ns(8.0 * out), after + machine.memory_ns(8.0 * out)


def _published_scale(machine: Machine, a: Attention, forward_ns: tuple[float, float]) -> float:
    """Time of the GPU's own attention relative to the calibrated one's, by what was published of its forward pass;
    0 where nothing was."""
    if not machine.gpu.attention_step_ns or machine.gpu.attention_kind not in ("", a.kind):
        return 0.0
    base, per_head = forward_ns
    return _step_ns(machine.gpu.attention_step_ns, a.head) / (base + per_head * a.head)


def _step_ns(published: dict[str, float], head: int) -> float:
    """Between the published heads; in proportion beyond the largest."""
    steps = {int(size): ns for size, ns in published.items()}
    heads = sorted(steps)
    return float(np.interp(head, heads, [steps[size] for size in heads])) * max(1.0, head / heads[-1])


def _tensor_scale(machine: Machine) -> float:
    """Time of tensor-core work on one SM, relative to the calibrated GPU's (7.5 TFLOP/s of bf16)."""
    return 989.4e12 / 132 / (machine.gpu.peak_flops["bfloat16"] / machine.gpu.sms)


FAMILY = Family(
    "attention", classify=classify, estimate=estimate, precedence=10, places=places, depends_on_kernels=False
)
