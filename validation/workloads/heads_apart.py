"""Attention under context parallelism that exchanges heads for tokens, as Transformer Engine does (`cp_comm_type` a2a).

One all-to-all brings all tokens of a rank's part of the heads, another one the own tokens of all heads. Tokens are copied
into the order of the ranks before and after. With one scale a tensor, FP8 attention exchanges what it reads and writes,
a byte an element: operands are made narrow before, outputs and gradients wide after. Values are not those of a training.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from validation.workloads.narrow_attention import CUDNN, CUDNN_BACKWARD, Format, NarrowAttention, narrow


def heads_of(core: Any) -> type[torch.nn.Module]:
    """`core` attends to all tokens with a part of the heads."""
    bytewise = core is NarrowAttention and not Format.recipe().block

    class HeadsApart(torch.nn.Module):
        """Query, key and value are [sequence, batch, heads, head_dim]; the output is [sequence, batch, heads * head_dim]."""

        def __init__(self, *, pg_collection: Any, **given: Any) -> None:
            super().__init__()
            self.group: dist.ProcessGroup = pg_collection.cp
            self.core = core(pg_collection=_Alone(), **given)

        def forward(
            self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: torch.Tensor | None,
            **kept: Any,
        ) -> torch.Tensor:
            shape = query.shape
            if bytewise:
                return _attended_bytewise(query, key, value, self.group)
            operands = (_Exchange.apply(each, self.group, True) for each in (query, key, value))
            out = self.core(*operands, attention_mask, **kept)
            out = _Exchange.apply(out.unflatten(-1, (-1, shape[3])), self.group, False)
            return out.flatten(2)

    return HeadsApart


def _attended_bytewise(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, group: dist.ProcessGroup
) -> torch.Tensor:
    out: torch.Tensor = _Bytewise.apply(query, key, value, group)
    return out.flatten(2)


class _Bytewise(torch.autograd.Function):
    """Causal attention whose exchanges carry FP8; operands and output are [sequence, batch, heads, head_dim]."""

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, group: dist.ProcessGroup
    ) -> torch.Tensor:
        operands = [_narrowed(each, group) for each in (query, key, value)]
        made = CUDNN(*operands, None, True, 0.0, True)
        out = torch.empty_like(operands[0])  # cuDNN writes FP8
        ctx.operands, ctx.made, ctx.group, ctx.wide = operands, made, group, query.dtype
        return _widened(out, group, query.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v = ctx.operands
        batch, heads, length, _ = q.shape
        sums = torch.empty((batch, heads, length, 1), dtype=torch.float32, device=q.device)
        out = torch.empty((batch, heads, length, v.size(3)), dtype=ctx.wide, device=q.device)
        _, _, cum_q, cum_k, _, _, seed, offset, _ = ctx.made
        given = _narrowed(gradients[0], ctx.group, True)
        CUDNN_BACKWARD(given, q, k, v, out, sums, seed, offset, None, cum_q, cum_k, length, length, 0.0, True)
        return *(_widened(torch.empty_like(each), ctx.group, ctx.wide) for each in (q, k, v)), None


def _narrowed(given: torch.Tensor, group: dist.ProcessGroup, gradient: bool = False) -> torch.Tensor:
    """All tokens of a part of the heads in FP8, [batch, heads, sequence, head_dim]."""
    return _exchanged(narrow(given, gradient).permute(2, 0, 1, 3), group, True).permute(1, 2, 0, 3)


def _widened(given: torch.Tensor, group: dist.ProcessGroup, wide: torch.dtype) -> torch.Tensor:
    """The own tokens of all heads of [batch, heads, sequence, head_dim], [sequence, batch, heads, head_dim]."""
    return _exchanged(given.permute(2, 0, 1, 3), group, False).to(wide)


class _Alone:
    """Groups of the core: it has all tokens."""

    class cp:
        @staticmethod
        def size() -> int:
            return 1

        @staticmethod
        def rank() -> int:
            return 0


class _Exchange(torch.autograd.Function):
    """Tokens of all ranks with a part of the heads (`gathers`), or all heads of the own tokens."""

    @staticmethod
    def forward(ctx: Any, given: torch.Tensor, group: dist.ProcessGroup, gathers: bool) -> torch.Tensor:
        ctx.group, ctx.gathers = group, gathers
        return _exchanged(given, group, gathers)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return _exchanged(gradients[0], ctx.group, not ctx.gathers), None, None


def _exchanged(given: torch.Tensor, group: dist.ProcessGroup, gathers: bool) -> torch.Tensor:
    tokens, batch, heads, width = given.shape
    ranks = group.size()
    if gathers:
        parts = given.unflatten(2, (ranks, heads // ranks)).permute(2, 0, 1, 3, 4).contiguous()
    else:
        parts = given.contiguous().view(ranks, tokens // ranks, batch, heads, width)
    received = torch.empty_like(parts)
    dist.all_to_all_single(received, parts, group=group)
    if gathers:
        return received.flatten(0, 1).clone()
    return received.permute(1, 2, 0, 3, 4).flatten(2, 3)
