"""FlashAttention as kernels of the Hugging Face hub have it: flash-attn2, flash-attn3 and vllm-flash-attn3.

Functions have the signatures of these kernels' Python halves (kernels-community, August 2026), which users of the hub
look at. They are operators of torch, so that they compile and have gradients; inside are the stand-ins of the packages
flash-attn 2 and 3, with their prices.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from phantora.rank.standins import flash_attn_2, flash_attn_3
from phantora.rank.standins.kernels import operator, spec

Window = tuple[int, int]
WHOLE: Window = (-1, -1)
_FLASH_2: Any = flash_attn_2  # called with tuples of arguments
_FLASH_3: Any = flash_attn_3


def _named(begins: Any, longest: Any, mask: list[Any], softcap: float) -> dict[str, Any]:
    """Arguments of flash-attn 3 by name. `mask`: causal, left, right."""
    causal, left, right = mask
    own = {"is_causal": causal, "window_size_left": left, "window_size_right": right, "softcap": softcap}
    if begins[0] is None:
        return own
    lengths = {"cu_seqlens_q": begins[0], "cu_seqlens_k": begins[1]}
    return own | lengths | {"max_seqlen_q": longest[0], "max_seqlen_k": longest[1]}


def _forward(version: int, tensors: tuple[Any, ...], begins: Any, longest: Any, options: list[Any]) -> Any:
    """Result and log-sum-exp. `options`: dropout, scale, causal, left, right, softcap."""
    dropout, scale, *mask, softcap = options
    if version == 3:
        named = _named(begins, longest, mask, softcap)
        shown = [*tensors, *[None] * 4, *begins, *[None] * 14, scale, *mask]
        made = operator("flash_attn_3::fwd", shown, lambda: _FLASH_3.fwd(*tensors, **named))
        return made[0], made[1]
    last = (*mask, softcap, False, None)
    if begins[0] is None:
        shown = [*tensors, dropout, scale, *mask]
        given = (*tensors, None, None, dropout, scale, *last)
        made = operator("flash_attn::_flash_attn_forward", shown, lambda: _FLASH_2.fwd(*given))
    else:
        shown = [*tensors, *begins, *longest, dropout, scale, *mask]
        given = (*tensors, None, *begins, None, None, None, None, *longest, dropout, scale, False, *last)
        made = operator("flash_attn::_flash_attn_varlen_forward", shown, lambda: _FLASH_2.varlen_fwd(*given))
    return made[0], made[1]


def _backward(version: int, tensors: list[Any], begins: Any, longest: Any, options: list[Any]) -> list[Any]:
    """Gradients of queries, keys and values. `tensors`: gradient, queries, keys, values, result, log-sum-exp."""
    import torch

    dropout, scale, *mask, softcap, deterministic = options
    made = [torch.empty_like(tensor) for tensor in tensors[1:4]]
    tensors = [*tensors, *made]
    if version == 3:
        named = _named(begins, longest, mask, softcap) | {"deterministic": deterministic}
        shown = [*tensors, *begins, None, None, *longest, scale, *mask]
        operator("flash_attn_3::bwd", shown, lambda: _FLASH_3.bwd(*tensors, **named))
        return made
    last = (*mask, softcap, deterministic, None, None)
    if begins[0] is None:
        shown = [*tensors, dropout, scale, *mask]
        given = (*tensors, None, dropout, scale, *last)
        operator("flash_attn::_flash_attn_backward", shown, lambda: _FLASH_2.bwd(*given))
    else:
        shown = [*tensors, *begins, *longest, dropout, scale, *mask]
        given = (*tensors, *begins, None, *longest, dropout, scale, False, *last)
        operator("flash_attn::_flash_attn_varlen_backward", shown, lambda: _FLASH_2.varlen_bwd(*given))
    return made


_TENSORS = "Tensor q, Tensor k, Tensor v"
_REST = "Tensor? begins_q, Tensor? begins_k, int longest_q, int longest_k, float dropout, float scale, bool causal, "
_REST += "int left, int right, float softcap, bool deterministic"


@cache
def _defined() -> Any:
    """Defines the operators of torch, with their gradient and their shapes for compilers. They live as long as the
    returned library, which this function keeps."""
    import torch

    def forward(version: int, q: Any, k: Any, v: Any, *rest: Any) -> Any:
        return _forward(version, (q, k, v), rest[:2], rest[2:4], list(rest[4:10]))

    def backward(version: int, dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *rest: Any) -> Any:
        return tuple(_backward(version, [dout, q, k, v, out, lse], rest[:2], rest[2:4], list(rest[4:11])))

    def shapes(version: int, q: Any, k: Any, v: Any, *rest: Any) -> tuple[Any, Any]:
        rows = (q.shape[0], q.shape[2], q.shape[1]) if rest[0] is None else (q.shape[1], q.shape[0])
        return q.new_empty((*q.shape[:-1], v.shape[-1])), q.new_empty(rows, dtype=torch.float32)

    def kept(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, Any]) -> None:
        version, q, k, v, begins_q, begins_k, *ctx.rest = inputs
        ctx.version = version
        ctx.save_for_backward(q, k, v, *output, begins_q, begins_k)

    def gradient(ctx: Any, dout: Any, _: Any) -> tuple[Any, ...]:
        q, k, v, out, lse, begins_q, begins_k = ctx.saved_tensors
        ops = torch.ops.phantora_hub
        made = ops.attention_backward(ctx.version, dout.contiguous(), q, k, v, out, lse, begins_q, begins_k, *ctx.rest)
        return (None, *made, *[None] * (2 + len(ctx.rest)))

    library: Any = torch.library.Library("phantora_hub", "DEF")  # type: ignore[no-untyped-call]
    library.define(f"attention(int version, {_TENSORS}, {_REST}) -> (Tensor, Tensor)")
    of_backward = f"int version, Tensor dout, {_TENSORS}, Tensor out, Tensor lse, {_REST}"
    library.define(f"attention_backward({of_backward}) -> (Tensor, Tensor, Tensor)")
    library.impl("attention", forward, "CUDA")
    library.impl("attention_backward", backward, "CUDA")
    register: Any = torch.library.register_fake
    register("phantora_hub::attention", shapes, lib=library)
    register(
        "phantora_hub::attention_backward",
        lambda version, dout, q, k, v, *rest: tuple(torch.empty_like(each) for each in (q, k, v)),
        lib=library,
    )
    torch.library.register_autograd("phantora_hub::attention", gradient, setup_context=kept, lib=library)
    return library


def _call(
    version: int, tensors: tuple[Any, Any, Any], begins: tuple[Any, Any, int, int], options: tuple[Any, ...]
) -> tuple[Any, Any]:
    """`options`: dropout, scale (None: of the heads' size), causal, window, softcap, deterministic."""
    import torch

    dropout, scale, causal, window, softcap, deterministic = options
    scale = tensors[0].shape[-1] ** -0.5 if scale is None else scale
    q, k, v = (each if each.stride(-1) == 1 else each.contiguous() for each in tensors)
    given = (float(dropout), float(scale), bool(causal), *map(int, window), float(softcap), bool(deterministic))
    out, lse = torch.ops.phantora_hub.attention(version, q, k, v, *begins, *given)
    return out, lse


_NONE = (None, None, 0, 0)


class Flash2:
    """Functions of flash-attn2."""

    @staticmethod
    def flash_attn_func(
        q: Any, k: Any, v: Any, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
        window_size: Window = WHOLE, softcap: float = 0.0, alibi_slopes: Any = None, deterministic: bool = False,
        return_attn_probs: bool = False,
    ) -> Any:  # fmt: skip
        """(batch, sequence, heads, head)."""
        given = (dropout_p, softmax_scale, causal, window_size, softcap, deterministic)
        out, lse = _call(2, (q, k, v), _NONE, given)
        return (out, lse, None) if return_attn_probs else out

    @staticmethod
    def flash_attn_varlen_func(
        q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int, max_seqlen_k: int,
        dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False, window_size: Window = WHOLE,
        softcap: float = 0.0, alibi_slopes: Any = None, deterministic: bool = False, return_attn_probs: bool = False,
        block_table: Any = None,
    ) -> Any:  # fmt: skip
        """(tokens, heads, head), with the begins of sequences."""
        begins = (cu_seqlens_q, cu_seqlens_k, int(max_seqlen_q), int(max_seqlen_k))
        given = (dropout_p, softmax_scale, causal, window_size, softcap, deterministic)
        out, lse = _call(2, (q, k, v), begins, given)
        return (out, lse, None) if return_attn_probs else out

    @staticmethod
    def flash_attn_qkvpacked_func(qkv: Any, *args: Any, **kwargs: Any) -> Any:
        """(batch, sequence, 3, heads, head)."""
        return Flash2.flash_attn_func(*qkv.unbind(2), *args, **kwargs)

    @staticmethod
    def flash_attn_kvpacked_func(q: Any, kv: Any, *args: Any, **kwargs: Any) -> Any:
        """Keys and values (batch, sequence, 2, heads, head)."""
        return Flash2.flash_attn_func(q, *kv.unbind(2), *args, **kwargs)

    @staticmethod
    def flash_attn_varlen_qkvpacked_func(qkv: Any, cu_seqlens: Any, max_seqlen: int, *args: Any, **kwargs: Any) -> Any:
        """(tokens, 3, heads, head)."""
        begins = (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *args)
        return Flash2.flash_attn_varlen_func(*qkv.unbind(1), *begins, **kwargs)

    @staticmethod
    def flash_attn_with_kvcache(
        q: Any, k_cache: Any, v_cache: Any, k: Any = None, v: Any = None, rotary_cos: Any = None,
        rotary_sin: Any = None, cache_seqlens: Any = None, cache_batch_idx: Any = None, cache_leftpad: Any = None,
        block_table: Any = None, softmax_scale: float | None = None, causal: bool = False,
        window_size: Window = WHOLE, softcap: float = 0.0, rotary_interleaved: bool = True, alibi_slopes: Any = None,
        num_splits: int = 0, return_softmax_lse: bool = False,
    ) -> Any:  # fmt: skip
        """Attention to a cache, of which all is taken for used."""
        scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
        out, lse = flash_attn_2.fwd_kvcache(
            q, k_cache, v_cache, k, v, cache_seqlens, rotary_cos, rotary_sin, cache_batch_idx, cache_leftpad,
            block_table, alibi_slopes, None, scale, causal, *window_size, softcap, rotary_interleaved, num_splits,
        )  # fmt: skip
        return (out, lse) if return_softmax_lse else out


class Flash3:
    """Functions of flash-attn3."""

    @staticmethod
    def flash_attn_func(
        q: Any, k: Any, v: Any, softmax_scale: float | None = None, causal: bool = False, qv: Any = None,
        q_descale: Any = None, k_descale: Any = None, v_descale: Any = None, window_size: Window = WHOLE,
        attention_chunk: int = 0, softcap: float = 0.0, num_splits: int = 1, pack_gqa: bool | None = None,
        deterministic: bool = False, sm_margin: int = 0, return_attn_probs: bool = False,
    ) -> Any:  # fmt: skip
        """(batch, sequence, heads, head)."""
        out, lse = _call(3, (q, k, v), _NONE, (0.0, softmax_scale, causal, window_size, softcap, deterministic))
        return (out, lse) if return_attn_probs else out

    @staticmethod
    def flash_attn_varlen_func(
        q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int, max_seqlen_k: int,
        seqused_q: Any = None, seqused_k: Any = None, softmax_scale: float | None = None, causal: bool = False,
        qv: Any = None, q_descale: Any = None, k_descale: Any = None, v_descale: Any = None,
        window_size: Window = WHOLE, attention_chunk: int = 0, softcap: float = 0.0, num_splits: int = 1,
        pack_gqa: bool | None = None, deterministic: bool = False, sm_margin: int = 0, return_attn_probs: bool = False,
    ) -> Any:  # fmt: skip
        """(tokens, heads, head), with the begins of sequences."""
        begins = (cu_seqlens_q, cu_seqlens_k, int(max_seqlen_q), int(max_seqlen_k))
        out, lse = _call(3, (q, k, v), begins, (0.0, softmax_scale, causal, window_size, softcap, deterministic))
        return (out, lse) if return_attn_probs else out

    @staticmethod
    def flash_attn_qkvpacked_func(qkv: Any, *args: Any, **kwargs: Any) -> Any:
        """(batch, sequence, 3, heads, head)."""
        return Flash3.flash_attn_func(*qkv.unbind(2), *args, **kwargs)

    @staticmethod
    def flash_attn_with_kvcache(
        q: Any, k_cache: Any, v_cache: Any, k: Any = None, v: Any = None, qv: Any = None, rotary_cos: Any = None,
        rotary_sin: Any = None, cache_seqlens: Any = None, cache_batch_idx: Any = None, cache_leftpad: Any = None,
        page_table: Any = None, cu_seqlens_q: Any = None, cu_seqlens_k_new: Any = None,
        max_seqlen_q: int | None = None, rotary_seqlens: Any = None, q_descale: Any = None, k_descale: Any = None,
        v_descale: Any = None, softmax_scale: float | None = None, causal: bool = False, window_size: Window = WHOLE,
        attention_chunk: int = 0, softcap: float = 0.0, rotary_interleaved: bool = True, scheduler_metadata: Any = None,
        num_splits: int = 0, pack_gqa: bool | None = None, sm_margin: int = 0, return_softmax_lse: bool = False,
        s_aux: Any = None,
    ) -> Any:  # fmt: skip
        """Attention to a cache, of which all is taken for used."""
        return _to_cache(q, k_cache, v_cache, page_table, causal, return_softmax_lse)


def _to_cache(q: Any, keys: Any, values: Any, table: Any, causal: bool, wanted: bool) -> Any:
    scale, packed = q.shape[-1] ** -0.5, q.dim() == 3
    queries = q.unsqueeze(1) if packed else q  # a token of each sequence
    length = keys.shape[1] if table is None else table.shape[1] * keys.shape[1]
    cached = [spec(each.dtype, queries.shape[0], length, *each.shape[2:]) for each in (keys, values)]
    shown = [queries, *cached, *[None] * 20, scale, causal, -1, -1]
    out, lse, *_ = operator(
        "flash_attn_3::fwd", shown, lambda: flash_attn_3.fwd(queries, keys, values, page_table=table)
    )
    out = out.squeeze(1) if packed else out
    return (out, lse) if wanted else out


class FlashVllm(Flash3):
    """Functions of vllm-flash-attn3, which take sinks and return log-sum-exps."""

    @staticmethod
    def flash_attn_func(  # type: ignore[override]
        q: Any, k: Any, v: Any, softmax_scale: float | None = None, causal: bool = False, qv: Any = None,
        q_descale: Any = None, k_descale: Any = None, v_descale: Any = None, window_size: Window = WHOLE,
        softcap: float = 0.0, num_splits: int = 1, pack_gqa: bool | None = None, deterministic: bool = False,
        sm_margin: int = 0, s_aux: Any = None,
    ) -> Any:  # fmt: skip
        """(batch, sequence, heads, head)."""
        return _call(3, (q, k, v), _NONE, (0.0, softmax_scale, causal, window_size, softcap, deterministic))

    @staticmethod
    def flash_attn_varlen_func(  # type: ignore[override]
        q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int, max_seqlen_k: int,
        seqused_q: Any = None, seqused_k: Any = None, softmax_scale: float | None = None, causal: bool = False,
        qv: Any = None, q_descale: Any = None, k_descale: Any = None, v_descale: Any = None,
        window_size: Window = WHOLE, softcap: float = 0.0, num_splits: int = 1, pack_gqa: bool | None = None,
        deterministic: bool = False, sm_margin: int = 0, s_aux: Any = None,
    ) -> Any:  # fmt: skip
        """(tokens, heads, head), with the begins of sequences."""
        begins = (cu_seqlens_q, cu_seqlens_k, int(max_seqlen_q), int(max_seqlen_k))
        return _call(3, (q, k, v), begins, (0.0, softmax_scale, causal, window_size, softcap, deterministic))


def functions(of: type) -> dict[str, Any]:
    """The functions of a kernel by name."""
    _defined()
    return {name: getattr(of, name) for name in dir(of) if name.startswith("flash_")}
