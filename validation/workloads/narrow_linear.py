"""Linear layers of any model with products of `narrow_layers`, without tensor parallelism."""

from __future__ import annotations

from typing import Any

import torch

from validation.workloads.narrow_layers import Recipe, product, quantise, read, recipe


class _Linear(torch.autograd.Function):
    """Three products in the recipe's format; the gradient of the weight has the weight's type."""

    @staticmethod
    def forward(ctx: Any, given: torch.Tensor, weight: torch.Tensor, how: Recipe) -> torch.Tensor:
        own, weights = read(given, how, True), quantise(weight, how)
        out = given.new_empty((own.along_rows.size(0), weight.size(0)))
        product(own.along_rows, weights.along_rows, how, out)
        ctx.own, ctx.weights, ctx.how, ctx.shape = own.along_columns, weights.along_columns, how, given.shape
        return out.view(*given.shape[:-1], weight.size(0))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        gradient = read(gradients[0], ctx.how, True)
        into = gradients[0].new_empty((gradient.along_rows.size(0), ctx.shape[-1]))
        product(gradient.along_rows, ctx.weights, ctx.how, into)
        made = into.new_empty((gradients[0].size(-1), ctx.shape[-1]))
        product(gradient.along_columns, ctx.own, ctx.how, made)
        return into.view(ctx.shape), made, None


class NarrowLinear(torch.nn.Linear):
    """A linear layer whose products are those of a recipe."""

    how: Recipe

    @torch.compiler.disable
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = _Linear.apply(input, self.weight, self.how)
        return out if self.bias is None else out + self.bias


def narrow(block: torch.nn.Module, precision: str) -> None:
    """Gives the linear layers of `block` that see every token products in `precision`; none for bf16.

    Layers with a number of outputs or inputs that is no multiple of 128 keep theirs, and so do those of modulations,
    which see one row a sample.
    """
    how = recipe(precision)
    if not how.narrow:
        return
    for name, layer in block.named_modules():
        wide = isinstance(layer, torch.nn.Linear) and not (layer.in_features % 128 or layer.out_features % 128)
        if wide and "norm" not in name:
            layer.__class__ = NarrowLinear
            layer.how = how
