"""Environment variables of CUDA, its libraries and torch: which change what is simulated, and which do not.

Those of NCCL are read by :mod:`phantora.sim.collectives.environment`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

TORCH_READS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING", "TORCH_NCCL_")
"""Beginnings of the names that torch reads itself. torch is the real one, so it does what they say."""

NOT_SIMULATED = {
    "CUDA_LAUNCH_BLOCKING": "launches do not wait for their kernels",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "kernels use all SMs of a GPU",
    "CUDA_SCALE_LAUNCH_QUEUES": "a stream takes 1,024 launches ahead of its GPU",
    "CUDA_MODULE_LOADING": "kernels take memory and time when they are first used, as with LAZY",
    "CUBLAS_WORKSPACE_CONFIG": "torch allocates the workspace that it gives; products keep their algorithms",
    "CUBLASLT_WORKSPACE_SIZE": "torch allocates the workspace that it gives; products keep their algorithms",
    "NVIDIA_TF32_OVERRIDE": "products have the precision that the program asks for",
    "MKL_NUM_THREADS": "work of the CPU takes the time of the host's model",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "the heartbeat of NCCL's watchdog goes by real time",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "the hang's diagnosis takes its place",
}
"""Variables that would change a real run, and what happens here instead."""

THREADS = "OMP_NUM_THREADS"
"""Threads of a rank for operators on CPU tensors."""
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
"""1 is simulated: all streams share a hardware queue. With other numbers streams share none."""


@dataclass(frozen=True)
class Variables:
    """The part of the environment that changes a run."""

    simulated: Mapping[str, str] = field(default_factory=dict)
    """Name to value."""
    ignored: Mapping[str, str] = field(default_factory=dict)
    """Name to what happens instead."""

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Variables:
        """Reads the environment that the ranks inherit."""
        simulated: dict[str, str] = {}
        ignored: dict[str, str] = {}
        for name, value in sorted(environment.items()):
            if not value:
                continue
            if name in NOT_SIMULATED:
                ignored[name] = NOT_SIMULATED[name]
            elif name == CONNECTIONS and value != "1":
                ignored[name] = "streams share no hardware queue; only 1 is simulated"
            elif name in (CONNECTIONS, THREADS) or name.startswith(TORCH_READS):
                simulated[name] = value
        return cls(simulated, ignored)
