"""Megatron-Core's experts and routers with the kernels of Transformer Engine, for their time only.

Products are one call of cuBLASLt per expert, on `STREAMS` streams in turn, as Transformer Engine's grouped linear layer
makes them. Routers and permutations are fused:
one pass over what Transformer Engine's kernel reads and writes. Values are not those of a training.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from megatron.core.fusions.fused_bias_swiglu import weighted_bias_swiglu_impl
from megatron.core.tensor_parallel.random import CheckpointWithoutOutput
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_config import TransformerConfig

from validation.workloads.narrow_layers import (
    Narrow,
    NarrowWeights,
    Recipe,
    product,
    quantise,
    recipe_of,
    split,
    unused,
)

STREAMS = 4


@cache
def _streams() -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream() for _ in range(STREAMS)]


def _products(
    lefts: Sequence[torch.Tensor], rights: Sequence[torch.Tensor], how: Recipe, outs: Sequence[torch.Tensor]
) -> None:
    """One product per expert; the current stream waits for all."""
    current = torch.cuda.current_stream()
    ready = current.record_event()
    for index, stream in enumerate(_streams()):
        stream.wait_event(ready)
        with torch.cuda.stream(stream):
            for left, right, out in zip(lefts[index::STREAMS], rights[index::STREAMS], outs[index::STREAMS], strict=True):
                product(left, right, how, out)
        current.wait_event(stream.record_event())


class _Grouped(torch.autograd.Function):
    """Rows [rows, in] in the order of the experts times each expert's [out, in]: a weight each, or one [experts, ...]."""

    @staticmethod
    def forward(
        ctx: Any, given: torch.Tensor, counts: list[int], how: Recipe, narrow: list[NarrowWeights],
        *weights: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        columns, single = weights[0].size(-2), len(weights) == 1
        made = [each.of(weight, how) for each, weight in zip(narrow, weights, strict=True)]
        of_weights = split(made[0], [columns] * len(counts), how) if single else made
        own = _quantised(given, counts, how, single)
        out = given.new_empty((given.size(0), columns))
        left, right = [each.along_rows for each in own], [each.along_rows for each in of_weights]
        _products(left, right, how, torch.split(out, counts))
        ctx.own, ctx.of_weights, ctx.counts, ctx.how, ctx.weights = own, of_weights, counts, how, weights
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        how, counts, weights = ctx.how, ctx.counts, ctx.weights
        gradient = _quantised(gradients[0], counts, how, len(weights) == 1)
        into = gradients[0].new_empty((gradients[0].size(0), weights[0].size(-1)))
        left, right = [each.along_rows for each in gradient], [each.along_columns for each in ctx.of_weights]
        _products(left, right, how, torch.split(into, counts))
        outputs, inputs = ([each.along_columns for each in side] for side in (gradient, ctx.own))
        _products(outputs, inputs, how, [main for weight in weights for main in _matrices(weight.main_grad)])
        for weight in weights:
            weight.grad_added_to_main_grad = True
        return into, None, None, None, *(unused(weight.shape).detach() for weight in weights)


def _matrices(weight: torch.Tensor) -> list[torch.Tensor]:
    return list(weight.view(-1, *weight.shape[-2:]).unbind())


def _quantised(given: torch.Tensor, counts: list[int], how: Recipe, single: bool) -> list[Narrow]:
    """The experts' rows made narrow in one call, or in one for each expert."""
    if single:
        return split(quantise(given, how), counts, how)
    return [quantise(part, how) for part in torch.split(given, counts)]


class NarrowExperts(MegatronModule):
    """The experts of a rank: gated, without biases. One weight for all if `single`, else one for each expert."""

    single = False

    def __init__(
        self, num_local_experts: int, config: TransformerConfig, submodules: MLPSubmodules | None = None,
        pg_collection: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(config=config)
        self.how, hidden, width = recipe_of(config), config.hidden_size, config.moe_ffn_hidden_size
        self.weights1 = self._made(num_local_experts, 2 * width, hidden)
        self.weights2 = self._made(num_local_experts, hidden, width)
        self.narrow1, self.narrow2 = ([NarrowWeights() for _ in each] for each in (self.weights1, self.weights2))

    def _made(self, experts: int, *shape: int) -> torch.nn.ParameterList:
        shapes = [(experts, *shape)] if self.single else [shape] * experts
        made: list[Any] = [
            torch.nn.Parameter(torch.empty(each, dtype=self.config.params_dtype, device="cuda")) for each in shapes
        ]
        for each in made:
            each.allreduce = self.config.expert_model_parallel_size == 1
        return torch.nn.ParameterList(made)

    def forward(
        self, given: torch.Tensor, tokens_per_expert: torch.Tensor, probs: torch.Tensor
    ) -> tuple[torch.Tensor, None]:
        """`given` is [rows, hidden], `probs` [rows]; rows are in the order of the experts."""
        counts = tokens_per_expert.tolist()
        wide = _Grouped.apply(given, counts, self.how, self.narrow1, *self.weights1)
        if "moe_act" in (self.config.recompute_modules or ()):
            again = CheckpointWithoutOutput()
            out = self._second(again.checkpoint(_gated, wide, probs), counts)
            again.discard_output_and_register_recompute(out)
            return out, None
        return self._second(_gated(wide, probs), counts), None

    def _second(self, gated: torch.Tensor, counts: list[int]) -> torch.Tensor:
        made: torch.Tensor = _Grouped.apply(gated, counts, self.how, self.narrow2, *self.weights2)
        return made


def _gated(wide: torch.Tensor, probs: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = weighted_bias_swiglu_impl(wide, None, probs.unsqueeze(-1), False)
    return made


class _Route(torch.autograd.Function):
    """Probabilities and map, both [tokens, experts], in a pass over the logits; its gradient is another."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        probs = logits * 1.0
        chosen = torch.empty_like(logits, dtype=torch.bool)
        ctx.mark_non_differentiable(chosen)
        return probs, chosen

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * 1.0


def _routed(logits: torch.Tensor, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    probs, chosen = _Route.apply(logits)
    return probs, chosen


def _scored(logits: torch.Tensor, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    scores, chosen = _Route.apply(logits)
    return chosen, scores


def _balance(probs: torch.Tensor, tokens_per_expert: torch.Tensor, **_: Any) -> torch.Tensor:
    """The auxiliary loss, a number."""
    return probs.sum()


def _gate(
    weight: torch.Tensor, given: torch.Tensor, dtype: torch.dtype, layout: str, **_: Any
) -> tuple[torch.Tensor, None]:
    """The router's product: of column-major operands, as cuBLAS takes them."""
    left, right = {"TN": (given, weight.t()), "NN": (given, weight), "NT": (given.t(), weight)}[layout]
    return torch.mm(left, right) if left.dtype == dtype else torch.mm(left, right, out_dtype=dtype), None


class _Permute(torch.autograd.Function):
    """Writes `count` rows of `given`'s width in a pass, and the other number of rows in the backward pass."""

    @staticmethod
    def forward(ctx: Any, given: torch.Tensor, count: int) -> torch.Tensor:
        ctx.rows = given.size(0)
        return _moved(given, count)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _moved(gradients[0], ctx.rows), None


def _moved(given: torch.Tensor, count: int) -> torch.Tensor:
    """`count` rows made of all of `given` in a pass: copies of each row, or sums of several."""
    rows, width = given.shape
    if count >= rows > 0:
        return given.expand(count // rows, rows, width).reshape(-1, width)
    return given.view(rows // count, count, width).sum(0) if count else given.new_empty((0, width))


def _permuted(
    tokens: torch.Tensor, routing_map: torch.Tensor, num_out_tokens: int, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    return _Permute.apply(tokens, int(num_out_tokens)), routing_map


def _permuted_with_probs(
    tokens: torch.Tensor, probs: torch.Tensor, routing_map: torch.Tensor, num_out_tokens: int, **_: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    chosen = probs.flatten()[: int(num_out_tokens)]
    return _Permute.apply(tokens, int(num_out_tokens)), chosen, routing_map


def _unpermuted(
    rows: torch.Tensor, row_id_map: torch.Tensor, restore_shape: torch.Size, **_: Any
) -> torch.Tensor:
    made: torch.Tensor = _Permute.apply(rows, restore_shape[0])
    return made


def _sorted(rows: torch.Tensor, split_sizes: torch.Tensor, sorted_idxs: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = _Permute.apply(rows, rows.size(0))
    return made


def _sorted_with_probs(
    rows: torch.Tensor, probs: torch.Tensor, split_sizes: torch.Tensor, sorted_idxs: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return _sorted(rows, split_sizes, sorted_idxs), probs * 1.0


def install() -> None:
    """Gives Megatron-Core's mixture of experts what it asks Transformer Engine for."""
    for name, made in {
        "HAVE_TE": True, "te_general_gemm": _gate, "fused_topk_with_score_function": _routed,
        "fused_compute_score_for_moe_aux_loss": _scored, "fused_moe_aux_loss": _balance, "fused_permute": _permuted,
        "fused_permute_with_probs": _permuted_with_probs, "fused_unpermute": _unpermuted,
        "fused_sort_chunks_by_index": _sorted, "fused_sort_chunks_by_index_with_probs": _sorted_with_probs,
    }.items():  # fmt: skip
        setattr(moe_utils, name, made)
