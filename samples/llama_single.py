"""Trains a small Llama-style decoder on one GPU, without torch.distributed.

python samples/llama_single.py --amp
"""

from __future__ import annotations

import argparse

import torch

from llama import Llama, add_arguments, cross_entropy, random_batch, shape_of, train


def main() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser, dim=2048, layers=12, heads=16, kv_heads=8, ffn=8192, seq=2048, batch=4)
    parser.add_argument("--amp", action="store_true", help="fp32 parameters under fp16 autocast with a loss scaler")
    args = parser.parse_args()
    shape = shape_of(args)
    device = torch.device("cuda")
    torch.manual_seed(1234)

    with device:
        model = Llama(shape)
    model.init_weights()
    if not args.amp:
        model.to(torch.bfloat16)
    scaler = torch.amp.GradScaler("cuda", enabled=args.amp)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def step() -> torch.Tensor:
        tokens, labels = random_batch(shape, args.batch, device)
        with torch.autocast("cuda", torch.float16, enabled=args.amp):
            logits = model(tokens)
        loss = cross_entropy(logits, labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    train(step, shape, args.steps, args.warmup, args.batch * shape.seq, 1, True)


if __name__ == "__main__":
    main()
