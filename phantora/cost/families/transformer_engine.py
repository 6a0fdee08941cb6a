"""Transformer Engine's own kernels, one by one: each passes over its tensors in the way that its name gives.

Calls of the extension are operators (``phantora/rank/patches/engine_calls.py``). Products and attention within
them are calls of libraries, priced as torch's (:mod:`phantora.cost.library_operators`). Names of kernels:
Transformer Engine 2.20.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod

from phantora.cost.families import attention, gemm
from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import item_bytes, nbytes, on_gpu, tensors
from phantora.cost.types import KernelLaunch, OperatorSignature, TensorSpec

NAMESPACE = "transformer_engine::"
ERROR = 0.30
SEVERAL = re.compile("multi_tensor|split_|group")
ATTENTION_CALLS = ("sdpa_fwd", "sdpa_bwd")
GATED = ("glu", "reglu")  # at the end of names: half as many elements come out as go in
PERMUTATIONS = ("moe_permute_fwd", "moe_permute_bwd", "moe_unpermute_fwd")
"""The number of rows that come out is the largest of their integers."""
WINDOW = 1.3
"""Time of attention within a window over its share of a causal one: 1.30 forward, 1.31 backward, a window of 1,024 in
4,096 tokens on an H100 (validation/probes/te_operators.py)."""
CLASSES = (
    ("gemm", re.compile("gemm")),
    ("attention", re.compile("fused_attn|fa_prepare")),
    ("normalization", re.compile("norm_(fwd|bwd)|softmax")),
    ("optimizer", re.compile("multi_tensor_")),
    ("embedding", re.compile("permute|permutation|topk|moe_aux|padding")),
    ("random", re.compile("dropout")),
)


def classify(name: str) -> str | None:
    """Class by parts of the name; other kernels pass over their elements."""
    if not name.startswith(NAMESPACE):
        return None
    return next((cls for cls, pattern in CLASSES if pattern.search(name)), "elementwise")


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Elements that a call's kernels read and write, bytes of each, and the number of layouts of 8-bit results (along
    rows, along columns)."""

    given: int
    width: int
    made: int
    made_width: int
    layouts: int
    operands: float
    """Bytes of all tensors that it was given."""

    def of(self, share: float) -> Pass:
        """A part of it."""
        if share == 1.0:
            return self
        return replace(self, given=int(self.given * share), made=int(self.made * share), operands=self.operands * share)

    @property
    def scale_block(self) -> int:
        """Elements of a scale of one byte: MXFP8's operands are known as 8-bit tensors, NVFP4's are not."""
        return 32 if self.width == 1 else 16

    @property
    def narrow(self) -> float:
        """Bytes of 8-bit results."""
        return float(self.made * self.layouts)


@dataclass(frozen=True)
class Kind:
    """Bytes that a kernel moves, the share of a stream's speed at which it does, and ns that it takes at least. With
    `start`, ns before that, it computes too much to be faster from L2."""

    pattern: re.Pattern[str]
    moved: Callable[[Pass], float]
    share: float
    least: float = 0.0
    start: float = 0.0


def _kind(pattern: str, moved: Callable[[Pass], float], share: float, least: float = 0.0, start: float = 0.0) -> Kind:
    return Kind(re.compile(pattern), moved, share, least, start)


