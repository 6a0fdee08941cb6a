"""Megatron-Core's experts and routers with the kernels of Transformer Engine, for their time only.

Products are one call of cuBLASLt per expert, on `STREAMS` streams in turn, as Transformer Engine's grouped linear layer
makes them. Routers and permutations are fused:
one pass over what Transformer Engine's kernel reads and writes. Values are not those of a training.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from megatron.core.fusions.fused_bias_geglu import quick_gelu, weighted_bias_quick_geglu_impl
from megatron.core.fusions.fused_bias_swiglu import weighted_bias_swiglu_impl
from megatron.core.fusions.fused_weighted_squared_relu import weighted_squared_relu_impl
from megatron.core.tensor_parallel.random import CheckpointWithoutOutput
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.moe.experts import TEGroupedMLP
from megatron.core.transformer.transformer_config import TransformerConfig

from phantora.rank.standins.kernels import launch, operator, spec
from validation.workloads.narrow_layers import (
    BYTE,
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
CLUSTER = 2
"""Blocks of a cluster of cuDNN's grouped products, which stay on their SMs."""


@cache
def _streams() -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream() for _ in range(STREAMS)]


@cache
def _blocks() -> int:
    """Of a grouped product: one for each SM, but for the clusters that the environment leaves to communication."""
    left = CLUSTER * int(os.environ.get("CUDNNFE_CLUSTER_OVERLAP_MARGIN", "0"))
    return torch.cuda.get_device_properties(0).multi_processor_count - left


@cache
def _stash_stream() -> torch.cuda.Stream:
    return torch.cuda.Stream()


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
    """Rows [rows, in] in the order of the experts times each expert's [out, in], a weight each."""

    @staticmethod
    def forward(
        ctx: Any, given: torch.Tensor, counts: list[int], how: Recipe, narrow: list[NarrowWeights],
        *weights: torch.Tensor,
    ) -> torch.Tensor:
        of_weights = [each.of(weight, how) for each, weight in zip(narrow, weights, strict=True)]
        own = [quantise(part, how) for part in torch.split(given, counts)]
        out = given.new_empty((given.size(0), weights[0].size(-2)))
        left, right = [each.along_rows for each in own], [each.along_rows for each in of_weights]
        _products(left, right, how, torch.split(out, counts))
        ctx.own, ctx.of_weights, ctx.counts, ctx.how, ctx.weights = own, of_weights, counts, how, weights
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        how, counts, weights = ctx.how, ctx.counts, ctx.weights
        gradient = [quantise(part, how) for part in torch.split(gradients[0], counts)]
        into = gradients[0].new_empty((gradients[0].size(0), weights[0].size(-1)))
        left, right = [each.along_rows for each in gradient], [each.along_columns for each in ctx.of_weights]
        _products(left, right, how, torch.split(into, counts))
        outputs, inputs = ([each.along_columns for each in side] for side in (gradient, ctx.own))
        _products(outputs, inputs, how, [weight.main_grad for weight in weights])
        for weight in weights:
            weight.grad_added_to_main_grad = True
        return into, None, None, None, *(unused(weight.shape).detach() for weight in weights)


class _Fused(torch.autograd.Function):
    """Both products of all experts, the gate between them in the epilogue of the first (of the second, backward).

    What the backward pass needs is copied to a stash and back, as its size is only known on the GPU.
    """

    @staticmethod
    def forward(
        ctx: Any, given: torch.Tensor, probs: torch.Tensor, counts: list[int], how: Recipe, narrow: list[NarrowWeights],
        *weights: torch.Tensor,
    ) -> torch.Tensor:
        first, second = (
            split(each.of(weight, how), [weight.size(-2)] * len(counts), how)
            for each, weight in zip(narrow, weights, strict=True)
        )
        rows = given.size(0)
        own, gated = split(quantise(given, how), counts, how), _written(given, weights[1].size(-1), counts, how)
        wide, out = (given.new_empty((rows, weight.size(-2))) for weight in weights)
        if how.name == "mxfp8":
            _grouped(weights[0], weights[0].size(-1), wide)
            _grouped(weights[1], weights[1].size(-1), out)
        else:
            _products(_rows(own), _rows(first), how, torch.split(wide, counts))
            _products(_rows(gated), _rows(second), how, torch.split(out, counts))
        stashed = [wide, *_columns(own), *_columns(gated)]
        _copy(stashed)
        ctx.own, ctx.gated, ctx.weights, ctx.stashed, ctx.probs = own, gated, weights, stashed, probs
        ctx.first, ctx.second, ctx.counts, ctx.how = first, second, counts, how
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        how, counts, (weight1, weight2) = ctx.how, ctx.counts, ctx.weights
        _copy(ctx.stashed)
        whole = quantise(gradients[0], how)
        gradient = split(whole, counts, how)
        wide = _written(gradients[0], weight1.size(-2), counts, how)
        gated = gradients[0].new_empty((gradients[0].size(0), weight2.size(-1)))
        into = gradients[0].new_empty((gradients[0].size(0), weight1.size(-1)))
        if how.name == "mxfp8":
            if weight1.size(-2) == 2 * weight2.size(-1):
                _gated_gradient(whole.along_rows, weight2, ctx.stashed[0])
            else:
                _grouped(weight2, weight2.size(-2), gated)
            _grouped(weight1, weight1.size(-2), into)
            for weight in (weight2, weight1):
                _grouped_gradient(weight, gradients[0].size(0))
        else:
            _products(_rows(gradient), _columns(ctx.second), how, torch.split(gated, counts))
            _products(_rows(wide), _columns(ctx.first), how, torch.split(into, counts))
            for outputs, inputs, weight in ((gradient, ctx.gated, weight2), (wide, ctx.own, weight1)):
                _products(_columns(outputs), _columns(inputs), how, _matrices(weight.main_grad))
        for weight in (weight1, weight2):
            weight.grad_added_to_main_grad = True
        return into, ctx.probs, None, None, None, *(unused(weight.shape).detach() for weight in ctx.weights)


