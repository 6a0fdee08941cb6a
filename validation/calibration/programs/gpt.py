"""A small decoder in bf16 autocast, clipped gradients, AdamW."""

import torch
import torch.nn.functional as F

from validation.calibration.programs.blocks import Decoder
from validation.calibration.programs.common import Step, main


def build(layers: int, batch: int, seq: int, dim: int) -> Step:
    model = Decoder(layers, dim, dim // 64).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(0, 8192, (batch, seq + 1), device="cuda")

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


main("gpt", build, {
    "base": dict(layers=8, batch=4, seq=256, dim=512), "deep": dict(layers=20, batch=4, seq=256, dim=512),
    "long": dict(layers=8, batch=2, seq=1024, dim=512), "wide": dict(layers=6, batch=16, seq=128, dim=768),
})
