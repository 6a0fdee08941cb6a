"""Memory of peers: how long torch's kernels on symmetric memory, those of Transformer Engine's Userbuffers, signals,
and copies from and to peers take.

In a group of one, an H100 takes 0.93 us for a barrier, which has nothing to do, 2.05 for giving a signal and for taking
one, 4.3 for a one-shot and 3.9 for a two-shot all-reduce of 2 KiB, 18.1 and 19.4 of 8 MiB (`python
validation/probes/symmetric_memory.py`, torch 2.11). What peers add is fitted to published times of H100 with NVLink:

- vLLM's custom one-stage all-reduce, which reads as torch's one-shot does, in 36 blocks of 512 threads
  (github.com/vllm-project/vllm/pull/24111): 7, 9, 11 and 13 us for 0.5, 1, 1.5 and 2 MiB on 2 GPUs; on 4 GPUs 10, 14,
  19, 23, 30 and 38 us for 0.5, 1, 1.5, 2, 3 and 4 MiB (pull/24532).
- torch's two-shot all-reduce between a copy into the symmetric buffer and one out of it: 16, 19, 19, 23 and 25 us for
  0.5, 1, 1.5, 2 and 3 MiB on 4 GPUs (pull/24532).
- Copies between GPUs by copy engines: 371 to 377 GB/s one way (p2pBandwidthLatencyTest,
  github.com/NVIDIA/nccl/issues/1264).

On two H100 of one host (the same script, validation/measurements/2026-11-24-h100x2/symmetric_memory.jsonl) a
barrier takes 3.9 us, giving a signal 3.6, taking the peer's 3.0, each 1.2 behind the kernel before it, and copies of 2
KiB to 32 MiB 3.7 us and more at 373 GB/s. Two-shot all-reduces of 2 KiB to 32 MiB take 7.6 to 111 us, one-shot ones of
2 MiB and more 21 to 189: the formulas say 8.3 to 109 and 18 to 198.

Userbuffers' kernels follow from their sources: blocks, bytes of each thread in flight, how often members wait for each
other. Scatters took 4 % less of the link's rate (`validation/workloads/te_steps.py gpt16b-tp2-overlap-bf16`, two H100).

Units: us, bytes, bytes per us. Error bars are relative.
"""

from __future__ import annotations

from dataclasses import dataclass

from phantora.cost.transfers import PEER_LATENCY_NS
from phantora.wire.layout import NCCL_DTYPE_NAMES, Coll

MAX_BLOCKS = 24
ONE_SHOT_THREADS, TWO_SHOT_THREADS = 512, 1024
ACCESS_BYTES = 16  # of each thread and peer in flight
READ_LATENCY = 1.13  # of a peer's memory under load: 36 * 512 * 16 bytes on the way make 262 GB/s
READ_SHARE = 0.98  # of the link's payload that reading reaches,
BOTH_SHARE = 0.88  # and reading while peers write
SCATTER_LATENCY = 1.18  # the same of Userbuffers' scatter
WAY = 2.1  # to a peer and back
ONE_SHOT_BASE = 5.5  # they begin and end with signals to all
PULLED_BASE = ONE_SHOT_BASE
TWO_SHOT_BASE = 6.0
GAP = 1.2  # behind the kernel before
PUT, WAIT, BARRIER = 3.6 + GAP, 3.0 + GAP, 3.9 + GAP
REDUCTION_ERROR, SIGNAL_ERROR, COPY_ERROR = 0.25, 0.3, 0.1
# Userbuffers: members wait for each other once, at the start (reduce-scatter) or at the end (all-gather).
USERBUFFERS_THREADS, GATHER_UNROLL, PUSH_UNROLL = 1024, 4, 8
USERBUFFERS_BASE = 7.4
USERBUFFERS_ERROR = 0.15
SM_RATE = 60e3  # that the stores of one block reach: 32 bytes a clock at 1.9 GHz


@dataclass(frozen=True, kw_only=True)
class Work:
    """`base` us, then `share` of the bytes between each pair of members, one way, at most `rate` into each member."""

    algorithm: str
    base: float
    share: float
    rate: float
    blocks: int
    error: float


