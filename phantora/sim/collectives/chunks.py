"""NCCL's division of data into chunks. Each hop of a tree of hosts waits for a whole chunk.

The rules are those of NCCL 2.28, ``src/enqueue.cc`` (chunks of each algorithm), ``src/transport/nvls.cc`` (channels and
largest chunks of reduction in the switch).
"""

from __future__ import annotations

import math

from phantora.sim.collectives.tuner import LL, LL128, LL128_DATA, SIMPLE, Placement
from phantora.units import KIB

STEPS = 8  # slots of a channel's buffer
LL_BUFFER, LL128_BUFFER = 512 * KIB, 4800 * KIB  # of a channel
# Bytes with which a further channel is used: threads of a channel times what each has at least.
THREAD_BYTES = {LL: 8 * KIB, LL128: 8 * KIB, SIMPLE: 32 * KIB}
NVLS_CHANNELS = {9: 16, 10: 32}  # of several hosts, by compute capability
NVLS_CHUNK, NVLS_TREE_CHUNK = 128 * KIB, 64 * KIB  # largest; on four hosts and more


def used_channels(channels: int, bytes: int, protocol: str) -> int:
    """Channels that `bytes` of a tree are spread over."""
    return max(1, min(channels, bytes // THREAD_BYTES[protocol]))


def tree_chunk(place: Placement, channels: int, bytes: int, protocol: str, buffer_bytes: int) -> float:
    """Bytes of data that a channel of a tree passes on at once. `buffer_bytes`: of a channel in Simple."""
    part = bytes / channels
    if protocol == SIMPLE:
        return min(part, buffer_bytes / STEPS)
    if protocol == LL:
        return min(part, LL_BUFFER / STEPS / 2)
    chunk = LL128_BUFFER / STEPS * LL128_DATA
    local = place.members / place.hosts
    depth = 1 + int(math.log2(place.hosts)) + 0.1 * local
    for share, least in ((64, 128 * KIB), (16, 32 * KIB)):
        while part // chunk < depth * share / local and chunk > least:
            chunk /= 2
    return min(part, chunk)


def nvls_tree_round(place: Placement, channels: int, heads: int, bytes: int) -> int:
    """Bytes that all `channels` of the `heads` GPUs of a host take up the tree of hosts at once."""
    chunk = NVLS_TREE_CHUNK if place.hosts >= 4 else NVLS_CHUNK
    for share, smaller in ((4, 64 * KIB), (1, 32 * KIB)):
        if bytes < share * channels * heads * chunk:
            chunk = min(chunk, smaller)
    return min(bytes, channels * heads * chunk)
