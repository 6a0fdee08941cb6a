"""Trains a small GPT with Lightning on random tokens; DDP, FSDP or DeepSpeed by a flag.

torchrun --nproc-per-node 4 samples/lightning/gpt.py --strategy ddp
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class RandomTokens(Dataset[torch.Tensor]):
    def __init__(self, count: int, vocab: int, seq: int) -> None:
        self.tokens = torch.randint(0, vocab, (count, seq), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.tokens[index]


class GPT(L.LightningModule):
    def __init__(self, vocab: int, width: int, layers: int, seq: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(seq, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, width // 64, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        self.begin = 0.0

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        seq = tokens.shape[1]
        x = self.tokens(tokens) + self.positions(torch.arange(seq, device=tokens.device))
        mask = nn.Transformer.generate_square_subsequent_mask(seq, device=tokens.device, dtype=x.dtype)
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        loss = F.cross_entropy(self(batch)[:, :-1].flatten(0, 1).float(), batch[:, 1:].flatten())
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def on_train_batch_start(self, *_: Any) -> None:
        self.begin = time.perf_counter()

    def on_train_batch_end(self, *_: Any) -> None:
        torch.cuda.synchronize()
        self.log("step_ms", 1e3 * (time.perf_counter() - self.begin), prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-4)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--strategy", choices=["ddp", "fsdp", "deepspeed_stage_2"], default="ddp")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()

    world = int(os.environ["WORLD_SIZE"])
    nodes = world // int(os.environ["LOCAL_WORLD_SIZE"])
    L.seed_everything(1234, verbose=False)
    vocab = 50304
    data = DataLoader(RandomTokens(args.steps * args.batch * world, vocab, args.seq), args.batch)
    trainer = L.Trainer(
        max_steps=args.steps,
        devices=world // nodes,
        num_nodes=nodes,
        strategy=args.strategy,
        precision="bf16-mixed",
        logger=False,
        enable_checkpointing=False,
        gradient_clip_val=None if args.strategy == "fsdp" else 1.0,
        profiler="simple",
        enable_model_summary=False,
    )
    trainer.fit(GPT(vocab, args.width, args.layers, args.seq), data)


if __name__ == "__main__":
    main()
