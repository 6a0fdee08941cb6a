"""A GPU's achievable speeds: what every kernel model is built from. Times are float ns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from phantora.hardware.types import Calibration, Gpu

REFERENCE_FLOPS_PER_CLOCK = 2048  # bf16 per SM and clock of mma.sync on sm_80 and sm_90
# The format in which a dtype is multiplied, by the first prefix that fits.
FORMATS = (
    ("float4", "float4"),
    ("float8", "float8"),
    ("float16", "float16"),
    ("complex32", "float16"),
    ("bfloat16", "bfloat16"),
    ("tfloat32", "tfloat32"),
    ("float32", "float32"),
    ("complex64", "float32"),
    ("float64", "float64"),
    ("double", "float64"),
    ("complex128", "float64"),
    ("int8", "int8"),
    ("uint8", "int8"),
    ("qint8", "int8"),
    ("quint8", "int8"),
    ("int4", "int8"),
    ("uint4", "int8"),
    ("int", "float32"),
    ("uint", "float32"),
    ("bool", "float32"),
)
# What a GPU without a format uses instead.
WIDER = {"float4": "float8", "float8": "bfloat16", "int8": "bfloat16", "tfloat32": "float32"}


def format_of(dtype: str) -> str:
    """The format in which `dtype` is multiplied. Raises ValueError for a dtype that no format is known for."""
    for prefix, format in FORMATS:
        if dtype.startswith(prefix):
            return format
    raise ValueError(f"no arithmetic is known of the dtype {dtype!r}")


@dataclass(frozen=True, eq=False)  # compared and hashed by identity: a key of caches
class Machine:
    """`gpu` with the derived rates in bytes/ns and FLOP/ns."""

    gpu: Gpu

    @property
    def fit(self) -> Calibration:
        """The GPU's calibration: what its kernels reach of its peak."""
        return self.gpu.calibration

    @property
    def launch_ns(self) -> float:
        """The part of a kernel's time that is not its work."""
        return self.gpu.launch_ns or self.fit.floor_ns

    @cached_property
    def stream_rate(self) -> float:
        """Bytes/ns of a vectorised kernel out of memory."""
        return self.gpu.hbm_bandwidth * self.fit.hbm / 1e9

    @cached_property
    def cache_rate(self) -> float:
        """Bytes/ns of hits in L2. Scales with the SMs and their clock."""
        return self.gpu.hbm_bandwidth * self.fit.l2 / 1e9

    @cached_property
    def reach(self) -> float:
        """Bytes that are still in L2 when the next kernel asks for them."""
        return self.gpu.l2_bytes * self.fit.l2_reach

    def peak(self, dtype: str) -> float:
        """Dense FLOP/ns of a dtype; in the next wider format where the GPU has none for it.

        Raises ValueError for a dtype that no format is known for."""
        peaks, format = self.gpu.peak_flops, format_of(dtype)
        while format not in peaks:
            format = WIDER[format]
        return peaks[format] / 1e9

    def memory_ns(self, moved: float, share: float = 1.0) -> float:
        """Moving `moved` bytes at `share` of a vectorised stream's speed, floor included.

        Small working sets come out of L2. Beyond its reach, the part that a least-recently-used cache
        still holds shrinks until nothing of it is left at three times the reach.
        """
        misses = self.misses(moved)
        return self.fit.floor_ns + ((moved - misses) / self.cache_rate + misses / self.stream_rate) / share

    def misses(self, moved: float) -> float:
        """The part of `moved` bytes that comes from memory."""
        return moved - min(moved, self.reach, max(0.0, (3.0 * self.reach - moved) / 2.0))

    def cycles_ns(self, cycles: float) -> float:
        """`cycles` of work in all, spread over the SMs."""
        return cycles / (self.gpu.sms * self.gpu.reference_clock / 1e9)

    def index_ns(self, elements: float, moved: float) -> float:
        """Kernels that compute an index (or a cast) per element: bound by the SMs' issue slots."""
        return self.fit.floor_ns + self.cycles_ns(elements * self.fit.element_cycles + moved * self.fit.byte_cycles)

    @cached_property
    def clock_ratio(self) -> float:
        """This GPU's SM speed in mma.sync attention, relative to the calibrated one."""
        per_clock = self.gpu.peak_flops["bfloat16"] / (self.gpu.sms * self.gpu.reference_clock)
        return min(1.0, per_clock / REFERENCE_FLOPS_PER_CLOCK) * self.gpu.reference_clock / self.gpu.calibrated_clock
