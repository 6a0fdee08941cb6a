"""Megatron-Core's hybrid models (Mamba 2, attention and experts, one of them a layer), for their time only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import torch
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.models.gpt import gpt_model
from megatron.core.models.mamba import mamba_layer_specs
from megatron.core.ssm import mamba_block
from megatron.core.ssm.mamba_layer import MambaLayer, MambaLayerSubmodules
from megatron.core.ssm.mamba_mixer import MambaMixer, MambaMixerSubmodules
from megatron.core.transformer.moe import moe_layer
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules

from validation.workloads.narrow_experts import NarrowExperts
from validation.workloads.narrow_layers import (
    Column,
    NarrowColumn,
    NarrowRow,
    NarrowWeights,
    Norm,
    Place,
    Recipe,
    recipe,
    recipe_of,
)


def _specs(block: TransformerBlockSubmodules) -> mamba_block.MambaStackSubmodules:
    """The parts of `block`'s layers as layers of their own, and Mamba's."""
    parts = block.layer_specs[0].submodules
    attention = TransformerLayerSubmodules(
        input_layernorm=parts.input_layernorm, self_attention=parts.self_attention, self_attn_bda=parts.self_attn_bda
    )
    experts = TransformerLayerSubmodules(
        pre_mlp_layernorm=parts.pre_mlp_layernorm, mlp=parts.mlp, mlp_bda=parts.mlp_bda
    )
    mixer = ModuleSpec(module=MambaMixer, submodules=MambaMixerSubmodules(in_proj=NarrowColumn, out_proj=NarrowRow))
    mamba = MambaLayerSubmodules(norm=Norm, mixer=mixer, mamba_bda=get_bias_dropout_add)
    return mamba_block.MambaStackSubmodules(
        mamba_layer=ModuleSpec(module=MambaLayer, submodules=mamba),
        attention_layer=ModuleSpec(module=TransformerLayer, submodules=attention),
        moe_layer=ModuleSpec(module=TransformerLayer, submodules=experts),
    )


class HybridStack(mamba_block.MambaStack):
    """Takes the place of GPTModel's decoder: the first layers of `pattern`."""

    pattern = ""
    specs: Callable[[TransformerBlockSubmodules], mamba_block.MambaStackSubmodules] = staticmethod(_specs)

    def __init__(
        self, config: Any, spec: TransformerBlockSubmodules, *, pg_collection: Any, pre_process: bool, post_process: bool,
        vp_stage: int | None,
    ) -> None:
        kinds = self.pattern[: config.num_layers]
        listed = "layer_type_list" in signature(mamba_block.MambaStack.__init__).parameters  # Megatron-Core 0.19
        super().__init__(
            config, self.specs(spec), pre_process=pre_process, post_process=post_process, pg_collection=pg_collection,
            **{"layer_type_list": list(kinds)} if listed else {"hybrid_override_pattern": kinds},
        )

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor, **_: Any) -> torch.Tensor:
        made: torch.Tensor = super().forward(hidden_states, attention_mask)
        return made


@dataclass(frozen=True)
class _Alone:
    """A group of the own rank."""

    def size(self) -> int:
        return 1


class Latent(torch.nn.Module):
    """A linear layer that every rank has whole."""

    def __init__(self, inputs: int, outputs: int, *, config: Any, **_: Any) -> None:
        super().__init__()
        weight: Any = torch.nn.Parameter(torch.empty(outputs, inputs, dtype=config.params_dtype, device="cuda"))
        weight.sequence_parallel = config.sequence_parallel
        self.weight = weight
        self.place = Place(recipe_of(config), _Alone(), False, NarrowWeights())  # type: ignore[arg-type]

    def forward(self, given: torch.Tensor) -> tuple[torch.Tensor, None]:
        return Column.apply(given, self.weight, self.place), None


def set_precisions(model: torch.nn.Module) -> None:
    """Of the layers that predict further tokens: bfloat16."""
    for name, module in model.named_modules():
        if name.startswith("mtp."):
            _set(module, recipe("bf16"))


def _set(module: torch.nn.Module, how: Recipe) -> None:
    if isinstance(module, NarrowExperts):
        module.how = how
    elif isinstance(module, NarrowColumn | NarrowRow | Latent):
        module.place = replace(module.place, how=how)


def install(pattern: str) -> None:
    """Gives GPTModel the hybrid decoder, with Transformer Engine's layers."""
    HybridStack.pattern = pattern
    HybridStack.specs = staticmethod(lambda _: mamba_layer_specs.mamba_stack_spec.submodules)
    gpt_model.TransformerBlock = HybridStack


def install_stand_ins(pattern: str) -> None:
    """Gives GPTModel the hybrid decoder, with stand-ins for Transformer Engine's layers."""
    HybridStack.pattern = pattern
    gpt_model.TransformerBlock = HybridStack
    mamba_block.TENorm = Norm
    moe_layer.TELinear, moe_layer.HAVE_TE = Latent, True
