"""DeepSpeed's compiled optimizers: FusedAdam on the GPU, DeepSpeedCPUAdam on the host.

From PyPI they come as source and are compiled at their first use, which takes a whole CUDA toolkit.
Here torch's fused kernel, which reads and writes the same bytes, stands in for the first; the second
passes its time and leaves its tensors as they are (docs/values.md: what large tensors hold is zero).
"""

from __future__ import annotations

import ctypes
import os
from types import ModuleType
from typing import Any

import numpy as np

from phantora.rank.assume import host_threads
from phantora.rank.routing import Routing
from phantora.rank.shims import Shim
from phantora.rank.shims.values import write

CPU_ADAM_BYTES = 28
"""Bytes of the host's memory that the update of a parameter reads and writes: the parameter, its gradient and both
averages in float32. The paper of ZeRO-Offload (arXiv 2101.06840, table 4) has 10e9 parameters in 2.57 s on a DGX-2:
109 GB/s, most of what the memory of its two sockets moves."""

_steps: dict[Any, Any] = {}  # device -> the step number that torch's kernel wants in its memory


class _FusedAdam:
    """The extension ``fused_adam``."""

    @staticmethod
    def multi_tensor_adam(
        _chunk: int,
        _overflow: Any,
        tensors: list[list[Any]],
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        step: int,
        decoupled: int,
        _bias_correction: int,
        weight_decay: float,
    ) -> None:
        import torch

        gradients, parameters, averages, squares = tensors
        device = gradients[0].device
        if device not in _steps:
            _steps[device] = torch.zeros((), device=device)
        write(_steps[device], np.array([step]))
        update = torch._fused_adamw_ if decoupled else torch._fused_adam_
        update(
            parameters,
            gradients,
            averages,
            squares,
            [],
            [_steps[device]] * len(parameters),
            lr=lr,
            beta1=beta1,
            beta2=beta2,
            weight_decay=weight_decay,
            eps=eps,
            amsgrad=False,
            maximize=False,
        )


class _CPUAdam:
    """The extension ``cpu_adam``."""

    @staticmethod
    def create_adam(*_: Any) -> int:
        return 0

    @staticmethod
    def destroy_adam(*_: Any) -> int:
        return 0

    @staticmethod
    def adam_update(*arguments: Any) -> int:
        charge = ctypes.CDLL(None).ph_charge_memory
        charge.argtypes, charge.restype = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int], None
        charge(arguments[8].numel() * CPU_ADAM_BYTES, 0, host_threads()[0])
        return 0


def _load_fused(module: ModuleType, _: Routing) -> None:
    module.FusedAdamBuilder._loaded_ops["fused_adam"] = _FusedAdam


def _load_cpu(module: ModuleType, _: Routing) -> None:
    module.CPUAdamBuilder._loaded_ops["cpu_adam"] = _CPUAdam


def _silence_ranges(_: ModuleType, __: Routing) -> None:
    """DeepSpeed sets an NVTX range around each of its functions: tens of thousands of rows in a short run."""
    ctypes.CDLL(os.environ["NVTX_INJECTION64_PATH"]).phantora_silence_ranges()


REMEDY = 'add "torch_adam": true to the parameters of its optimizer'
FUSED_ADAM = Shim(
    "deepspeed",
    ("0.19",),
    "deepspeed.ops.adam.fused_adam",
    guarded="FusedAdam.__init__",
    apply=_load_fused,
    does="loads FusedAdam",
    remedy=REMEDY,
    routes=False,
)
CPU_ADAM = Shim(
    "deepspeed",
    ("0.19",),
    "deepspeed.ops.adam.cpu_adam",
    guarded="DeepSpeedCPUAdam.__init__",
    apply=_load_cpu,
    does="loads DeepSpeedCPUAdam",
    remedy=f'{REMEDY} and "zero_force_ds_cpu_optimizer": false',
    routes=False,
)
RANGES = Shim(
    "deepspeed",
    (),
    "deepspeed.utils.nvtx",
    guarded="instrument_w_nvtx",
    apply=_silence_ranges,
    does="marks its functions",
    routes=False,
)