# In this order: the first whose pattern is found. Shares: an H100, fitted to half of the cases of
# validation/probes/te_operators.py; the others' kernels differ by 0.1 to 16 % in the median
# (validation/fits/transformer_engine.py).
KINDS = (
    # Scales of 16 or 32 elements in NVFP4 and MXFP8. What these kernels read and write follows from their sources.
    # Their shares are not measured, but for MXFP8's: seven published times of 8,192 to 16,384 rows of 8,192 on a B200
    # (github.com/ROCm/TransformerEngine/pull/598), which differ from it by up to 8 %.
    _kind("compute_nvfp4_per_tensor_scale|ZeroAmax", lambda p: 0.0, 1.0),
    _kind("swizzle_", lambda p: 2.0 * p.given / p.scale_block, 0.8),
    _kind("HadamardAmax", lambda p: float(p.given * p.width), 0.8),
    _kind("rht_gemm|quantize_transpose_nvfp4", lambda p: p.given * p.width + p.made * p.layouts * 9 / 16, 0.8),
    _kind(
        "quantize_mxfp8|quantize_bidim", lambda p: p.given * p.width + p.made * p.layouts * 33 / 32, 0.81, start=3_500.0
    ),
    _kind("zero_amax|compute_scale|amax_and_scale|extract_seed|cu_seqlens|reduce_dbias", lambda p: 0.0, 1.0),
    # this and the next: validation/workloads/te_steps.py, H100
    _kind("finalize_general", lambda p: 0.0, 1.0, 13_200.0),
    _kind("finalize", lambda p: 0.0, 1.0, 3_000.0),
    _kind("Onesweep", lambda p: 0.0, 1.0, 7000.0),  # 16,384 keys, an H100
    _kind("[rR]adix|[hH]istogram|row_map|[sS]can|cleanup|FillFunctor", lambda p: 0.0, 1.0),
    _kind("permute_kernel", lambda p: p.operands + p.made * p.width, 0.90),
    _kind("amax_kernel", lambda p: float(p.made * p.width), 0.76),
    _kind("cast_transpose", lambda p: p.made * p.width + p.narrow, 0.89),
    _kind("block_scaled", lambda p: p.made * p.width + p.narrow, 0.89),
    # Of sizes that no kernel was tuned for: 4,096 rows of 6,144 (te_steps.py gpt16b-tp2-bf16).
    _kind("(norm|ln)_fwd_general", lambda p: float(p.given * (p.width + p.made_width)), 0.435),
    _kind("(norm|ln)_bwd_general", lambda p: 3.0 * p.given * p.width, 0.456),
    _kind("norm_fwd|ln_fwd", lambda p: float(p.given * (p.width + p.made_width)), 0.82),
    _kind("norm_bwd|ln_bwd", lambda p: 3.0 * p.given * p.width, 0.96),
    _kind("transpose", lambda p: 2.0 * p.made, 1.07),
    _kind("dgated_act", lambda p: float(2 * p.given * p.width + p.given * p.width / 2), 1.0),
    _kind("gated_act", lambda p: float(p.given * p.width + p.made * p.made_width), 1.0),
    _kind("dact|dgelu|drelu|dsilu", lambda p: 3.0 * p.given * p.width, 0.98),
    _kind("unary_kernel", lambda p: float(p.made * (p.width + p.made_width)), 0.98),
    _kind("[aA]dam", lambda p: p.operands * 7 / 4, 0.86),
    _kind("l2norm|l2_norm|L2Norm", lambda p: p.operands, 0.86),
    _kind("multi_tensor", lambda p: p.operands, 0.86),
)


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """The sum of its kernels; without kernels, of one that goes over all operands twice."""
    done = passed(signature, name)
    if not kernels:
        moved = 2.0 * done.operands
        return Estimate(machine.memory_ns(moved), moved, error=ERROR)
    shares = _shares(name, kernels)
    several = [_of_kernel(machine, done.of(share), kernel) for share, kernel in zip(shares, kernels, strict=True)]
    whole = Estimate(
        sum(part.ns for part in several),
        sum(part.moved for part in several),
        flops=sum(part.flops for part in several),
        parts=tuple(part.ns for part in several),
    )
    heaviest = max(several, key=lambda part: part.ns)
    error = None if heaviest.format else ERROR
    return replace(
        whole, format=heaviest.format, tiles=heaviest.tiles, sms=heaviest.sms, computed=heaviest.computed, error=error
    )


