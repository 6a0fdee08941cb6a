"""``deep_ep.Buffer``: dispatch and combine of both modes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from phantora.rank.deep_ep import routes
from phantora.rank.deep_ep.exchange import Moved, launch
from phantora.rank.deep_ep.routes import Routes
from phantora.rank.messages import tell
from phantora.rank.shims.values import write
from phantora.wire.layout import Coll

SCALES_OF = 128
"""Elements of FP8 that share a scale of 4 bytes."""


class EventHandle:
    """A CUDA event, recorded on the current stream."""

    def __init__(self, stream: Any = None) -> None:
        import torch

        self.event = (stream or torch.cuda.current_stream()).record_event()

    def current_stream_wait(self) -> None:
        """The current stream waits for the event."""
        import torch

        torch.cuda.current_stream().wait_event(self.event)


class EventOverlap:
    """The event behind a call; the current stream waits for it at the end of a ``with``."""

    def __init__(self, event: EventHandle | None = None, extra_tensors: tuple[Any, ...] | None = None) -> None:
        self.event, self.extra_tensors = event, extra_tensors

    def current_stream_wait(self) -> None:
        """The current stream waits for the event."""
        assert self.event is not None
        self.event.current_stream_wait()

    def __enter__(self) -> EventOverlap:
        return self

    def __exit__(self, *_: object) -> None:
        if self.event is not None:
            self.event.current_stream_wait()


@dataclass(frozen=True)
class Config:
    """Chunks of the normal kernels, in tokens."""

    num_sms: int = 20
    num_max_nvl_chunked_send_tokens: int = 6
    num_max_nvl_chunked_recv_tokens: int = 256
    num_max_rdma_chunked_send_tokens: int = 6
    num_max_rdma_chunked_recv_tokens: int = 256

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes of the receive queues of all channels on NVLink."""
        channels = self.num_sms // 2
        return channels * min(num_ranks, 8) * self.num_max_nvl_chunked_recv_tokens * (hidden_bytes + 512)

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes of the send and receive queues of all channels on the network; none in a group of up to 8."""
        if num_ranks <= 8:
            return 0
        return 2 * self.num_sms // 2 * (num_ranks // 8) * self.num_max_rdma_chunked_recv_tokens * (hidden_bytes + 512)


@dataclass(frozen=True)
class Handle:
    """State of a dispatch for its combine, and for dispatches that repeat it."""

    routes: Routes
    top_k: int


class Buffer:
    """Memory of a group for the exchange of tokens, of the same sizes as DeepEP's."""

    num_sms = 20

    def __init__(
        self, group: Any, num_nvl_bytes: int = 0, num_rdma_bytes: int = 0, low_latency_mode: bool = False, **_: Any
    ) -> None:
        import torch
        import torch.distributed as dist

        self.group, self.rank, self.group_size = group, group.rank(), group.size()
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes
        self.low_latency_mode = low_latency_mode
        self._memory: Any = torch.empty(num_nvl_bytes + num_rdma_bytes, dtype=torch.uint8, device="cuda")
        dist.barrier(group)  # members exchange the addresses of their memory
        self._stream: Any = torch.cuda.Stream(priority=-1)  # type: ignore[no-untyped-call]
        if os.environ.get("RANK", "0") == "0":
            tell("DeepEP's kernels have prices (docs/frameworks/deepep.md); values do not travel")

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """SMs of the normal kernels."""
        assert new_num_sms % 2 == 0, "The SM count must be even"
        Buffer.num_sms = new_num_sms

    @staticmethod
    def capture() -> EventOverlap:
        """An event on the current stream."""
        return EventOverlap(EventHandle())

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        """The default configuration of dispatches."""
        return Config(Buffer.num_sms)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        """The default configuration of combines."""
        return Config(Buffer.num_sms)

    @staticmethod
    def get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
    ) -> int:
        """Bytes of two buffers for sends and two for receives."""
        row = hidden * 2 + 16
        tokens = num_max_dispatch_tokens_per_rank
        sends = max(tokens, num_experts * tokens) * row
        return 2 * (sends + num_experts * tokens * row)

    def get_comm_stream(self) -> Any:
        """The stream of the kernels."""
        return self._stream

    def destroy(self) -> None:
        """Frees the memory."""
        self._memory = None

    def get_dispatch_layout(
        self,
        topk_idx: Any,
        num_experts: int,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, Any, Any, Any, EventOverlap]:
        """Counts of members and experts, and who gets which token."""
        import torch

        found = routes.of_indices(topk_idx, num_experts, self.group_size, self.rank)
        with self._on_stream(previous_event):
            of_members = torch.ge(topk_idx[:, :1], 0).expand(-1, self.group_size).contiguous()
            by_member = torch.empty(self.group_size, dtype=torch.int32, device="cuda")
            by_expert = torch.empty(num_experts, dtype=torch.int32, device="cuda")
        write(of_members, found.of_members)
        write(by_member, found.of_members.sum(axis=0))
        write(by_expert, found.chosen.sum(axis=0))
        return by_member, None, by_expert, of_members, self._finish(async_finish)

    def dispatch(
        self,
        x: Any,
        handle: Handle | None = None,
        num_tokens_per_rank: Any = None,
        num_tokens_per_rdma_rank: Any = None,
        is_token_in_rank: Any = None,
        num_tokens_per_expert: Any = None,
        topk_idx: Any = None,
        topk_weights: Any = None,
        expert_alignment: int = 1,
        num_worst_tokens: int = 0,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, Any, Any, Any, Any, EventOverlap]:
        """The tokens that come to the experts here. Without a `handle` or `num_worst_tokens` the host waits for their
        number."""
        import torch

        data, scales = x if isinstance(x, tuple) else (x, None)
        sms = config.num_sms if config else Buffer.num_sms
        first = handle is None
        if handle is None:
            found = routes.of_indices(topk_idx, num_tokens_per_expert.numel(), self.group_size, self.rank)
            handle = Handle(found, topk_idx.shape[1])
        found = handle.routes
        with self._on_stream(previous_event):
            launch(Coll.EXPERT_COUNTS, Moved(found.tokens, 0, 1), 1, self.group, self._stream)
            if first and not num_worst_tokens:
                self._stream.record_event().synchronize()
            rows = num_worst_tokens or found.received
            received = data.new_empty(rows, data.shape[1])
            received_scales = None if scales is None else scales.new_empty(rows, scales.shape[1])
            indices = weights = None
            if first:
                indices = torch.empty(rows, handle.top_k, dtype=topk_idx.dtype, device="cuda")
                weights = None if topk_weights is None else topk_weights.new_empty(rows, handle.top_k)
            row_bytes = _bytes_of(data) + (0 if scales is None else _bytes_of(scales))
            launch(Coll.EXPERT_DISPATCH, Moved(found.tokens, found.most, row_bytes), sms, self.group, self._stream)
        if indices is not None:
            known = np.full((rows, handle.top_k), -1, np.int64)
            known[: found.received] = found.indices(handle.top_k)
            write(indices, known)
        result = received if received_scales is None else (received, received_scales)
        event = self._finish(async_finish)
        if not first:
            return result, None, None, None, None, event
        counts = [-(-count // expert_alignment) * expert_alignment for count in found.counts]
        return result, indices, weights, [] if num_worst_tokens else counts, handle, event

    def combine(
        self,
        x: Any,
        handle: Handle,
        topk_weights: Any = None,
        bias: Any = None,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, Any, EventOverlap]:
        """The rows back at their ranks, added up for each token."""
        sms = config.num_sms if config else Buffer.num_sms
        found = handle.routes
        with self._on_stream(previous_event):
            launch(Coll.EXPERT_COUNTS, Moved(found.tokens, 0, 1), 1, self.group, self._stream)
            combined = x.new_empty(found.tokens, x.shape[1])
            weights = None if topk_weights is None else topk_weights.new_empty(found.tokens, topk_weights.shape[1])
            moved = Moved(found.tokens, found.most, _bytes_of(x))
            launch(Coll.EXPERT_COMBINE, moved, sms, self.group, self._stream)
        return combined, weights, self._finish(async_finish)

    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int) -> None:
        """Zeroes the counters."""
        if self._memory.numel():
            self._memory[: min(self._memory.numel(), 8 * num_experts)].zero_()

    def low_latency_dispatch(
        self,
        x: Any,
        topk_idx: Any,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        use_fp8: bool = True,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        **_: Any,
    ) -> tuple[Any, Any, Handle, EventOverlap, Callable[[], None] | None]:
        """The tokens of the experts here, packed by expert, without a wait of the host."""
        import torch

        found = routes.of_indices(topk_idx, num_experts, self.group_size, self.rank)
        hidden = x.shape[1]
        packed = (found.local, num_max_dispatch_tokens_per_rank * self.group_size)
        received: Any = torch.empty(*packed, hidden, dtype=torch.float8_e4m3fn if use_fp8 else x.dtype, device="cuda")
        if use_fp8:
            received = received, torch.empty(*packed, hidden // SCALES_OF, dtype=torch.float32, device="cuda")
        counts = torch.empty(found.local, dtype=torch.int32, device="cuda")
        row_bytes = hidden + hidden // SCALES_OF * 4 if use_fp8 else _bytes_of(x)
        hook, event = self._low_latency(
            Coll.LOW_LATENCY_DISPATCH, found, topk_idx.shape[1], row_bytes, async_finish, return_recv_hook
        )
        write(counts, np.array(found.counts))
        return received, counts, Handle(found, topk_idx.shape[1]), event, hook

    def low_latency_combine(
        self,
        x: Any,
        topk_idx: Any,
        topk_weights: Any,
        handle: Handle,
        zero_copy: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        out: Any = None,
        **_: Any,
    ) -> tuple[Any, EventOverlap, Callable[[], None] | None]:
        """The rows back at their ranks, weighted and added up."""
        found = handle.routes
        combined = x.new_empty(found.tokens, x.shape[-1]) if out is None else out
        hook, event = self._low_latency(
            Coll.LOW_LATENCY_COMBINE, found, handle.top_k, _bytes_of(x), async_finish, return_recv_hook
        )
        return combined, event, hook

    def _low_latency(
        self, kind: int, found: Routes, top_k: int, row_bytes: int, async_finish: bool, hooked: bool
    ) -> tuple[Callable[[], None] | None, EventOverlap]:
        """With a hook the kernel does not occupy the caller's stream, which waits at the call of the hook."""
        import torch

        sms = low_latency_sms(found.chosen.shape[1], torch.cuda.get_device_properties().multi_processor_count)
        rows = max(int(found.chosen.sum()), max(found.counts, default=0) * found.local)
        with self._on_stream(None):
            launch(kind, Moved(found.tokens, rows, row_bytes), sms, self.group, self._stream)
        if not hooked:
            return None, self._finish(async_finish)
        done = EventHandle(self._stream)
        return done.current_stream_wait, EventOverlap()

    def _on_stream(self, previous: EventOverlap | None) -> Any:
        """The stream of communication, behind `previous` or all of the current stream."""
        import torch

        if previous is not None and previous.event is not None:
            self._stream.wait_event(previous.event.event)
        else:
            self._stream.wait_stream(torch.cuda.current_stream())
        return torch.cuda.stream(self._stream)

    def _finish(self, async_finish: bool) -> EventOverlap:
        if async_finish:
            return EventOverlap(EventHandle(self._stream))
        import torch

        torch.cuda.current_stream().wait_stream(self._stream)
        return EventOverlap()


def _bytes_of(x: Any) -> int:
    """Bytes of a row."""
    return int(x.shape[-1] * x.element_size())


def low_latency_sms(experts: int, sms: int) -> int:
    """Blocks of the low-latency kernels: one for that many experts as let all blocks run at once."""
    group = -(-experts // sms)
    return -(-experts // group)
