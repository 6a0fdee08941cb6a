"""Stand-in for ``flash_attn_3._C`` of FlashAttention-3, which defines operators of torch.

They have the price themselves (:mod:`phantora.cost.families.flash_attn`). Shapes, buffers and checks are those of
flash_api.cpp (3.0.0).
"""

from __future__ import annotations

from typing import Any

from phantora.rank.standins.flash_attn_2 import ROWS
from phantora.rank.standins.kernels import check, launch

HEADS = (64, 96, 128, 192, 256)  # sizes that are compiled
CONFIG = {"build_flags": {f"FLASHATTENTION_DISABLE_HDIM{head}": False for head in HEADS}}
"""What a build writes into ``flash_attn_config``."""
SPLITS = 256
_LENGTHS = (
    "Tensor? cu_seqlens_q = None, Tensor? cu_seqlens_k = None, {new}Tensor? seqused_q = None, Tensor? seqused_k = None,"
    " int? max_seqlen_q = None, int? max_seqlen_k = None, "
)
_WINDOW = "float? softmax_scale = None, bool is_causal = False, int window_size_left = -1, int window_size_right = -1, "
SCHEMAS = {
    "fwd": (
        "(Tensor q, Tensor k, Tensor v, Tensor(k_new!)? k_new = None, Tensor(v_new!)? v_new = None, "
        "Tensor? q_v = None, Tensor(out!)? out = None, "
        + _LENGTHS.format(new="Tensor? cu_seqlens_k_new = None, ")
        + "Tensor? page_table = None, Tensor? kv_batch_idx = None, Tensor? leftpad_k = None, "
        "Tensor? rotary_cos = None, Tensor? rotary_sin = None, Tensor? seqlens_rotary = None, "
        "Tensor? q_descale = None, Tensor? k_descale = None, Tensor? v_descale = None, " + _WINDOW
        + "int attention_chunk = 0, float softcap = 0.0, bool is_rotary_interleaved = False, "
        "Tensor? scheduler_metadata = None, int num_splits = 0, bool? pack_gqa = None, int sm_margin = 0) "
        "-> (Tensor(out!), Tensor, Tensor, Tensor)"
    ),
    "bwd": (
        "(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, Tensor(dq!)? dq = None, "
        "Tensor(dk!)? dk = None, Tensor(dv!)? dv = None, " + _LENGTHS.format(new="") + _WINDOW
        + "float softcap = 0.0, bool deterministic = False, int sm_margin = 0) "
        "-> (Tensor, Tensor, Tensor, Tensor, Tensor)"
    ),
}  # fmt: skip
"""The operators by name, as the library defines them."""


