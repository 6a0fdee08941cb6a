"""Core attention in MXFP8 or FP8 as Transformer Engine runs it with cuDNN, for its time only.

Query, key and value are made narrow, in MXFP8 in both layouts; the output and the gradients are bfloat16. With a window cuDNN skips
the tiles outside of it in the forward pass only: published backward passes of 128 tokens take the time of all tokens
(NVIDIA/cudnn-frontend, benchmark/sdpa_benchmark_training/results/gpt_oss). Values are not those of a training.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from validation.workloads.narrow_layers import Recipe, quantise, recipe
from validation.workloads.window_attention import CoreAttention

CUDNN = torch.ops.aten._scaled_dot_product_cudnn_attention
CUDNN_BACKWARD = torch.ops.aten._scaled_dot_product_cudnn_attention_backward


class Format:
    """Of attention in this run."""

    name = "mxfp8"

    @classmethod
    def recipe(cls) -> Recipe:
        """Attention reads one layout of operands with one scale a tensor."""
        made = recipe(cls.name)
        return made if made.block else replace(made, layouts=1)


def narrow(given: torch.Tensor, gradient: bool = False) -> torch.Tensor:
    """As [batch, heads, sequence, head_dim] of [sequence, batch, heads, head_dim]; gradients with one scale in E5M2."""
    how = Format.recipe()
    made = quantise(given.reshape(-1, given.size(2) * given.size(3)), how).along_rows
    kind = torch.float8_e5m2 if gradient and not how.block else made.dtype
    return made.view(kind).view(given.shape).permute(1, 2, 0, 3)


def _blocks(given: torch.Tensor, length: int) -> torch.Tensor:
    """The sequences in blocks of `length` tokens as sequences of their own, in the same memory."""
    _, heads, _, width = given.shape
    flat = given.permute(2, 0, 1, 3).reshape(-1, length, heads, width)
    return flat.transpose(1, 2)


class _Attend(torch.autograd.Function):
    """Query, key and value are [sequence, batch, heads, head_dim]; so is the output."""

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int
    ) -> torch.Tensor:
        operands = [narrow(each) for each in (query, key, value)]
        length = 2 * window or query.size(0)
        made = CUDNN(*(_blocks(each, length) if window else each for each in operands), None, True, 0.0, not window)
        ctx.narrow, ctx.made, ctx.shapes = operands, made, [each.shape for each in (query, key, value)]
        return query.new_empty((*query.shape[:3], value.size(3)))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v = ctx.narrow
        batch, heads, length, _ = q.shape
        out = q.new_empty((batch, heads, length, v.size(3)))
        sums = torch.empty((batch, heads, length, 1), dtype=torch.float32, device=q.device)
        _, _, cum_q, cum_k, _, _, seed, offset, _ = ctx.made
        CUDNN_BACKWARD(
            narrow(gradients[0], True), q, k, v, out, sums, seed, offset, None, cum_q, cum_k, length, length, 0.0, True
        )
        return *(gradients[0].new_empty(shape) for shape in ctx.shapes), None


class NarrowAttention(CoreAttention):
    """In the format of the run."""

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = _Attend.apply(query, key, value, self.window)
        return made.flatten(2)


class NarrowWindowAttention(NarrowAttention):
    """`window`: tokens that a token attends to."""
