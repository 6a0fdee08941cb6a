"""Causal attention under context parallelism in steps, as Transformer Engine computes it (`cp_comm_type` p2p).

Keys and values go round the ranks of the group while the attention of the last step runs; their gradients go round
with them in the backward pass. Rank r of n has chunks r and 2n-1-r of 2n, so all ranks have equal work: first its own
chunks, then all queries with the first chunk of each earlier rank, and the second half of the queries with both
chunks of each later rank. Every step is one call of cuDNN. Values are not those of a training.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from validation.workloads.narrow_attention import narrow

_forward = torch.ops.aten._scaled_dot_product_cudnn_attention
_backward = torch.ops.aten._scaled_dot_product_cudnn_attention_backward


class RingAttention(torch.nn.Module):
    """Query, key and value are [sequence, batch, heads, head_dim]; the output is [sequence, batch, heads * head_dim]."""

    narrows = False
    """Operands are in the format of `narrow_attention`, and so are keys and values on their way."""

    def __init__(self, *, pg_collection: Any, **_: Any) -> None:
        super().__init__()
        self.group: dist.ProcessGroup = pg_collection.cp

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: torch.Tensor | None,
        **_: Any,
    ) -> torch.Tensor:
        rows = (each.permute(1, 2, 0, 3) for each in (query, key, value))
        out: torch.Tensor = _Ring.apply(*rows, self.group, self.narrows)
        return out.permute(2, 0, 1, 3).reshape(query.size(0), query.size(1), -1)


class NarrowRing(RingAttention):
    """In MXFP8 or FP8; outputs, gradients and their sums over the steps are bfloat16, as in `narrow_attention`."""

    narrows = True


def _parts(step: int, rank: int, length: int) -> tuple[slice, slice, bool]:
    """Parts of queries and of keys in a step, and whether it is causal."""
    whole, half = slice(0, length), length // 2
    if step == 0:
        return whole, whole, True
    return (whole, slice(0, half), False) if step <= rank else (slice(half, length), whole, False)


def _exchange(sent: torch.Tensor, group: dist.ProcessGroup) -> tuple[torch.Tensor, list[dist.Work]]:
    """Sends to the next rank of the ring; returns what the previous one sends."""
    received, rank, ranks = torch.empty_like(sent), group.rank(), group.size()
    to, source = (dist.get_global_rank(group, (rank + by) % ranks) for by in (1, -1))
    operations = [dist.P2POp(dist.isend, sent, to, group), dist.P2POp(dist.irecv, received, source, group)]
    return received, dist.batch_isend_irecv(operations)


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, group: dist.ProcessGroup, narrows: bool
    ) -> torch.Tensor:
        wide = query.dtype
        if narrows:
            query, key, value = (narrow(each.permute(2, 0, 1, 3)) for each in (query, key, value))
        pair, ranks, out, steps = torch.stack((key, value)), group.size(), torch.empty(0), []
        for step in range(ranks):
            coming, works = _exchange(pair, group) if step + 1 < ranks else (pair, [])
            queries, keys, causal = _parts(step, group.rank(), query.size(2))
            q, k, v = query[:, :, queries], pair[0][:, :, keys], pair[1][:, :, keys]
            made = _forward(q, k, v, None, True, 0.0, causal)
            steps.append((q, k, v, made))
            own = torch.empty_like(made[0], dtype=wide) if narrows else made[0]
            if step:
                out[:, :, queries].add_(own)
            else:
                out = own.clone() if ranks > 1 else own
            for work in works:
                work.wait()
            pair = coming
        ctx.steps, ctx.group, ctx.narrows = steps, group, narrows
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        group, steps = ctx.group, ctx.steps
        of_query, of_pair, coming = torch.empty(0), torch.empty(0), torch.empty(0)
        works: list[dist.Work] = []
        wide = gradients[0].dtype
        sent = narrow(gradients[0].permute(2, 0, 1, 3), True) if ctx.narrows else gradients[0]
        for step, (q, k, v, made) in enumerate(steps):
            queries, keys, causal = _parts(step, group.rank(), gradients[0].size(2))
            out, lse, cum_q, cum_k, max_q, max_k, seed, offset, _ = made
            given = sent[:, :, queries].contiguous()
            found = _backward(
                given, q, k, v, out, lse, seed, offset, None, cum_q, cum_k, max_q, max_k, 0.0, causal
            )
            if ctx.narrows:
                found = [torch.empty_like(each, dtype=wide) for each in found[:3]]
            for work in works:
                work.wait()
            if step:
                of_query[:, :, queries].add_(found[0])
                of_pair = coming[2:]
                of_pair[0][:, :, keys].add_(found[1])
                of_pair[1][:, :, keys].add_(found[2])
            else:
                of_query, of_pair = found[0], torch.stack(found[1:3])
            if len(steps) > 1:  # keys and values go along with their gradients; the last exchange brings these home
                coming, works = _exchange(torch.cat((of_pair, of_pair)), group)
        for work in works:
            work.wait()
        home = coming[2:] if len(steps) > 1 else of_pair
        return of_query, home[0], home[1], None, None
