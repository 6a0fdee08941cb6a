"""Lets asynchronous tensor parallelism fuse: torch 2.11's Inductor does so in groups that are registered for symmetric
memory, and TorchTitan 0.2.2 registers none. On real GPUs as well:

--experimental.custom_import async_tp --compile.enable --parallelism.enable_async_tensor_parallel

It adds the flavors of `layers` too.
"""

from __future__ import annotations

import warnings
from typing import Any

import layers  # noqa: F401
from torch.distributed._symmetric_memory import enable_symm_mem_for_group
from torchtitan.distributed import ParallelDims

build = ParallelDims.build_mesh


def build_and_register(dims: ParallelDims) -> Any:
    world = build(dims)
    tensor = dims.get_optional_mesh("tp")
    if tensor is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            enable_symm_mem_for_group(tensor.get_group().group_name)
    return world


ParallelDims.build_mesh = build_and_register
