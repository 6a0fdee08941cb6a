"""The files of PyTorch's tests that are run, on how many simulated GPUs; names that torch has changed since."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Suite:
    """Files below `test/` of PyTorch's sources that belong together."""

    name: str
    gpus: int
    files: tuple[str, ...]


FSDP = "distributed/_composable/fsdp/test_fully_shard_"
PIPELINING = "distributed/pipelining/test_"
CHECKPOINT = "distributed/checkpoint/test_"

SUITES = (
    Suite("cuda", 1, ("test_cuda.py",)),
    Suite("c10d operations", 2, ("distributed/test_c10d_ops_nccl.py",)),
    Suite("c10d", 2, ("distributed/test_c10d_nccl.py",)),
    Suite("FSDP2", 2, tuple(f"{FSDP}{part}.py" for part in ("overlap", "memory", "comm", "init", "state", "frozen"))),
    Suite("pipelining", 2, (f"{PIPELINING}stage.py", f"{PIPELINING}schedule_multiproc.py")),
    Suite("tensor parallel", 4, ("distributed/tensor/parallel/test_tp_examples.py",)),
    Suite("symmetric memory", 2, ("distributed/test_symmetric_memory.py",)),
    Suite("checkpoint", 2, (f"{CHECKPOINT}file_system_checkpoint.py", f"{CHECKPOINT}hsdp_checkpoint.py")),
)

RENAMED = {
    "(MultiProcContinousTest):\n":
        '(MultiProcContinuousTest):\n    device = property(lambda self: torch.device("cuda", self.rank))\n',
    '        cls.device = torch.device(f"cuda:{dev_id}")\n': "",  # now a worker makes no class ready
    "MultiProcContinousTest": "MultiProcContinuousTest",
}  # fmt: skip
"""What changed of torch's own test helpers (they ship with torch) since the release of the tests, in this order."""
