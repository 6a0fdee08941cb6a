"""`mamba-ssm` without compiled CUDA code. Its scan is Triton and runs as it is; the convolution is for its time only.

    MAMBA_FORCE_BUILD=TRUE MAMBA_SKIP_CUDA_BUILD=TRUE pip install --no-build-isolation --no-deps mamba-ssm==2.2.6.post3
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch


def _convolved(given: torch.Tensor, *_: Any) -> torch.Tensor:
    """Output for [batch, channels, tokens]: reads and writes each element once."""
    return given * 1.0


def _convolved_back(
    given: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, gradient: torch.Tensor, *rest: Any
) -> tuple[torch.Tensor | None, ...]:
    """Reads input and gradient, writes the input's gradient; those of weight and bias are small."""
    into = torch.add(given, gradient, out=rest[3])
    return into, torch.zeros_like(weight), torch.zeros_like(bias), None


def _stand_in(name: str, **members: Callable[..., Any]) -> None:
    module = ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module


def install() -> None:
    """To call before Megatron-Core's Mamba layers are imported. Raises ModuleNotFoundError without `mamba-ssm`."""
    found = find_spec("mamba_ssm")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("mamba-ssm is not installed; validation/workloads/mamba_parts.py says how to")
    package = ModuleType("mamba_ssm")  # its own imports models, which need further packages
    package.__path__ = list(found.submodule_search_locations)
    sys.modules["mamba_ssm"] = package
    _stand_in("causal_conv1d", causal_conv1d_fn=_convolved, causal_conv1d_update=_convolved)
    _stand_in("causal_conv1d.causal_conv1d_varlen", causal_conv1d_varlen_states=_convolved)
    _stand_in(
        "causal_conv1d.cpp_functions", causal_conv1d_fwd_function=_convolved,
        causal_conv1d_bwd_function=_convolved_back, causal_conv1d_update_function=_convolved,
    )
