"""TorchTitan's mixture of experts (models/moe): DeepSeek-V3, Qwen3, gpt-oss, Llama 4.

The framework needs one thing of the routers' decision: how many tokens each expert gets. All split
sizes, offsets and permutations come from that. Both places that count are wrapped; everything else,
kernels included, is the framework's own.
"""

from __future__ import annotations

import functools
import re
from types import ModuleType
from typing import Any

from phantora.errors import PhantoraError
from phantora.launch.routing import Routing
from phantora.launch.shims import Shim, announce
from phantora.launch.shims.values import write

LAYER = "phantora_layer"  # attribute of a router and its reorderer


def _apply(module: ModuleType, routing: Routing) -> None:
    _number_layers(module.MoE, routing)
    _count(module.TokenChoiceTopKRouter, routing)
    _count(module.TokenReorderer, routing)


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


def _count(counter: type, routing: Routing) -> None:
    """Wraps a module whose second result has one element per (token, choice), the third one count per expert."""
    forward = counter.forward  # type: ignore[attr-defined]

    @functools.wraps(forward)
    def forward_counted(self: Any, *inputs: Any) -> Any:
        results = forward(self, *inputs)
        layer = getattr(self, LAYER, None)
        if layer is None:
            raise PhantoraError(
                "this mixture of experts was not built by torchtitan's trainer, so its layers have no numbers; "
                "--moe-routing framework leaves its routing as it is, by zeros"
            )
        pairs = results[1].numel()
        counts = routing.counts(layer, self.num_experts, pairs // self.top_k, self.top_k)
        write(results[2], counts)
        return results

    counter.forward = forward_counted  # type: ignore[attr-defined]


SHIM = Shim("torchtitan", ("0.2.2",), "torchtitan.models.moe.moe", "MoE.__init__", _apply)
