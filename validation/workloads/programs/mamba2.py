"""Steps of a Mamba 2 language model of 1.3B on one GPU, with mamba-ssm's Triton kernels: state-spaces/mamba issue 904.

    phantora trace --cluster 1x1xGB200 validation/workloads/programs/mamba2.py LAYERS

A step is affine in its layers, of which the model has 48. It needs the Python halves of mamba-ssm and causal-conv1d
(docs/howto/extensions-without-nvcc.md).
"""

import sys
import time
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F

found = find_spec("mamba_ssm")
assert found is not None and found.submodule_search_locations, "mamba-ssm is not installed"
package = ModuleType("mamba_ssm")  # its own imports models, which need further packages
package.__path__ = list(found.submodule_search_locations)
sys.modules["mamba_ssm"] = package

from mamba_ssm.modules.block import Block  # noqa: E402
from mamba_ssm.modules.mamba2 import Mamba2  # noqa: E402
from mamba_ssm.ops.triton.layer_norm import RMSNorm  # noqa: E402

WIDTH, WORDS, BATCH, TOKENS = 2048, 50288, 4, 4096


class Model(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(
            Block(
                WIDTH, lambda width, index=index: Mamba2(width, d_state=128, headdim=64, layer_idx=index),
                lambda _: nn.Identity(), norm_cls=RMSNorm, fused_add_norm=True, residual_in_fp32=True,
            )
            for index in range(layers)
        )
        self.norm = RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.embedding(words)
        rest: Any = None
        for block in self.blocks:
            made, rest = block(made, rest)
        out: torch.Tensor = self.head(self.norm(made + rest.to(made.dtype)))
        return out


def main() -> None:
    model = Model(int(sys.argv[1])).cuda().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    words = torch.randint(0, WORDS, (BATCH, TOKENS), device="cuda")
    for _ in range(3):
        torch.cuda.synchronize()
        start = time.time()
        F.cross_entropy(model(words).view(-1, WORDS), words.view(-1)).backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        print(f"step {1e3 * (time.time() - start):.2f} ms", flush=True)


main()
