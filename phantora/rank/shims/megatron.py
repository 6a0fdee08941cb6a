"""Megatron-Core's mixture of experts: any router made of TopKRouter, with the dispatchers of token_dispatcher.

The router's decision is a map [tokens, experts] of booleans, from which the dispatchers count, permute
and size what they exchange. The map is given; what is made of it is computed as the framework does. The
same on every rank, so that gathering maps or counts means repeating them.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phantora.errors import PhantoraError
from phantora.rank.deep_ep import routes
from phantora.rank.fold import groups
from phantora.rank.importhook import excluded
from phantora.rank.routing import Routing
from phantora.rank.shims import Shim, announce
from phantora.rank.shims.values import read, write


def _apply(module: ModuleType, routing: Routing) -> None:
    from megatron.core.transformer.moe import token_dispatcher

    _decide(module.TopKRouter, routing)
    _repeat_gathered(token_dispatcher)


def _decide(router: Any, routing: Routing) -> None:
    decide = router.routing
    unchecked = [groups.processes() is not None and routing.uneven]

    @functools.wraps(decide)
    def routing_given(self: Any, *args: Any, **kwargs: Any) -> Any:
        probabilities, chosen = decide(self, *args, **kwargs)
        config = self.config
        if config.moe_pad_expert_input_to_capacity:  # every expert gets its capacity, whatever was chosen
            return probabilities, chosen
        if config.moe_expert_capacity_factor is not None:
            raise PhantoraError(
                "Megatron drops tokens here (moe_expert_capacity_factor), and how many depends on values; set "
                "moe_pad_expert_input_to_capacity as well, or leave out the capacity factor"
            )
        announce(routing)
        if unchecked[0]:  # once: what Python does costs the host time, which a run of all ranks has not
            unchecked[0] = False
            excluded(_require_experts)
        tokens, experts = chosen.shape
        routes.layer = (self.layer_number or 1) - 1
        counts = routing.counts(routes.layer, experts, tokens, self.topk)
        write(chosen, routing_map(tuple(counts.tolist()), tokens))
        return probabilities, chosen

    router.routing = routing_given


def _require_experts() -> None:
    import torch
    from megatron.core import parallel_state

    group = parallel_state.get_expert_model_parallel_group(check_initialized=False)
    everybody = range(torch.distributed.get_world_size())
    groups.require_experts(everybody if group is None else torch.distributed.get_process_group_ranks(group))


@functools.lru_cache(maxsize=8)
def routing_map(counts: tuple[int, ...], tokens: int) -> NDArray[np.bool_]:
    """bool[tokens, experts] with `counts` chosen in the columns, and equally many in each row.

    No count exceeds `tokens`, and `tokens` divides their sum. The choices of the experts follow each
    other round and round the tokens: an expert's differ, and every token has its turn equally often.
    """
    chosen = np.zeros((tokens, len(counts)), bool)
    expert = np.repeat(np.arange(len(counts)), counts)
    chosen[np.arange(len(expert)) % tokens, expert] = True
    return chosen


def _repeat_gathered(dispatcher: Any) -> None:
    import torch

    gather = dispatcher.gather_from_sequence_parallel_region

    @functools.wraps(gather)
    def gather_repeated(input_: Any, *args: Any, **kwargs: Any) -> Any:
        if input_.is_floating_point():
            return gather(input_, *args, **kwargs)
        # A map or counts, the same on every rank. As reals, which a folded run takes from its process for every rank;
        # these arrive as zeros, so the result has memory of its own.
        reals = torch.float64 if input_.itemsize == 8 else torch.float16
        own = read(input_)
        gathered = torch.empty_like(gather(input_.contiguous().view(reals), *args, **kwargs).view(input_.dtype))
        write(gathered, np.tile(own, gathered.numel() // own.size))
        return gathered

    dispatcher.gather_from_sequence_parallel_region = gather_repeated


SHIM = Shim(
    "megatron-core",
    ("0.17.1", "0.18.2", "0.20", "0.19.2", "0.16.1"),
    "megatron.core.transformer.moe.router",
    guarded="TopKRouter.routing",
    apply=_apply,
    declares="megatron.core.package_info",
)
