"""TorchTitan's mixture of experts (models/moe: DeepSeek-V3, Qwen3, gpt-oss, Llama 4), and no asynchronous TP.

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


def _refuse_async_tp(module: Any, _: Routing) -> None:
    """Has ``parallelism.enable_async_tensor_parallel`` end in a message.

    TorchTitan only tells Inductor to fuse; torch 2.11's Inductor fuses in groups that were registered for
    symmetric memory, and nobody registers one. So on GPUs such a run is plain tensor parallelism
    under another name, without a word; here it must not be taken for the other thing.
    """
    enable = getattr(module, "maybe_enable_async_tp", None)
    if enable is None:
        return

    @functools.wraps(enable)
    def enable_refused(job_config: Any, *rest: Any) -> Any:
        if job_config.parallelism.enable_async_tensor_parallel:
            raise PhantoraError(
                "parallelism.enable_async_tensor_parallel needs symmetric memory, which is not simulated (TorchTitan "
                "0.2.2 with torch 2.11 fuses nothing on GPUs either); leave it out for plain tensor parallelism"
            )
        return enable(job_config, *rest)

    module.maybe_enable_async_tp = enable_refused


SHIM = Shim("torchtitan", ("0.2.2",), "torchtitan.models.moe.moe", "MoE.__init__", _apply)
ASYNC_TP = Shim(
    "torchtitan", (), "torchtitan.distributed.tensor_parallel", "maybe_enable_async_tp", _refuse_async_tp, routes=False
)
