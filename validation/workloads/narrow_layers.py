"""Megatron-Core's layers with the kernels of Transformer Engine, for their time only, where it is not installed.

Products call cuBLASLt in the recipe's format with its scales. A quantisation is one pass that moves the same bytes as
Transformer Engine's kernel. Values are not those of a training: operands are not scaled, and a weight's gradient
replaces the sum of earlier micro-batches, in a product that takes the same time.
"""

from __future__ import annotations

import copy
import sys
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.models.common.embeddings import rope_utils
from megatron.core.models.common.language_module import language_module
from megatron.core.tensor_parallel import layers, mappings
from megatron.core.transformer.transformer_config import TransformerConfig

BYTE = torch.float8_e4m3fn


@dataclass(frozen=True)
class Recipe:
    """How operands of products are made narrow. `block` is the number of elements of a scale, 0: one scale a tensor."""

    name: str
    block: int
    amax: bool
    """A pass over the tensor finds its largest value first."""
    layouts: int
    """That a pass writes: along rows for one product, along columns for another."""
    packed: bool = False
    """Two elements a byte."""

    @property
    def narrow(self) -> bool:
        return self.name != "bf16"


def recipe(name: str) -> Recipe:
    """Of `bf16`, `fp8` (one scale a tensor, from its largest value), `delayed` (from those of earlier steps), `mxfp8` or
    `nvfp4`.

    Tensor cores of Hopper read FP8 along one direction only; those of Blackwell take both.
    """
    hopper = torch.cuda.get_device_capability()[0] < 10
    return {
        "bf16": Recipe("bf16", 0, False, 0),
        "fp8": Recipe("fp8", 0, True, 2 if hopper else 1),
        "delayed": Recipe("delayed", 0, False, 2 if hopper else 1),
        "mxfp8": Recipe("mxfp8", 32, False, 2),
        "nvfp4": Recipe("nvfp4", 16, True, 2, packed=True),
    }[name]


@dataclass(frozen=True)
class Narrow:
    """A matrix [rows, columns] in the recipe's format, along rows and along columns ([columns, rows])."""

    along_rows: torch.Tensor
    along_columns: torch.Tensor