def passed(signature: OperatorSignature, name: str) -> Pass:
    """The pass of the call over its largest operand."""
    base = name.removeprefix(NAMESPACE)
    given = [t for t in on_gpu(signature.args) if t.shape]
    largest = max(given, key=lambda t: (prod(t.shape), nbytes(t)), default=TensorSpec("uint8", (0,), stride=(1,)))
    count, width = prod(largest.shape), item_bytes(largest.dtype)
    made = count // 2 if base.endswith(GATED) and not base.startswith(("d", "clamped_d")) else count
    if base in PERMUTATIONS:
        made = max((a for a in signature.args if type(a) is int), default=0) * largest.shape[-1]
    quantiser = next(_quantisers(signature.args), "")
    layouts = len(quantiser.rpartition(" ")[2]) if quantiser else 0
    narrow = bool(quantiser) and "CurrentScaling" not in quantiser
    return Pass(
        given=count,
        width=width,
        made=made,
        made_width=1 if narrow else width,
        layouts=max(1, layouts),
        operands=float(sum(map(nbytes, tensors(given)))),
    )


def _quantisers(args: Iterable[object]) -> Iterator[str]:
    """Alone, or in a list with one for each expert."""
    for a in args:
        if isinstance(a, str) and "Quantizer" in a:
            yield a
        elif isinstance(a, tuple):
            yield from _quantisers(a)


def _shares(name: str, kernels: Kernels) -> list[float]:
    """Share of each kernel in the operands: each of several tensors has launches of its own."""
    if not SEVERAL.search(name):
        return [1.0] * len(kernels)
    blocks: dict[str, int] = {}
    for kernel in kernels:
        blocks[kernel.name] = blocks.get(kernel.name, 0) + prod(kernel.grid)
    return [prod(kernel.grid) / blocks[kernel.name] for kernel in kernels]


def call_of(signature: OperatorSignature, kernel: KernelLaunch) -> KernelLaunch:
    """Attention over packed sequences is compiled for a round number of sequences, each as long as all together, and a
    window is a part of the graph: the arguments give both."""
    if not kernel.library or kernel.library.get("call") not in ATTENTION_CALLS:
        return kernel
    call = dict(kernel.library)
    packed = any(isinstance(a, str) and a.startswith("NVTE_THD") for a in signature.args)
    given = on_gpu(signature.args)
    ends = next((t for t in given if t.dtype == "int32" and len(t.shape) == 1), None)
    tokens = next((t.shape[0] for t in given if len(t.shape) == 3), 0)
    if packed and ends is not None and tokens:
        batch = max(1, ends.shape[0] - 1)
        longest = [a for a in signature.args[:2] if isinstance(a, int)]
        length = min([max(1, tokens // batch), *longest])
        call |= {"b": batch, "sq": length, "skv": length}
    pairs = (a for a in signature.args if isinstance(a, tuple) and len(a) == 2)
    window = next((pair for pair in pairs if all(type(n) is int for n in pair)), ())
    keys = int(call.get("skv", 1))
    if window and 0 <= window[0] < keys and call.get("causal"):
        left = window[0]
        call["share"] = min(1.0, WINDOW * (left + 1) * (keys - left / 2) / (keys * keys / 2))
    return replace(kernel, library=call)


def _of_kernel(machine: Machine, done: Pass, kernel: KernelLaunch) -> Estimate:
    if kernel.library:
        found = gemm.of_call(machine, kernel.library) or attention.of_call(machine, kernel.library)
        if found is not None:
            return found
    kind = next((kind for kind in KINDS if kind.pattern.search(kernel.name)), None)
    if kind is None:
        moved = done.operands + done.made * done.made_width
        return Estimate(machine.memory_ns(moved, 0.8), moved)
    moved = kind.moved(done)
    if kind.start:
        return Estimate(kind.start + moved / (machine.stream_rate * kind.share), moved)
    return Estimate(max(kind.least, machine.memory_ns(moved, kind.share)), moved)


FAMILY = Family("transformer-engine", classify=classify, estimate=estimate, takes_libraries=True, call_of=call_of)
