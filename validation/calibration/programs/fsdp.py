"""FSDP2 by layer in bf16, AdamW, clipped gradients."""

import torch
import torch.nn.functional as F
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from validation.calibration.programs.blocks import Decoder
from validation.calibration.programs.common import Step, main, setup


def build(layers: int, batch: int, seq: int, dim: int) -> Step:
    model = Decoder(layers, dim, dim // 64).cuda()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(0, 8192, (batch, seq + 1), device="cuda")

    def step() -> None:
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


setup()
main("fsdp", build, {
    "base": dict(layers=6, batch=2, seq=256, dim=512), "deep": dict(layers=16, batch=2, seq=256, dim=512),
    "long": dict(layers=6, batch=2, seq=1024, dim=512), "two": dict(layers=8, batch=4, seq=512, dim=768),
})
