"""Attention under context parallelism that exchanges heads for tokens, as Transformer Engine does (`cp_comm_type` a2a).

One all-to-all brings all tokens of a rank's part of the heads, another one the own tokens of all heads. Tokens are copied
into the order of the ranks before and after. Values are not those of a training.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def heads_of(core: Any) -> type[torch.nn.Module]:
    """`core` attends to all tokens with a part of the heads."""

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
            operands = (_Exchange.apply(each, self.group, True) for each in (query, key, value))
            out = self.core(*operands, attention_mask, **kept)
            out = _Exchange.apply(out.unflatten(-1, (-1, shape[3])), self.group, False)
            return out.flatten(2)

    return HeadsApart


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
