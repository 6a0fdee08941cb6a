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


@dataclass(frozen=True, kw_only=True)
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
        Coll.EXPERT_DISPATCH: Kernel(
            start=25.3, start_per_kilobyte=0.23, token=0.395, row=0.0539, sm_rate=26.6e3, link_rate=335e3, error=0.12
        ),
        Coll.EXPERT_COMBINE: Kernel(
            start=24.1, start_per_kilobyte=1.64, token=0.883, row=0.0, sm_rate=27.6e3, link_rate=331e3, error=0.20
        ),
        Coll.LOW_LATENCY_DISPATCH: Kernel(
            start=9.99, start_per_kilobyte=0.27, token=1.67, row=0.0, sm_rate=15.9e3, link_rate=248e3, error=0.28
        ),
        Coll.LOW_LATENCY_COMBINE: Kernel(
            start=10.4, start_per_kilobyte=0.10, token=0.0, row=0.0, sm_rate=27.0e3, link_rate=219e3, error=0.16
        ),
    },
    "H200-SXM": {
        Coll.EXPERT_DISPATCH: Kernel(
            start=26.0, start_per_kilobyte=0.19, token=0.392, row=0.0523, sm_rate=27.8e3, link_rate=333e3, error=0.11
        ),
        Coll.EXPERT_COMBINE: Kernel(
            start=23.9, start_per_kilobyte=1.59, token=0.858, row=0.0, sm_rate=27.5e3, link_rate=331e3, error=0.20
        ),
        Coll.LOW_LATENCY_DISPATCH: Kernel(
            start=8.70, start_per_kilobyte=0.26, token=1.60, row=0.0, sm_rate=17.3e3, link_rate=255e3, error=0.27
        ),
        Coll.LOW_LATENCY_COMBINE: Kernel(
            start=9.18, start_per_kilobyte=0.12, token=0.0, row=0.0, sm_rate=28.9e3, link_rate=226e3, error=0.15
        ),
    },
    "B200-SXM": {
        Coll.EXPERT_DISPATCH: Kernel(
            start=33.1, start_per_kilobyte=0.41, token=0.426, row=0.0933, sm_rate=31.2e3, link_rate=350e3, error=0.11
        ),
        Coll.EXPERT_COMBINE: Kernel(
            start=31.1, start_per_kilobyte=1.76, token=0.983, row=0.0, sm_rate=29.8e3, link_rate=429e3, error=0.17
        ),
        Coll.LOW_LATENCY_DISPATCH: Kernel(
            start=16.0, start_per_kilobyte=0.58, token=1.70, row=0.144, sm_rate=14.9e3, link_rate=485e3, error=0.33
        ),
        Coll.LOW_LATENCY_COMBINE: Kernel(
            start=15.8, start_per_kilobyte=0.28, token=0.0, row=0.0, sm_rate=47.6e3, link_rate=595e3, error=0.22
        ),
    },
    "B300-SXM": {
        Coll.EXPERT_DISPATCH: Kernel(
            start=34.3, start_per_kilobyte=0.35, token=0.421, row=0.0964, sm_rate=33.7e3, link_rate=352e3, error=0.12
        ),
        Coll.EXPERT_COMBINE: Kernel(
            start=31.9, start_per_kilobyte=1.67, token=0.990, row=0.0, sm_rate=31.2e3, link_rate=421e3, error=0.17
        ),
        Coll.LOW_LATENCY_DISPATCH: Kernel(
            start=16.6, start_per_kilobyte=0.54, token=1.64, row=0.175, sm_rate=15.6e3, link_rate=486e3, error=0.29
        ),
        Coll.LOW_LATENCY_COMBINE: Kernel(
            start=16.5, start_per_kilobyte=0.28, token=0.0, row=0.0, sm_rate=47.6e3, link_rate=597e3, error=0.22
        ),
    },
    "GB200": {
        Coll.EXPERT_DISPATCH: Kernel(
            start=31.4, start_per_kilobyte=0.25, token=0.402, row=0.225, sm_rate=62.3e3, link_rate=242e3, error=0.11
        ),
        Coll.EXPERT_COMBINE: Kernel(
            start=28.4, start_per_kilobyte=1.33, token=0.822, row=0.112, sm_rate=35.5e3, link_rate=273e3, error=0.16
        ),
        Coll.LOW_LATENCY_DISPATCH: Kernel(
            start=12.2, start_per_kilobyte=0.48, token=1.64, row=0.107, sm_rate=13.1e3, link_rate=457e3, error=0.37
        ),
        Coll.LOW_LATENCY_COMBINE: Kernel(
            start=11.0, start_per_kilobyte=0.33, token=0.0, row=0.0, sm_rate=38.3e3, link_rate=563e3, error=0.32
        ),
    },
    "GB300": {
        Coll.EXPERT_DISPATCH: Kernel(
            start=30.1, start_per_kilobyte=1.04, token=0.400, row=0.218, sm_rate=69.3e3, link_rate=253e3, error=0.19
        ),
        Coll.EXPERT_COMBINE: Kernel(
            start=28.6, start_per_kilobyte=1.20, token=0.841, row=0.106, sm_rate=38.0e3, link_rate=267e3, error=0.17
        ),
        Coll.LOW_LATENCY_DISPATCH: Kernel(
            start=12.1, start_per_kilobyte=0.48, token=1.59, row=0.102, sm_rate=13.0e3, link_rate=465e3, error=0.36
        ),
        Coll.LOW_LATENCY_COMBINE: Kernel(
            start=11.1, start_per_kilobyte=0.31, token=0.0, row=0.0, sm_rate=38.6e3, link_rate=565e3, error=0.32
        ),
    },
}
"""Kernels by GPU of the package and kind."""

_HYBRID = {
    Coll.HYBRID_DISPATCH: Kernel(
        start=7.9, start_per_kilobyte=0.0, token=0.0, row=0.0, sm_rate=inf, link_rate=689e3, error=0.15, member=0.053
    ),
    Coll.HYBRID_COMBINE: Kernel(
        start=15.0, start_per_kilobyte=0.0, token=0.0, row=0.0, sm_rate=55e3, link_rate=656e3, error=0.15
    ),
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
