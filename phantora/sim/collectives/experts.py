"""Exchanges of tokens between experts: DeepEP's kernels of both modes, and HybridEP's.

A kernel takes a start, then the longer of two times, which overlap: its SMs' work (per token, per row, per byte) and
its link's transfer. A row is one token for one member (for one expert in the low-latency mode). Between NVLink domains
a token crosses the network once per domain, or once per expert in the low-latency mode.

``python -m validation.published.experts FOLDER fit`` makes the constants of `_KERNELS` from NVIDIA's published times
(github.com/ai-dynamo/aiconfigurator, one host of 8 GPUs, of GB200 and GB300 of 4; dispatch in FP8, combine in BF16).
Those of HybridEP follow from the table of DeepEP's docs/README_Hybrid-EP.md (GB200, 8 to 36 GPUs), which
``validation/published/experts.json`` repeats.

Units: us, bytes, bytes per us. Error bars are relative: nine of ten published times lie within.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from phantora.hardware import Gpu
from phantora.wire.layout import Coll

COUNTS_US = 15.0  # notify kernel with its barriers: assumed, as the start of NVIDIA's exchanges of one token
OVERLAP = 4.0
NETWORK_SHARE = 0.88  # of a NIC's rate that kernels reach: published times of 32 to 256 GPUs (experts.json)
NETWORK_ERROR, OTHER_GPU_ERROR = 0.3, 0.4


@dataclass(frozen=True)
class Rows:
    """Rows of the member that moves most: its tokens, and bytes of a row."""

    tokens: int
    row_bytes: int


@dataclass(frozen=True)
class Kernel:
    """Constants of one kernel on one GPU."""

    start: float
    start_per_kilobyte: float
    """Latency of one token's way through an SM, per kilobyte of a row."""
    token: float
    """Time of a token, on one SM."""
    row: float
    """Time of a row, on one SM."""
    sm_rate: float
    link_rate: float
    """Rate of rows from or to other members."""
    error: float
    member: float = 0.0
    """Time of a token and a member of the NVLink domain, whether it gets the token or not, on one SM."""

    def us(
        self, tokens: float, rows: float, row_bytes: float, sms: int, remote: float, members: int = 0
    ) -> tuple[float, float]:
        """Start and transfer; `remote`: the share of the rows on the link; `members` of the domain."""
        of_tokens = tokens * (self.token + members * self.member)
        work = (of_tokens + rows * self.row + rows * row_bytes / self.sm_rate) / sms
        link = rows * remote * row_bytes / self.link_rate
        return self.start + self.start_per_kilobyte * row_bytes / 1e3, (work**OVERLAP + link**OVERLAP) ** (1 / OVERLAP)