def _grouped(weight: torch.Tensor, inner: int, made: torch.Tensor) -> None:
    """cuDNN's product of rows [rows, inner] and `weight` [experts, .., ..] into `made` [rows, outer]."""
    given = [spec(BYTE, made.size(0), inner), spec(BYTE, *weight.shape), made]
    operator("cute::grouped_gemm_quant", given, lambda: launch("grouped_gemm_quant", _blocks()))


def _grouped_gradient(weight: Any, rows: int) -> None:
    """cuDNN's product of `rows` rows of gradients and inputs into the gradient of `weight` [experts, outer, inner]."""
    _, outer, inner = weight.shape
    given = [spec(BYTE, rows, outer), spec(BYTE, rows, inner), weight.main_grad]
    operator("cute::grouped_gemm_wgrad", given, lambda: launch("grouped_gemm_wgrad", _blocks()))


def _gated_gradient(gradient: torch.Tensor, weight: torch.Tensor, inputs: torch.Tensor) -> None:
    """cuDNN's product of `gradient` [rows, hidden] and `weight` [experts, hidden, width], with the gate's gradient, its
    casts and the gradient of its biases in the epilogue. The gate's `inputs` are [rows, 2 * width]."""
    experts, hidden, width = weight.shape
    given = [gradient, spec(gradient.dtype, experts, hidden, width), inputs]
    given += [spec(gradient.dtype, 2, *inputs.shape)]  # its result along rows and along columns
    given += [spec(inputs.dtype, experts, 2 * width)] if NarrowExperts.biased else []
    operator("cute::grouped_gemm_dglu", given, lambda: launch("grouped_gemm_dglu", _blocks()))


def _rows(parts: Sequence[Narrow]) -> list[torch.Tensor]:
    return [each.along_rows for each in parts]


def _columns(parts: Sequence[Narrow]) -> list[torch.Tensor]:
    return [each.along_columns for each in parts]


def _written(like: torch.Tensor, columns: int, counts: list[int], how: Recipe) -> list[Narrow]:
    """Rows of `columns` that a product's epilogue has made narrow."""
    if not how.narrow:
        wide = like.new_empty((like.size(0), columns))
        return split(Narrow(wide, wide.t()), counts, how)
    made = torch.empty((2, like.size(0) * columns), dtype=BYTE, device=like.device)
    return split(Narrow(made[0].view(-1, columns), made[1].view(columns, -1)), counts, how)


def _copy(tensors: Sequence[torch.Tensor]) -> None:
    """Copies all on a stream of its own."""
    stream = _stash_stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for each in tensors:
            torch.empty_like(each).copy_(each)


def _matrices(weight: torch.Tensor) -> list[torch.Tensor]:
    return list(weight.view(-1, *weight.shape[-2:]).unbind())