def together(kind: int, members: int, size: int, link: float, given: int = 0) -> Work:
    """A kernel of ``wire.layout.SYMMETRIC`` of `size` bytes among `members`, whose links carry `link` bytes per us, in
    the blocks that are `given` or in those that torch would choose."""
    name = Coll.names()[kind]
    if name == "SYMMETRIC_BARRIER":
        return Work(algorithm="BARRIER", base=BARRIER, share=0.0, rate=link, blocks=1, error=SIGNAL_ERROR)
    if name.startswith("USERBUFFERS"):
        return _userbuffers(name == "USERBUFFERS_ALL_GATHER", members, size, link, max(1, given))
    one_shot = name == "ONE_SHOT_ALL_REDUCE"
    threads = ONE_SHOT_THREADS if one_shot else TWO_SHOT_THREADS
    part = size if one_shot else size / members  # that each thread block walks through
    blocks = max(1, min(MAX_BLOCKS, -int(-part // (threads * ACCESS_BYTES))))
    on_the_way = min(part, blocks * threads * ACCESS_BYTES) * (members - 1)
    most = link * (BOTH_SHARE if name == "TWO_SHOT_ALL_REDUCE" else READ_SHARE)
    rate = max(1.0, min(on_the_way / READ_LATENCY, most))
    if one_shot:
        return Work(
            algorithm="ONE_SHOT", base=ONE_SHOT_BASE, share=1.0, rate=rate, blocks=blocks, error=REDUCTION_ERROR
        )
    if name == "TWO_SHOT_ALL_REDUCE":
        return Work(
            algorithm="TWO_SHOT", base=TWO_SHOT_BASE, share=2 / members, rate=rate, blocks=blocks, error=REDUCTION_ERROR
        )
    return Work(
        algorithm="PULLED", base=PULLED_BASE, share=1 / members, rate=rate, blocks=blocks, error=REDUCTION_ERROR
    )


def _userbuffers(gathers: bool, members: int, size: int, link: float, blocks: int) -> Work:
    """Each member writes its part to all others, or reads its part of all others."""
    part = size / members
    each = USERBUFFERS_THREADS * ACCESS_BYTES * (GATHER_UNROLL if gathers else 1)
    on_the_way = min(part, blocks * each) * (members - 1)
    latency = READ_LATENCY if gathers else SCATTER_LATENCY
    rate = max(1.0, min(on_the_way / latency, blocks * SM_RATE, link * READ_SHARE))
    name = "PUSHED" if gathers else "PULLED"
    return Work(
        algorithm=name, base=USERBUFFERS_BASE, share=1 / members, rate=rate, blocks=blocks, error=USERBUFFERS_ERROR
    )


def push(size: int, link: float, blocks: int) -> Work:
    """A kernel of `blocks` that writes to a peer's memory; the signal at its end is distinguished."""
    on_the_way = min(size, blocks * USERBUFFERS_THREADS * ACCESS_BYTES * PUSH_UNROLL)
    rate = max(1.0, min(on_the_way / READ_LATENCY, blocks * SM_RATE, link * READ_SHARE))
    return Work(algorithm="PUSHED", base=WAY, share=1.0, rate=rate, blocks=blocks, error=USERBUFFERS_ERROR)


def copy(link: float) -> Work:
    """A copy engine's copy from or to a peer."""
    return Work(algorithm="COPY_ENGINE", base=PEER_LATENCY_NS / 1e3, share=1.0, rate=link, blocks=0, error=COPY_ERROR)


def signal(puts: bool) -> Work:
    """Giving a signal, or taking one that is there."""
    return Work(algorithm="SIGNAL", base=PUT if puts else WAIT, share=0.0, rate=1.0, blocks=1, error=SIGNAL_ERROR)


def kernel_name(kind: int, dtype: int, members: int) -> str:
    """The name of the device function, near what profilers show with torch 2.11 and Transformer Engine 2.20."""
    name = Coll.names()[kind]
    if name.startswith("USERBUFFERS"):
        way = "rw_ag" if name == "USERBUFFERS_ALL_GATHER" else "rr_rs"
        return f"void userbuffers_fp16_sum_inplace_gpu_{way}<{members}>"
    if name == "SYMMETRIC_BARRIER":
        return "c10d::symmetric_memory::barrier_kernel(unsigned int**, int, int, int, unsigned long)"
    element = "c10::BFloat16" if NCCL_DTYPE_NAMES[dtype] == "bfloat16" else "float"
    function = "one_shot_all_reduce_kernel" if name == "ONE_SHOT_ALL_REDUCE" else "two_shot_all_reduce_kernel"
    return f"void (anonymous namespace)::{function}<{element}, 16, {members}>"


def signal_name(puts: bool, counted: bool = False) -> str:
    """Name of a signal's kernel; counted signals are Userbuffers'."""
    if counted:
        return "kuserbuffers_pushsend" if puts else "kuserbuffers_pushrecv"
    action = "put" if puts else "wait"
    return f"c10d::symmetric_memory::{action}_signal_kernel(unsigned int**, int, int, int, int, unsigned long)"