def quantise(given: torch.Tensor, how: Recipe) -> Narrow:
    """Given is [rows, columns] in bfloat16."""
    if not how.narrow:
        return Narrow(given, given.t())
    rows, columns = given.shape
    if how.amax:
        torch.linalg.vector_norm(given, float("inf"))
    if how.packed or how.layouts == 1:  # a byte for each element: two layouts of half a byte, or one of a byte
        made = torch.empty_like(given, dtype=BYTE)
        made.copy_(given)
        parts = [made.view(-1)[: rows * columns // 2], made.view(-1)[rows * columns // 2 :]] if how.packed else [made] * 2
    else:
        made = torch.empty((2, rows * columns), dtype=BYTE, device=given.device)
        made.view(given.dtype).view(given.shape).copy_(given)
        parts = list(made)
    if how.packed:
        row, column = (part.view(torch.float4_e2m1fn_x2) for part in parts)
        return Narrow(row.view(rows, columns // 2), column.view(columns, rows // 2))
    return Narrow(parts[0].view(rows, columns), parts[1].view(columns, rows))


def split(given: Narrow, counts: list[int], how: Recipe) -> list[Narrow]:
    """Its rows in parts of `counts`, each made narrow for itself."""
    rows = torch.split(given.along_rows, counts)
    if not how.narrow:
        return [Narrow(part, part.t()) for part in rows]
    columns = given.along_columns.size(0)
    packed = 2 if how.packed else 1
    flat = torch.split(given.along_columns.view(-1), [columns * count // packed for count in counts])
    return [Narrow(row, part.view(columns, -1)) for row, part in zip(rows, flat, strict=True)]


@cache
def _scales(lines: int, length: int, block: int) -> torch.Tensor:
    """As tensor cores read them: tiles of 128 lines and four scales; a single one where `block` is 0."""
    if not block:
        return torch.ones((), device="cuda")
    tiles = -(-lines // 128) * -(-length // (4 * block))
    return torch.empty(tiles * 512, dtype=BYTE if block == 16 else torch.float8_e8m0fnu, device="cuda")


def product(left: torch.Tensor, right: torch.Tensor, how: Recipe, out: torch.Tensor) -> torch.Tensor:
    """Left [m, k] times right [n, k] transposed, into out [m, n]; out in float32 is a gradient of a weight."""
    if not how.narrow:
        if out.dtype == torch.float32:
            return torch.addmm(out, left, right.t(), out_dtype=torch.float32, out=out)
        return torch.mm(left, right.t(), out=out)
    inner = left.size(1) * (2 if how.packed else 1)
    of_left, of_right = (_scales(part.size(0), inner, how.block) for part in (left, right))
    fast = not how.block and out.dtype != torch.float32
    return torch._scaled_mm(left, right.t(), of_left, of_right, out_dtype=out.dtype, out=out, use_fast_accum=fast)


def read(given: torch.Tensor, how: Recipe, trains: bool) -> Narrow:
    """Activations or gradients [.., columns], made narrow; the product for a weight that trains needs both layouts."""
    return quantise(given.flatten(0, -2), how if trains or not how.layouts else replace(how, layouts=1))


class NarrowWeights:
    """Narrow weights, made again when an optimizer has changed them."""

    def __init__(self) -> None:
        self.version, self.made = -1, Narrow(torch.empty(0), torch.empty(0))

    def of(self, weight: torch.Tensor, how: Recipe) -> Narrow:
        if not how.narrow:
            return quantise(weight.flatten(0, -2), how)
        if weight._version != self.version:
            self.version, self.made = weight._version, quantise(weight.detach().flatten(0, -2), how)
        return self.made


@dataclass(frozen=True)
class Place:
    """A linear layer within tensor parallelism."""

    how: Recipe
    group: dist.ProcessGroup
    sequence_parallel: bool
    weights: NarrowWeights
    overlaps: bool = True
    """Tensor parallelism's communication runs next to products (Userbuffers)."""

    @property
    def ranks(self) -> int:
        return self.group.size() if self.sequence_parallel else 1


class Column(torch.autograd.Function):
    """Gathers the sequence, then multiplies; the own part's product overlaps the gather (as Userbuffers do)."""

    @staticmethod
    def forward(ctx: Any, given: torch.Tensor, weight: torch.Tensor, place: Place) -> torch.Tensor:
        own = read(given, place.how, ctx.needs_input_grad[1])
        narrow = place.weights.of(weight, place.how)
        out = _gathered(own.along_rows, narrow.along_rows, place, given.dtype)
        ctx.save_for_backward(own.along_columns if place.how.narrow else own.along_rows, weight)
        ctx.narrow, ctx.place, ctx.shape = narrow, place, given.shape
        return out.view(given.size(0) * place.ranks, *given.shape[1:-1], weight.size(0))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        saved, weight = ctx.saved_tensors
        place: Place = ctx.place
        trains = ctx.needs_input_grad[1]
        gradient = read(gradients[0], place.how, trains)
        rows = gradient.along_rows.size(0)
        whole, gathering = _gather(saved, place) if trains else (saved, None)
        into = gradients[0].new_empty((rows, weight.size(1)))
        product(gradient.along_rows, ctx.narrow.along_columns, place.how, into)
        if gathering is not None:
            gathering.wait()
        if place.ranks > 1:
            scattered = into.new_empty((rows // place.ranks, into.size(1)))
            scattering = dist.reduce_scatter_tensor(scattered, into, group=place.group, async_op=True)
        elif place.group.size() > 1:
            scattered, scattering = into, dist.all_reduce(into, group=place.group, async_op=True)
        else:
            scattered, scattering = into, None
        inputs = whole.view(weight.size(1), -1) if place.how.narrow else whole.t()
        made = _gradient(gradient.along_columns, inputs, weight, place.how) if trains else None
        if scattering is not None:
            scattering.wait()
        return scattered.view(ctx.shape), made, None


class _Row(torch.autograd.Function):
    """Multiplies part by part; each part's sum over the ranks overlaps the next product (as Userbuffers do)."""

    @staticmethod
    def forward(ctx: Any, given: torch.Tensor, weight: torch.Tensor, place: Place) -> torch.Tensor:
        own = read(given, place.how, ctx.needs_input_grad[1])
        narrow = place.weights.of(weight, place.how)
        ranks, columns = place.ranks, weight.size(0)
        parts = own.along_rows.chunk(ranks if place.overlaps else 1)
        out = given.new_empty((own.along_rows.size(0) // ranks, columns))
        pending = []
        for part, mine in zip(parts, out.chunk(len(parts)), strict=True):
            made = given.new_empty((part.size(0), columns))
            product(part, narrow.along_rows, place.how, made)
            if ranks > 1:
                pending.append(dist.reduce_scatter_tensor(mine, made, group=place.group, async_op=True))
            else:
                out = made
        for work in pending:
            work.wait()
        ctx.save_for_backward(own.along_columns if place.how.narrow else own.along_rows, weight)
        ctx.narrow, ctx.place, ctx.shape = narrow, place, given.shape
        return out.view(given.size(0) // ranks, *given.shape[1:-1], columns)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        saved, weight = ctx.saved_tensors
        place: Place = ctx.place
        trains = ctx.needs_input_grad[1]
        own = read(gradients[0], place.how, trains)
        columns, gathering = own.along_columns if place.how.narrow else own.along_rows, None
        if trains:
            columns, gathering = _gather(columns, place)
        into = _gathered(own.along_rows, ctx.narrow.along_columns, place, gradients[0].dtype)
        if gathering is not None:
            gathering.wait()
        outputs = columns.view(weight.size(0), -1) if place.how.narrow else columns.t()
        inputs = saved if place.how.narrow else saved.t()
        made = _gradient(outputs, inputs, weight, place.how) if trains else None
        return into.view(ctx.shape), made, None


def _gather(own: torch.Tensor, place: Place) -> tuple[torch.Tensor, dist.Work | None]:
    """The parts of all ranks one behind the other, in bytes."""
    if place.ranks == 1:
        return own, None
    wide = own.is_contiguous() and own.dtype not in (torch.bfloat16, torch.float32)
    sent = own.view(torch.uint8) if wide else own
    whole = sent.new_empty((sent.size(0) * place.ranks, *sent.shape[1:]))
    work = dist.all_gather_into_tensor(whole, sent, group=place.group, async_op=True)
    return whole.view(own.dtype) if wide else whole, work


def _gathered(own: torch.Tensor, weight: torch.Tensor, place: Place, dtype: torch.dtype) -> torch.Tensor:
    """The product of all ranks' rows; that of the own rows runs while the others arrive."""
    whole, work = _gather(own, place)
    out = own.new_empty((whole.size(0), weight.size(0)), dtype=dtype)
    if work is not None and not place.overlaps:
        work.wait()
        product(whole, weight, place.how, out)
        return out
    rows = own.size(0)
    product(own, weight, place.how, out[:rows])
    if work is not None:
        work.wait()
        product(whole[rows:], weight, place.how, out[rows:])
    return out


@cache
def unused(shape: torch.Size) -> torch.Tensor:
    """What autograd wants as a weight's gradient where the product has written the main one."""
    return torch.empty(shape, dtype=torch.bfloat16, device="cuda")


def _gradient(outputs: torch.Tensor, inputs: torch.Tensor, weight: Any, how: Recipe) -> torch.Tensor:
    product(outputs, inputs, how, weight.main_grad)
    weight.grad_added_to_main_grad = True
    return unused(weight.shape).detach()


class _Narrow(torch.nn.Module):
    """Of both kinds of linear layers: its product takes the place of Megatron-Core's."""

    overlaps = True
    function: Any
    tp_group: dist.ProcessGroup
    weight: torch.Tensor
    """Both of Megatron-Core's layer."""

    def __init__(self, *args: Any, config: TransformerConfig, **kwargs: Any) -> None:
        super().__init__(*args, config=config, **kwargs)
        if config.defer_embedding_wgrad_compute:  # only of the output layer
            self.config = copy.copy(config)
            self.config.defer_embedding_wgrad_compute = False
        self.place = Place(recipe_of(config), self.tp_group, config.sequence_parallel, NarrowWeights(), self.overlaps)

    def _forward_impl(self, input: torch.Tensor, weight: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        made: torch.Tensor = self.function.apply(input, weight, self.place)
        return made


class NarrowColumn(_Narrow, layers.ColumnParallelLinear):
    function = Column


class NarrowRow(_Narrow, layers.RowParallelLinear):
    function = _Row

    def forward(self, input_: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Without sequence parallelism the output is summed over the ranks; with it the product scatters the sum."""
        out = self._forward_impl(input_, self.weight)
        if not self.place.sequence_parallel and self.tp_group.size() > 1:
            out = mappings.reduce_from_tensor_model_parallel_region(out, group=self.tp_group)
        return out, None


class _Normalise(torch.autograd.Function):
    """A pass each way, and in the backward pass the sum of the partial gradients of the weight."""

    @staticmethod
    def forward(ctx: Any, given: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(given, weight)
        return given * 1.0

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        given, weight = ctx.saved_tensors
        partial = weight.new_empty((NORM_BLOCKS, weight.numel()), dtype=torch.float32)
        return gradients[0] + given, partial.sum(0).to(weight.dtype)


NORM_BLOCKS = 256
"""Partial gradients of a norm's weight."""


class Norm(torch.nn.Module):
    """RMSNorm of the last dimension."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5) -> None:
        super().__init__()
        weight: Any = torch.nn.Parameter(torch.ones(hidden_size, device="cuda"))
        weight.sequence_parallel = config.sequence_parallel
        self.weight = weight

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = _Normalise.apply(given, self.weight)
        return made


_now: list[Recipe] = []


def recipe_of(_: TransformerConfig) -> Recipe:
    """The one that `install` named."""
    return _now[-1]


def rotated(given: torch.Tensor, freqs: torch.Tensor, interleaved: bool = False) -> torch.Tensor:
    """One pass, as Transformer Engine's fused rotary embedding."""
    return given * 1.0


class _Loss(torch.autograd.Function):
    """Three passes over the logits, as Transformer Engine's cross-entropy: sums, gradients in place, their scaling."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor) -> torch.Tensor:
        torch.linalg.vector_norm(logits, float("inf"))
        ctx.logits = logits.detach().mul_(1.0)
        return logits[..., 0].float()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = ctx.logits.mul_(1.0)
        return made


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor, group: dist.ProcessGroup, *_: Any) -> torch.Tensor:
    """Of each token, [sequence, batch]; the ranks of a vocabulary exchange a maximum, a sum and a logit."""
    loss: torch.Tensor = _Loss.apply(logits)
    if group.size() > 1:
        dist.all_reduce(loss.detach().new_empty((3, *loss.shape)), group=group)
    return loss


def add_gradients_in_products() -> None:
    """Lets the output layer add its gradient to the main one inside of the product, as Transformer Engine does."""

    class Products:
        @staticmethod
        @torch.no_grad()
        def wgrad_gemm_accum_fp32(given: torch.Tensor, gradient: torch.Tensor, main: torch.Tensor) -> None:
            torch.addmm(main, gradient.t(), given, out_dtype=torch.float32, out=main)

        @staticmethod
        @torch.no_grad()
        def wgrad_gemm_accum_fp16(given: torch.Tensor, gradient: torch.Tensor, main: torch.Tensor) -> None:
            torch.addmm(main, gradient.t(), given, out=main)

    layers.fused_weight_gradient_mlp_cuda, layers._grad_accum_fusion_available = Products, True
    sys.modules["fused_weight_gradient_mlp_cuda"] = Products  # type: ignore[assignment]


def install(name: str) -> None:
    """Gives Megatron-Core what it asks Transformer Engine for; layers that are built now have this recipe."""
    _now.append(recipe(name))
    add_gradients_in_products()
    rope_utils.fused_apply_rotary_pos_emb = rotated
    language_module.te_parallel_cross_entropy = cross_entropy
