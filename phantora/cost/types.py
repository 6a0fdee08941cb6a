"""The simulator's questions about a piece of work, and their answers."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Protocol

from phantora.ttir.work import Work

CALIBRATED = "measured (calibration)"
PROVENANCES = ("measured", CALIBRATED, "interpolated", "scaled", "fitted", "analytic")
"""Source of a duration: this signature measured on this GPU; the same in a trace of the user's; its measured
neighbours; another GPU's measurements; a formula whose constants were fitted to measurements of this GPU; the GPU's
limits."""
CLASSES = (
    "gemm",
    "attention",
    "convolution",
    "normalization",
    "elementwise",
    "reduction",
    "embedding",
    "loss",
    "optimizer",
    "random",
    "sort",
    "fill",
    "copy",
    "memset",
    "communication",
    "other",
)


@dataclass(frozen=True)
class TensorSpec:
    """One tensor argument. `dtype` is torch's name without the prefix (``bfloat16``).

    `layout` is empty for strided tensors, else ``sparse_coo``, ``sparse_csr`` and so on; of those `shape` is the whole,
    `stride` that of a contiguous one, and `stored` the number of elements that are there (-1: not known).
    """

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    _: KW_ONLY
    device: str = "cuda"
    layout: str = ""
    stored: int = -1


@dataclass(frozen=True)
class OperatorSignature:
    """An ATen operator with what decides its duration.

    `args` holds the arguments in order: a :class:`TensorSpec`, a tuple of them (a tensor list), a
    scalar, or a tuple of scalars. `name` is ``aten::mm`` or, with an overload, ``aten::add.Tensor``.
    `outputs` are the tensors that it returned, where the tracer saw them.
    """

    name: str
    args: tuple[Any, ...]
    _: KW_ONLY
    outputs: tuple[TensorSpec, ...] = ()
    backward: bool = False
    work: Work | None = None
    """The work, if known: of Triton kernels, whose names and arguments say little."""
    tuning: bool = False
    """It is a candidate that an autotuner tries."""
    ir: str = ""
    """Place of a Triton kernel's IR, if it can be launched again (``phantora.ttir.store``), and"""
    grid: tuple[int, ...] = ()
    square: bool = False
    """Two of its operands are one tensor, whose square it takes (``x * x``)."""
    products: bool | None = None
    """For a program's own kernel that could not be followed: True if it multiplies tiles; None: unknown."""


@dataclass(frozen=True)
class KernelLaunch:
    """One kernel an operator launched. `library` is the decoded JSON of a library call or empty."""

    name: str
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    shared_bytes: int = 0
    library: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Price:
    """Durations in ns of an operator's kernels, in launch order, and what they depend on.

    `flops` and `bytes` are totals of the operator: floating-point operations by torch's own
    conventions, and bytes that must move to and from memory. `error` is the relative error bar.
    `format` is that of its arithmetic on tensor cores (a dtype, empty: none); a product is cut into
    `tiles`, one per SM at a time (0: no product), on `sms` of them (0: all). `computed` is the share
    of the flops that kernels compute: attention leaves out what its mask hides.
    """

    durations: tuple[int, ...]
    cls: str
    provenance: str
    _: KW_ONLY
    flops: float
    bytes: float
    error: float | None = None
    format: str = ""
    tiles: int = 0
    sms: int = 0
    computed: float = 1.0


@dataclass(frozen=True)
class L2State:
    """L2 as an operator finds it (stub/rank/memory/l2.c)."""

    hits: float
    """Share of the operator's operands that it holds."""
    written: float = 1.0
    """Written share of the bytes that the operator displaces, of the most that can be."""


class CostModel(Protocol):
    """Prices operators and bare kernels; one instance per simulated GPU model."""

    def operator(
        self, signature: OperatorSignature, kernels: tuple[KernelLaunch, ...], l2: L2State | None = None
    ) -> Price:
        """Price of an operator's kernels together. `l2` is None where it is unknown."""

    def kernel(self, kernel: KernelLaunch) -> Price:
        """A kernel launched outside any operator (a driver launch, a user's extension)."""
        ...

    def covered(self, kernel: KernelLaunch) -> Price:
        """A kernel that an operator launched after it had waited: its work is in the price of the first ones."""
        ...

    def copy(self, kind: str, size: int) -> Price:
        """`kind` is a lower-case member of ``wire.layout.Copy``; `size` in bytes."""
        ...

    def memset(self, size: int) -> Price:
        """Price of setting `size` bytes."""


def scale_to(durations: tuple[int, ...], ns: float) -> tuple[int, ...]:
    """`durations` (ns) in the same proportions with the sum `ns`, each at least 1 ns."""
    factor = ns / max(1, sum(durations))
    return tuple(max(1, round(duration * factor)) for duration in durations)
