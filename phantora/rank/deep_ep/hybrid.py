"""``deep_ep.HybridEPBuffer``: dispatch and combine with the permutation for grouped products."""

from __future__ import annotations

import os
from typing import Any

from phantora.rank.deep_ep import routes
from phantora.rank.deep_ep.buffer import Handle, _bytes_of
from phantora.rank.deep_ep.exchange import Moved, launch
from phantora.rank.deep_ep.routes import Routes
from phantora.wire.layout import Coll


class HybridEPBuffer:
    """Memory of a group for tokens of `max_num_of_tokens_per_rank` on each member."""

    def __init__(
        self,
        group: Any,
        hidden_dim: int,
        max_num_of_tokens_per_rank: int,
        num_local_experts: int,
        use_fp8: bool = False,
        num_sms_dispatch_api: int = 24,
        num_sms_combine_api: int = 24,
        **_: Any,
    ) -> None:
        import torch
        import torch.distributed as dist

        self.group, self.rank, self.group_size = group, group.rank(), group.size()
        self.num_local_experts = num_local_experts
        self._sms = num_sms_dispatch_api, num_sms_combine_api
        domain = min(self.group_size, int(os.environ.get("NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN", "8")))
        self._probs_bytes = 4 * num_local_experts * domain
        most = max_num_of_tokens_per_rank * self.group_size
        item = 1 if use_fp8 else 2
        self._memory = torch.empty(most * hidden_dim * (item + 2), dtype=torch.uint8, device="cuda")
        dist.barrier(group)  # members exchange the addresses of their memory

    def dispatch_with_permute(
        self,
        *,
        hidden: Any,
        topk_idx: Any = None,
        topk_weights: Any = None,
        routing_map: Any = None,
        probs: Any = None,
        scaling_factor: Any = None,
        num_permuted_tokens: int | None = None,
        pad_multiple: int | None = None,
        handle: Handle | None = None,
        non_blocking: bool = False,
        **_: Any,
    ) -> tuple[Any, Any, Any, Any, Handle]:
        """The tokens of the experts here, in the order of experts. Without `num_permuted_tokens` the host waits for
        their number."""
        import torch

        stream = torch.cuda.current_stream()
        if handle is None:
            handle = self._routed(routing_map, topk_idx)
            of_tokens = routing_map if routing_map is not None else topk_idx
            of_all = of_tokens.new_empty(len(of_tokens) * self.group_size, of_tokens.shape[1])
            # As reals, which a folded run takes from its process for every rank: all ranks have the same map.
            whole, own = (each.flatten().view(torch.float16) for each in (of_all, of_tokens.contiguous()))
            torch.distributed.all_gather_into_tensor(whole, own, self.group)
            of_all.any(dim=1)  # reads it once, as the kernel does that makes the tables of the exchange
            if not non_blocking and num_permuted_tokens is None:
                stream.record_event().synchronize()
        found = handle.routes
        counts = [-(-count // pad_multiple) * pad_multiple if pad_multiple else count for count in found.counts]
        rows = int(num_permuted_tokens) if num_permuted_tokens is not None else sum(counts)
        launch(Coll.HYBRID_DISPATCH, self._moved(found, hidden, probs), self._sms[0], self.group, stream)
        permuted = hidden.new_empty(rows, hidden.shape[1])
        buffer, copied = self._buffer(permuted, found.received)
        permuted[:copied].copy_(buffer[:copied])
        weights = None if probs is None else torch.empty(rows, dtype=torch.float32, device="cuda")
        scales = None if scaling_factor is None else scaling_factor.new_empty(rows, scaling_factor.shape[1])
        by_expert = torch.tensor(counts, dtype=torch.int64)
        return permuted, weights, scales, by_expert, handle

    def combine_with_unpermute(
        self, *, hidden: Any, probs: Any = None, handle: Handle, pad_multiple: int | None = None, **_: Any
    ) -> tuple[Any, Any]:
        """The rows back at their ranks, added up for each token."""
        import torch

        found = handle.routes
        buffer, copied = self._buffer(hidden, found.received)
        buffer[:copied].copy_(hidden[:copied])
        stream = torch.cuda.current_stream()
        launch(Coll.HYBRID_COMBINE, self._moved(found, hidden, probs), self._sms[1], self.group, stream)
        combined = hidden.new_empty(found.tokens, hidden.shape[1])
        experts = found.chosen.shape[1]
        weights = None if probs is None else torch.empty(found.tokens, experts, dtype=torch.float32, device="cuda")
        return combined, weights

    def _moved(self, found: Routes, hidden: Any, probs: Any) -> Moved:
        """With `probs`, each row has one of every expert of the NVLink domain."""
        return Moved(found.tokens, found.most, _bytes_of(hidden) + (0 if probs is None else self._probs_bytes))

    def _buffer(self, like: Any, received: int) -> tuple[Any, int]:
        """The received rows as rows of `like`, and how many rows a copy has that moves the bytes of both."""
        rows = self._memory.view(like.dtype).view(-1, like.shape[1])
        return rows, min(len(like), len(rows), (len(like) + received) // 2)

    def _routed(self, routing_map: Any, topk_idx: Any) -> Handle:
        if topk_idx is None:
            return Handle(routes.of_map(routing_map, self.group_size, self.rank), 0)
        experts = self.num_local_experts * self.group_size
        return Handle(routes.of_indices(topk_idx, experts, self.group_size, self.rank), topk_idx.shape[1])
