"""TorchTitan's mixture of experts (DeepSeek-V3, Qwen3, gpt-oss, Llama 4), and a note about asynchronous TP.

The framework needs one thing of the routers' decision: how many tokens each expert gets. All split
sizes, offsets and permutations come from that. In 0.2 (models/moe) both places that count are wrapped, in
0.3 (models/common) the one that is given the counts; everything else, kernels included, is the framework's own.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

from phantora.errors import PhantoraError
from phantora.rank.messages import tell
from phantora.rank.routing import Routing
from phantora.rank.shims import LAYER, Shim, announce
from phantora.rank.shims.values import write

UNNUMBERED = (
    "this mixture of experts was not built by torchtitan's trainer, so its layers have no numbers; "
    "--moe-routing framework leaves its routing as it is, by zeros"
)


def _apply(module: ModuleType, routing: Routing) -> None:
    _number_layers(module.MoE, routing)
    give = _giving(routing)
    _count(module.TokenChoiceTopKRouter, give)
    _count(module.TokenReorderer, give)


def _number_layers(moe: Any, routing: Routing) -> None:
    """Numbers the layers of each model while it is whole: a pipeline stage keeps only some of them."""
    from torchtitan.protocols.model_converter import ModelConvertersContainer

    convert = ModelConvertersContainer.convert

    @functools.wraps(convert)
    def convert_numbered(self: Any, model: Any) -> Any:
        for name, layer in model.named_modules():
            if isinstance(layer, moe):
                announce(routing)
                number = re.search(r"layers\.(\d+)\.", name + ".")
                setattr(layer.router, LAYER, int(number[1]) if number else 0)
                setattr(layer.reorderer, LAYER, getattr(layer.router, LAYER))
        return convert(self, model)

    ModelConvertersContainer.convert = convert_numbered


def _count(counter: type, give: Callable[[Any, int, int, int], None]) -> None:
    """Wraps a module whose second result has one element per (token, choice), the third one count per expert."""
    forward = counter.forward  # type: ignore[attr-defined]

    @functools.wraps(forward)
    def forward_counted(self: Any, *inputs: Any) -> Any:
        results = forward(self, *inputs)
        give(results[2], getattr(self, LAYER, -1), results[1].numel(), self.top_k)
        return results

    counter.forward = forward_counted  # type: ignore[attr-defined]


def _apply_common(module: ModuleType, routing: Routing) -> None:
    experts: Any = module.RoutedExperts
    _number_built(experts, routing)
    forward = experts.forward  # within its local map: all tensors are this rank's
    give = _giving(routing)

    @functools.wraps(forward)
    def forward_given(self: Any, x: Any, scores: Any, chosen: Any, counts: Any) -> Any:
        give(counts, getattr(self, LAYER, -1), chosen.numel(), chosen.shape[-1])
        return forward(self, x, scores, chosen, counts)

    experts.forward = forward_given


def _number_built(experts: Any, routing: Routing) -> None:
    """Numbers the layers of each model as it is built."""
    from torchtitan.protocols.model import BaseModel  # type: ignore[import-not-found,unused-ignore]

    build = BaseModel.Config.build

    @functools.wraps(build)
    def build_numbered(self: Any, **options: Any) -> Any:
        model = build(self, **options)
        for name, layer in model.named_modules():
            if isinstance(layer, experts):
                announce(routing)
                number = re.search(r"layers\.(\d+)\.", name + ".")
                setattr(layer, LAYER, int(number[1]) if number else 0)
        return model

    BaseModel.Config.build = build_numbered


def _giving(routing: Routing) -> Callable[[Any, int, int, int], None]:
    """Writes the tokens of each expert, by layer and (token, choice) pairs; an operator where it is compiled."""
    import torch

    def give(counts: Any, layer: int, pairs: int, top_k: int) -> None:
        if layer < 0:
            raise PhantoraError(UNNUMBERED)
        write(counts, routing.counts(layer, counts.numel(), pairs // top_k, top_k))

    operator: Any = torch.library.custom_op("phantora::tokens_per_expert", mutates_args=("counts",))(_with_schema(give))

    def give_anywhere(counts: Any, layer: int, pairs: int, top_k: int) -> None:
        (operator if torch.compiler.is_compiling() else give)(counts, layer, pairs, top_k)

    return give_anywhere


def _with_schema(give: Callable[[Any, int, int, int], None]) -> Callable[..., None]:
    """`give` with the types that torch reads an operator's schema from."""
    import torch

    def tokens_per_expert(counts: torch.Tensor, layer: int, pairs: int, top_k: int) -> None:
        give(counts, layer, pairs, top_k)

    tokens_per_expert.__annotations__ = {
        "counts": torch.Tensor,
        "layer": int,
        "pairs": int,
        "top_k": int,
        "return": None,
    }
    return tokens_per_expert


def _report_async_tp(module: Any, _: Routing) -> None:
    """Makes ``parallelism.enable_async_tensor_parallel`` report its effect.

    TorchTitan 0.2 only asks Inductor to fuse; torch 2.11's Inductor fuses in groups that were registered for
    symmetric memory, and TorchTitan registers none. So on GPUs such a run is plain tensor parallelism under another
    name, and here too; it must not be taken for the other thing.
    """
    enable = getattr(module, "maybe_enable_async_tp", None)
    if enable is None:
        return

    @functools.wraps(enable)
    def enable_with_a_note(job_config: Any, tp_mesh: Any) -> Any:
        from torch.distributed._symmetric_memory import is_symm_mem_enabled_for_group

        result = enable(job_config, tp_mesh)
        asked = job_config.parallelism.enable_async_tensor_parallel
        if asked and os.environ["RANK"] == "0" and not is_symm_mem_enabled_for_group(tp_mesh.get_group().group_name):
            tell(
                "parallelism.enable_async_tensor_parallel fuses nothing, here as on GPUs: this TorchTitan does not "
                "register its groups for symmetric memory; samples/torchtitan/async_tp.py does"
            )
        return result

    module.maybe_enable_async_tp = enable_with_a_note


SHIM = Shim("torchtitan", ("0.2.2",), "torchtitan.models.moe.moe", guarded="MoE.__init__", apply=_apply)
COMMON = Shim("torchtitan", ("0.3",), "torchtitan.models.common.moe", guarded="MoE.__init__", apply=_apply_common)
ASYNC_TP = Shim(
    "torchtitan",
    (),
    "torchtitan.distributed.tensor_parallel",
    guarded="maybe_enable_async_tp",
    apply=_report_async_tp,
    routes=False,
)
