"""The files of tests that are run, on how many simulated GPUs; names that torch has changed since."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

TORCH_MODULES = ("torch.distributed.fsdp", "torch.distributed.tensor.parallel", "torch._dynamo")
# Not torch's test helpers: they ask for GPUs, and torch then refuses to be forked.


@dataclass(frozen=True)
class Suite:
    """Files of a project's sources (PyTorch's: below `test/`) that belong together; of TorchTitan the names of lists,
    whose flavors have GPUs of their own."""

    name: str
    gpus: int
    files: tuple[str, ...]
    project: str = "pytorch"
    ranks: bool = False
    """Each rank runs pytest; else a process without a GPU does, whose children are ranks."""
    together: bool = False
    """All classes of a file run in the same processes."""
    marked: str = ""
    """pytest's -m"""
    preload: tuple[str, ...] = TORCH_MODULES
    """Imports of the server of `--fork`."""


# fmt: off
PROJECTS = {
    "pytorch": "test", "torchtitan": "tests/integration_tests", "deepspeed": "tests/unit",
    "megatron": "tests/unit_tests",
}
# fmt: on
"""Projects, with the folder of their tests."""


def deepspeed(name: str, gpus: int, folder: str, tests: str) -> Suite:
    """Files of a folder of DeepSpeed's: processes of its tests are ranks, for which a server imports DeepSpeed once."""
    files = tuple(f"tests/unit/{folder}/test_{test}.py" for test in tests.split())
    return Suite(name, gpus, files, "deepspeed", together=True, marked="not nightly", preload=("deepspeed",))


def megatron(name: str, folder: str, tests: str) -> Suite:
    """Files of a folder of Megatron-Core's, on 8 ranks that run pytest side by side."""
    files = tuple(str(Path("tests/unit_tests", folder, f"test_{test}.py")) for test in tests.split())
    return Suite(name, 8, files, "megatron", ranks=True, together=True, marked="not experimental and not flaky")


FSDP = "distributed/_composable/fsdp/test_fully_shard_"
PIPELINING = "distributed/pipelining/test_"
ZERO, TENSORS = "runtime/zero", "tensor_parallel"
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
    Suite("flavors", 8, ("features", "models", "h100"), "torchtitan"),
    deepspeed("comm", 4, "comm", "dist"),
    deepspeed("zero", 2, ZERO, "ignore_unused_parameters unwrap_model zero_allreduce_fetch_params zero_leaf_module"),
    deepspeed("half precision", 2, "runtime/half_precision", "dynamic_loss_scale zero_optim_overflow"),
    deepspeed("files", 2, "checkpoint", "latest_checkpoint tag_validation"),
    deepspeed("pipe", 2, "pipe", "pipe_module"),
    deepspeed("topology", 4, "runtime/pipe", "topology"),
    megatron("tensors", TENSORS, "mappings layers cross_entropy data random initialization tensor_parallel_utils"),
    megatron("gradients", "distributed", "finalize_model_grads reduce_scatter_with_fp32_accumulation"),
    megatron("buffers", "distributed", "param_and_grad_buffer"),
    megatron("schedules", "pipeline_parallel", "schedules"),
    megatron("sharded files", "dist_checkpointing", "mapping torch_dist"),
    megatron("groups", ".", "parallel_state"),
)

# fmt: off
RENAMED = {
    "(MultiProcContinousTest):\n":
        '(MultiProcContinuousTest):\n    device = property(lambda self: torch.device("cuda", self.rank))\n',
    '        cls.device = torch.device(f"cuda:{dev_id}")\n': "",  # now a worker makes no class ready
    "MultiProcContinousTest": "MultiProcContinuousTest",
}
# fmt: on
"""Changes of torch's own test helpers (they ship with torch) after the release of the tests, in this order."""
