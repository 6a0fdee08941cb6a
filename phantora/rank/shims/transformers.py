"""Mixtures of experts of transformers (integrations/moe): gpt-oss, Mixtral, Qwen3 and others.

Their default way, grouped products, sorts the tokens by expert and needs one thing of the routers'
decision: where each expert's tokens end. That is given; all kernels are the framework's own. The
loop over experts (``experts_implementation="eager"``) would need each single decision.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable
from contextvars import ContextVar
from inspect import signature
from types import ModuleType
from typing import Any

import numpy as np

from phantora.errors import PhantoraError
from phantora.rank.routing import FRAMEWORK, OPTION, Counts, Routing
from phantora.rank.shims import LAYER, Shim, announce
from phantora.rank.shims.values import write

_counts: ContextVar[Counts] = ContextVar("tokens per expert of the layer that runs")


def _apply(modeling: ModuleType, routing: Routing) -> None:
    moe: Any = importlib.import_module("transformers.integrations.moe")
    grouped, linear, choose = moe.grouped_mm_experts_forward, moe._grouped_linear, moe.ExpertsInterface.get_interface
    if tuple(signature(linear).parameters)[:3] != ("input", "weight", "offs"):  # before 5.1: offs comes behind the bias
        raise AttributeError("offs")
    _number_layers(modeling.PreTrainedModel)

    @functools.wraps(grouped)
    def grouped_counted(self: Any, hidden_states: Any, top_k_index: Any, *rest: Any) -> Any:
        announce(routing)
        tokens, top_k = top_k_index.shape
        token = _counts.set(routing.counts(getattr(self, LAYER, 0), self.num_experts, tokens, top_k))
        try:
            return grouped(self, hidden_states, top_k_index, *rest)
        finally:
            _counts.reset(token)

    @functools.wraps(linear)
    def linear_counted(rows: Any, weight: Any, offs: Any, *rest: Any, **options: Any) -> Any:
        write(offs, np.cumsum(_counts.get()))
        return linear(rows, weight, offs, *rest, **options)

    @functools.wraps(choose)
    def choose_known(self: Any, experts_implementation: str, default: Any) -> Any:
        if experts_implementation not in ("grouped_mm", "batched_mm"):
            raise PhantoraError(
                f'experts_implementation="{experts_implementation}" needs the expert of every single token; use '
                f'"grouped_mm", or {OPTION} {FRAMEWORK} to route by zeros'
            )
        return choose(self, experts_implementation, default)

    moe.ExpertsInterface._global_mapping["grouped_mm"] = grouped_counted
    moe._grouped_linear = linear_counted
    moe.ExpertsInterface.get_interface = choose_known


def _when_complete(model: Any, see: Callable[[str, Any], None]) -> None:
    """Calls `see` with name and module of each part of each complete model."""
    post_init = model.post_init

    @functools.wraps(post_init)
    def post_init_seen(self: Any) -> None:
        post_init(self)
        for name, module in self.named_modules():
            see(name, module)

    model.post_init = post_init_seen


def _number_layers(model: Any) -> None:
    def number(name: str, module: Any) -> None:
        found = re.search(r"layers\.(\d+)\.", name + ".")
        if found and hasattr(module, "num_experts"):
            setattr(module, LAYER, int(found[1]))

    _when_complete(model, number)


def _guard(modeling: ModuleType, refuse: Callable[..., None]) -> None:
    """Layers of experts of an unknown version fail when they are used; dense models are as good as in any other."""

    def look(_: str, module: Any) -> None:
        if hasattr(module, "num_experts") or hasattr(module, "experts"):
            module.register_forward_pre_hook(refuse)

    _when_complete(modeling.PreTrainedModel, look)


SHIM = Shim("transformers", ("5", "5.23"), "transformers.modeling_utils", guarded=_guard, apply=_apply)
