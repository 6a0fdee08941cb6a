"""TorchTitan's norms as they were in 2024: made of operators in float32, where nn.RMSNorm is one kernel today.

--experimental.custom_import composed_norms --model.flavor 8B-2layers

Has the flavors of `layers` too. For comparison with uncompiled runs of 2024.
"""

from __future__ import annotations

import layers  # noqa: F401  # adds flavors
import torch
import torch.nn as nn


def composed(self: nn.RMSNorm, x: torch.Tensor) -> torch.Tensor:
    """Replacement of nn.RMSNorm.forward."""
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + (self.eps or torch.finfo(x.dtype).eps))
    return (wide * scale).type_as(x) * self.weight


nn.RMSNorm.forward = composed  # type: ignore[method-assign]