_KERNELS: dict[str, dict[int, Kernel]] = {
    "H100-SXM": {
        Coll.EXPERT_DISPATCH: Kernel(25.3, 0.23, 0.395, 0.0539, 26.6e3, 335e3, 0.12),
        Coll.EXPERT_COMBINE: Kernel(24.1, 1.64, 0.883, 0.0, 27.6e3, 331e3, 0.20),
        Coll.LOW_LATENCY_DISPATCH: Kernel(9.99, 0.27, 1.67, 0.0, 15.9e3, 248e3, 0.28),
        Coll.LOW_LATENCY_COMBINE: Kernel(10.4, 0.10, 0.0, 0.0, 27.0e3, 219e3, 0.16),
    },
    "H200-SXM": {
        Coll.EXPERT_DISPATCH: Kernel(26.0, 0.19, 0.392, 0.0523, 27.8e3, 333e3, 0.11),
        Coll.EXPERT_COMBINE: Kernel(23.9, 1.59, 0.858, 0.0, 27.5e3, 331e3, 0.20),
        Coll.LOW_LATENCY_DISPATCH: Kernel(8.70, 0.26, 1.60, 0.0, 17.3e3, 255e3, 0.27),
        Coll.LOW_LATENCY_COMBINE: Kernel(9.18, 0.12, 0.0, 0.0, 28.9e3, 226e3, 0.15),
    },
    "B200-SXM": {
        Coll.EXPERT_DISPATCH: Kernel(33.1, 0.41, 0.426, 0.0933, 31.2e3, 350e3, 0.11),
        Coll.EXPERT_COMBINE: Kernel(31.1, 1.76, 0.983, 0.0, 29.8e3, 429e3, 0.17),
        Coll.LOW_LATENCY_DISPATCH: Kernel(16.0, 0.58, 1.70, 0.144, 14.9e3, 485e3, 0.33),
        Coll.LOW_LATENCY_COMBINE: Kernel(15.8, 0.28, 0.0, 0.0, 47.6e3, 595e3, 0.22),
    },
    "B300-SXM": {
        Coll.EXPERT_DISPATCH: Kernel(34.3, 0.35, 0.421, 0.0964, 33.7e3, 352e3, 0.12),
        Coll.EXPERT_COMBINE: Kernel(31.9, 1.67, 0.990, 0.0, 31.2e3, 421e3, 0.17),
        Coll.LOW_LATENCY_DISPATCH: Kernel(16.6, 0.54, 1.64, 0.175, 15.6e3, 486e3, 0.29),
        Coll.LOW_LATENCY_COMBINE: Kernel(16.5, 0.28, 0.0, 0.0, 47.6e3, 597e3, 0.22),
    },
    "GB200": {
        Coll.EXPERT_DISPATCH: Kernel(31.4, 0.25, 0.402, 0.225, 62.3e3, 242e3, 0.11),
        Coll.EXPERT_COMBINE: Kernel(28.4, 1.33, 0.822, 0.112, 35.5e3, 273e3, 0.16),
        Coll.LOW_LATENCY_DISPATCH: Kernel(12.2, 0.48, 1.64, 0.107, 13.1e3, 457e3, 0.37),
        Coll.LOW_LATENCY_COMBINE: Kernel(11.0, 0.33, 0.0, 0.0, 38.3e3, 563e3, 0.32),
    },
    "GB300": {
        Coll.EXPERT_DISPATCH: Kernel(30.1, 1.04, 0.400, 0.218, 69.3e3, 253e3, 0.19),
        Coll.EXPERT_COMBINE: Kernel(28.6, 1.20, 0.841, 0.106, 38.0e3, 267e3, 0.17),
        Coll.LOW_LATENCY_DISPATCH: Kernel(12.1, 0.48, 1.59, 0.102, 13.0e3, 465e3, 0.36),
        Coll.LOW_LATENCY_COMBINE: Kernel(11.1, 0.31, 0.0, 0.0, 38.6e3, 565e3, 0.32),
    },
}
"""Kernels by GPU of the package and kind."""

_HYBRID = {
    Coll.HYBRID_DISPATCH: Kernel(7.9, 0.0, 0.0, 0.0, inf, 689e3, 0.15, 0.053),
    Coll.HYBRID_COMBINE: Kernel(15.0, 0.0, 0.0, 0.0, 55e3, 656e3, 0.15),
}
"""On a link of `HYBRID_LINK`; other links carry in proportion. In a dispatch a thread of an SM goes through all members
for each token (DeepEP, csrc/hybrid_ep/backend/hybrid_ep_backend.cuh). Rows are BF16; FP8 takes 0.083 us a member."""
HYBRID_LINK = 900e3
NAMES = {
    Coll.EXPERT_COUNTS: "deep_ep::intranode::notify_dispatch",
    Coll.EXPERT_DISPATCH: "deep_ep::intranode::dispatch",
    Coll.EXPERT_COMBINE: "deep_ep::intranode::combine",
    Coll.LOW_LATENCY_DISPATCH: "deep_ep::internode_ll::dispatch",
    Coll.LOW_LATENCY_COMBINE: "deep_ep::internode_ll::combine",
    Coll.HYBRID_DISPATCH: "hybrid_ep::dispatch_kernel",
    Coll.HYBRID_COMBINE: "hybrid_ep::combine_kernel",
}
"""Kernels of the log, by kind."""


def kernel_of(kind: int, gpu: Gpu, link: float) -> tuple[Kernel, bool]:
    """The constants of `kind` on `gpu` with NVLink of `link`, and whether they are its own; else those of H100, or of
    B200 from Blackwell on."""
    if kind in _HYBRID:
        found = _HYBRID[kind]
        return replace(found, link_rate=found.link_rate * link / HYBRID_LINK), gpu.compute_capability[0] == 10
    if gpu.name in _KERNELS:
        return _KERNELS[gpu.name][kind], True
    return _KERNELS["B200-SXM" if gpu.compute_capability[0] >= 10 else "H100-SXM"][kind], False


def domains_of_token(rows: Rows, size: float, members: int, local: int) -> float:
    """Mean number of other NVLink domains that a token goes to, of members chosen independently; `size`: bytes that a
    member moves, `local`: members of a domain."""
    chosen = min(1.0, size / rows.row_bytes / max(1, rows.tokens) / members)
    return (members // local - 1) * (1.0 - (1.0 - chosen) ** local)