class NarrowExperts(MegatronModule):
    """The experts of a rank: fused, with one weight for all, if `fused`; else with one for each expert.

    If `biased`, each expert has a bias behind its second product. Fused experts add it in the product, others
    leave it to operators of torch, as Megatron-Core does. The first product always adds its bias, in the same time.
    """

    fused = False
    biased = False

    def __init__(
        self, num_local_experts: int, config: TransformerConfig, submodules: MLPSubmodules | None = None,
        pg_collection: Any = None, **_: Any,
    ) -> None:
        super().__init__(config=config)
        self.how, hidden, width = recipe_of(config), config.hidden_size, config.moe_ffn_hidden_size
        hidden = config.moe_latent_size or hidden
        self.weights1 = self._made("weight1", num_local_experts, (1 + config.gated_linear_unit) * width, hidden)
        self.weights2 = self._made("weight2", num_local_experts, hidden, width)
        self.narrow1, self.narrow2 = ([NarrowWeights() for _ in each] for each in (self.weights1, self.weights2))
        apart = num_local_experts if self.biased and not self.fused else 0
        self.biases = self._list_of("bias", [(hidden,)] * apart)

    def _made(self, name: str, experts: int, *shape: int) -> list[torch.nn.Parameter]:
        return self._list_of(name, [(experts, *shape)] if self.fused else [shape] * experts)

    def _list_of(self, name: str, shapes: Sequence[tuple[int, ...]]) -> list[torch.nn.Parameter]:
        """Parameters of this very module: before its forward pass DDP waits for the gather of their values."""
        made: list[Any] = [
            torch.nn.Parameter(torch.empty(each, dtype=self.config.params_dtype, device="cuda")) for each in shapes
        ]
        for number, each in enumerate(made):
            each.allreduce = self.config.expert_model_parallel_size == 1
            self.register_parameter(f"{name}_{number}", each)
        return made

    def forward(
        self, given: torch.Tensor, tokens_per_expert: torch.Tensor, probs: torch.Tensor
    ) -> tuple[torch.Tensor, None]:
        """`given` is [rows, hidden], `probs` [rows]; rows are in the order of the experts."""
        counts = tokens_per_expert.tolist()
        padded = self.how.narrow and self.config.moe_token_dispatcher_type == "alltoall"
        if padded:  # each expert's rows to a multiple of a block; other dispatchers do it on the way
            given = _Permute.apply(given, given.size(0))
        if self.fused:
            narrow, weights = [*self.narrow1, *self.narrow2], [*self.weights1, *self.weights2]
            return _Fused.apply(given, probs, counts, self.how, narrow, *weights), None
        wide = _Grouped.apply(given, counts, self.how, self.narrow1, *self.weights1)
        if "moe_act" in (self.config.recompute_modules or ()):
            again = CheckpointWithoutOutput()
            out = self._second(again.checkpoint(self._gated, wide, probs), counts)
            again.discard_output_and_register_recompute(out)
        else:
            out = self._second(self._gated(wide, probs), counts)
        if self.biases:
            out = TEGroupedMLP._apply_bias(out, list(self.biases), counts, probs.unsqueeze(-1))
        return (_Permute.apply(out, out.size(0)) if padded else out), None

    def _second(self, gated: torch.Tensor, counts: list[int]) -> torch.Tensor:
        made: torch.Tensor = _Grouped.apply(gated, counts, self.how, self.narrow2, *self.weights2)
        return made

    def _gated(self, wide: torch.Tensor, probs: torch.Tensor) -> torch.Tensor:
        config = self.config
        made: torch.Tensor
        if not config.gated_linear_unit:
            made = weighted_squared_relu_impl(wide, probs.unsqueeze(-1))
        elif config.activation_func is quick_gelu:
            offset, clamp = config.glu_linear_offset, config.activation_func_clamp_value
            made = weighted_bias_quick_geglu_impl(wide, None, probs.unsqueeze(-1), False, offset, clamp)
        else:
            made = weighted_bias_swiglu_impl(wide, None, probs.unsqueeze(-1), False)
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
    if count == rows:
        return given.clone()
    if not count or not rows:
        return given.new_zeros((count, width))
    few = min(rows, count)
    times, rest = divmod(max(rows, count), few)
    if count > rows:
        made = given.new_empty((count, width))
        made[: times * few].view(times, few, width).copy_(given.expand(times, few, width))
        made[times * few :].copy_(given[:rest])
    else:
        made = given[: times * few].view(times, few, width).sum(0)
        made[:rest].add_(given[times * few :])
    return made


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
    CheckpointWithoutOutput.__init__.__defaults__ = (None,)  # recomputation without Transformer Engine's contexts
    for name, made in {
        "HAVE_TE": True, "te_general_gemm": _gate, "fused_topk_with_score_function": _routed,
        "fused_compute_score_for_moe_aux_loss": _scored, "fused_moe_aux_loss": _balance, "fused_permute": _permuted,
        "fused_permute_with_probs": _permuted_with_probs, "fused_unpermute": _unpermuted,
        "fused_sort_chunks_by_index": _sorted, "fused_sort_chunks_by_index_with_probs": _sorted_with_probs,
    }.items():
        setattr(moe_utils, name, made)