def _rounded(n: int, to: int) -> int:
    return -(-n // to) * to


def _checked(q: Any, k: Any, v: Any, types: tuple[Any, ...], message: str) -> None:
    import torch

    check(torch.cuda.get_device_capability()[0] >= 8, "FlashAttention only supports Ampere GPUs or newer.")
    check(q.dtype in types, message)
    check(k.dtype == q.dtype, "query and key must have the same dtype")
    check(v.dtype == q.dtype, "query and value must have the same dtype")
    for tensor, name in ((q, "q"), (k, "k"), (v, "v")):
        check(tensor.is_cuda, f"{name} must be on CUDA")
        check(tensor.stride(-1) == 1, "Input tensor must have contiguous last dimension")
    largest = max(q.shape[-1], v.shape[-1] if v.shape[-1] <= HEADS[-1] else 0)
    check(largest <= HEADS[-1], f"FlashAttention forward only supports head dimension at most {HEADS[-1]}")
    check(q.shape[-2] % k.shape[-2] == 0, "Number of heads in key/value must divide number of heads in query")
    alignment = 16 if q.dtype == torch.float8_e4m3fn else 8
    check(q.shape[-1] % alignment == 0, f"head_size should be a multiple of {alignment}")
    check(v.shape[-1] % alignment == 0, f"head_size_v should be a multiple of {alignment}")


def _lengths(begins: Any, longest: int | None, name: str) -> None:
    import torch

    if begins is not None:
        check(begins.dtype == torch.int32, f"cu_seqlens_{name} must have dtype torch.int32")
        check(longest is not None, f"max_seqlen_{name} must be provided if cu_seqlens_{name} is provided")


def fwd(
    q: Any, k: Any, v: Any, k_new: Any = None, v_new: Any = None, q_v: Any = None, out: Any = None,
    cu_seqlens_q: Any = None, cu_seqlens_k: Any = None, cu_seqlens_k_new: Any = None, seqused_q: Any = None,
    seqused_k: Any = None, max_seqlen_q: int | None = None, max_seqlen_k: int | None = None, page_table: Any = None,
    kv_batch_idx: Any = None, leftpad_k: Any = None, rotary_cos: Any = None, rotary_sin: Any = None,
    seqlens_rotary: Any = None, q_descale: Any = None, k_descale: Any = None, v_descale: Any = None,
    softmax_scale: float | None = None, is_causal: bool = False, window_size_left: int = -1,
    window_size_right: int = -1, attention_chunk: int = 0, softcap: float = 0.0, is_rotary_interleaved: bool = False,
    scheduler_metadata: Any = None, num_splits: int = 0, pack_gqa: bool | None = None, sm_margin: int = 0,
) -> tuple[Any, Any, Any, Any]:  # fmt: skip
    """(batch, sequence, heads, head), or (tokens, heads, head) with begins of sequences. Returns the result, its
    log-sum-exp, and both for each part of the keys if there are several, else empty tensors."""
    import torch

    types = (torch.float16, torch.bfloat16, torch.float8_e4m3fn)
    _checked(q, k, v, types, "FlashAttention only supports fp16, bf16, and fp8_e4m3 data type")
    _lengths(cu_seqlens_q, max_seqlen_q, "q")
    _lengths(cu_seqlens_k, max_seqlen_k, "k")
    check(k_new is None or v_new is not None, "If k_new is supplied, v_new must also be passed in")
    check(k_new is None or seqused_k is not None, "If k_new is supplied, seqlens_k must also be passed in")
    check(num_splits <= SPLITS, f"num_splits > {SPLITS} not supported")
    batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.numel() - 1
    keys_of = page_table if page_table is not None else k
    batch_k = keys_of.shape[0] if cu_seqlens_k is None else cu_seqlens_k.numel() - 1
    check(kv_batch_idx is not None or batch == batch_k, "batch_size must be equal to batch_size_k")
    if out is None:
        kind = torch.bfloat16 if q.dtype == torch.float8_e4m3fn else q.dtype
        out = torch.empty((*q.shape[:-1], v.shape[-1]), dtype=kind, device=q.device)
    heads = q.shape[-2]
    rows = (batch, heads, q.shape[1]) if cu_seqlens_q is None else (heads, q.shape[0])
    lse = torch.empty(rows, dtype=torch.float32, device=q.device)
    parts = (num_splits, *rows) if num_splits > 1 else (0,)
    sums = torch.empty((*parts, v.shape[-1]) if num_splits > 1 else parts, dtype=torch.float32, device=q.device)
    lse_of_parts = torch.empty(parts, dtype=torch.float32, device=q.device)
    if k.numel() > 0:
        queries = q.shape[1] if max_seqlen_q is None else max_seqlen_q
        launch("flash_fwd_sm90", -(-queries // ROWS) * batch * heads, 384)
        if num_splits > 1:
            launch("flash_fwd_combine", batch * heads)
    return out, lse, sums, lse_of_parts


def _tile(head: int, causal: bool, windowed: bool, softcap: float) -> tuple[int, int]:
    """Queries and keys of a tile of the backward pass, on Hopper."""
    if head <= 64:
        return (96 if causal and softcap > 0.0 else 128), 128
    if head <= 96:
        return 64, 128
    if head <= 128:
        return (64 if causal or windowed or softcap > 0.0 else 80), 128
    return 64, (96 if head <= 192 else 80)


def bwd(
    dout: Any, q: Any, k: Any, v: Any, out: Any, softmax_lse: Any, dq: Any = None, dk: Any = None, dv: Any = None,
    cu_seqlens_q: Any = None, cu_seqlens_k: Any = None, seqused_q: Any = None, seqused_k: Any = None,
    max_seqlen_q: int | None = None, max_seqlen_k: int | None = None, softmax_scale: float | None = None,
    is_causal: bool = False, window_size_left: int = -1, window_size_right: int = -1, softcap: float = 0.0,
    deterministic: bool = False, sm_margin: int = 0,
) -> tuple[Any, Any, Any, Any, Any]:  # fmt: skip
    """Gradients go into `dq`, `dk` and `dv`. Returns the sums of rows of gradient times result, the log-sum-exp in
    base 2, and the sums in float32 of the three gradients (those of keys and values with fewer heads than queries)."""
    import torch

    _checked(q, k, v, (torch.float16, torch.bfloat16), "FlashAttention only support fp16 and bf16 data type")
    check(out.dtype == q.dtype, "query and out must have the same dtype")
    check(dout.dtype == q.dtype, "query and dout must have the same dtype")
    _lengths(cu_seqlens_q, max_seqlen_q, "q")
    _lengths(cu_seqlens_k, max_seqlen_k, "k")
    heads, kv_heads = q.shape[-2], k.shape[-2]
    head = next(size for size in HEADS if size >= max(q.shape[-1], v.shape[-1]))
    check(not deterministic or head < HEADS[-1], f"Deterministic backward not supported for hdim {HEADS[-1]}.")
    packed = any(each is not None for each in (cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k))
    batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.numel() - 1
    longest = [t.shape[1] if given is None else given for t, given in ((q, max_seqlen_q), (k, max_seqlen_k))]
    tile = _tile(head, is_causal, window_size_left >= 0 or window_size_right >= 0, softcap)
    if packed:
        rows, columns = (
            _rounded(t.numel() // t.shape[-1] // t.shape[-2] + batch * n, n) for t, n in zip((q, k), tile, strict=True)
        )
        outer: tuple[int, ...] = ()
    else:
        rows, columns = (_rounded(length, n) for length, n in zip(longest, tile, strict=True))
        outer = (batch,)

    def floats(*shape: int) -> Any:
        return torch.empty(shape, dtype=torch.float32, device=q.device)

    for gradient, tensor in ((dq, q), (dk, k), (dv, v)):
        check(gradient is None or gradient.shape == tensor.shape, "gradients must have the shapes of q, k and v")
    _made = [torch.empty_like(tensor) for gradient, tensor in ((dq, q), (dk, k), (dv, v)) if gradient is None]
    sums, lse2 = floats(*outer, heads, rows), floats(*outer, heads, rows)
    accumulators = [floats(*outer, heads, rows * head), floats(0), floats(0)]
    if heads != kv_heads:
        accumulators[1:] = [floats(*outer, kv_heads, columns * head).zero_() for _ in range(2)]
    blocks_q, blocks_k = (-(-length // n) * batch * heads for length, n in zip(longest, tile, strict=True))
    launch("flash_bwd_preprocess_sm90", blocks_q)
    launch("flash_bwd_sm90", blocks_k, 384)
    launch("flash_bwd_postprocess_convert_dq", blocks_q)
    if heads != kv_heads:
        for each in ("dk", "dv"):
            launch(f"flash_bwd_postprocess_convert_{each}", blocks_k)
    return sums, lse2, accumulators[0], accumulators[1], accumulators[2]
