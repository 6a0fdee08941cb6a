"""GRPO on a small decoder: generate, score, train and send the weights, all ranks in each phase or in two roles.

torchrun --nproc-per-node 2 samples/grpo.py --generators 1
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.profiler import record_function
from torch.nn import functional

END = 1  # the token that ends a completion


class Decoder(nn.Module):
    """A decoder without a cache of keys and values: each token reads the whole sequence again."""

    def __init__(self, vocabulary: int, dim: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, max(1, dim // 64), 4 * dim, 0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(dim, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits (batch, length, vocabulary) of tokens (batch, length)."""
        hidden = self.embedding(tokens)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], tokens.device, hidden.dtype)
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask, is_causal=True)
        return self.head(hidden)


@torch.no_grad()
def generate(model: Decoder, prompts: torch.Tensor, longest: int) -> torch.Tensor:
    """Completions (batch, longest), padded with END."""
    tokens, done = prompts, torch.zeros(len(prompts), dtype=torch.bool, device=prompts.device)
    for _ in range(longest):
        chosen = torch.multinomial(functional.softmax(model(tokens)[:, -1].float(), -1), 1)[:, 0]
        chosen = torch.where(done, END, chosen)
        tokens = torch.cat([tokens, chosen[:, None]], 1)
        done = done | (chosen == END)
        if bool(done.all()):
            break
    completions = tokens[:, prompts.shape[1] :]
    return functional.pad(completions, (0, longest - completions.shape[1]), value=END)


def log_probabilities(model: Decoder, tokens: torch.Tensor, begin: int) -> torch.Tensor:
    """Log-probabilities of the tokens from position `begin` on."""
    logits = model(tokens)[:, begin - 1 : -1]
    return -functional.cross_entropy(logits.transpose(1, 2), tokens[:, begin:], reduction="none")


def update(model: nn.Module, old: torch.Tensor, tokens: torch.Tensor, begin: int, advantages: torch.Tensor) -> None:
    """The clipped loss of GRPO, and its gradients."""
    ratio = (log_probabilities(model, tokens, begin) - old).exp()
    clipped = ratio.clamp(0.8, 1.2)
    (-torch.minimum(ratio * advantages[:, None], clipped * advantages[:, None])).mean().backward()


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (
        ("dim", 1024),
        ("layers", 8),
        ("vocabulary", 32000),
        ("prompts", 8),
        ("group", 4),
        ("prompt", 128),
        ("completion", 64),
        ("steps", 4),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--generators", type=int, default=0, help="ranks that only generate; 0: all do all")
    args = parser.parse_args()  # prompts: of a step, all ranks together
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl")
    rank, world, apart = dist.get_rank(), dist.get_world_size(), args.generators
    generators = apart or world
    if args.prompts % generators:
        parser.error(f"--prompts {args.prompts} do not divide among {generators} generators")
    trainers = dist.new_group(list(range(apart, world)))
    torch.manual_seed(1234)
    with torch.device("cuda"):
        model, reference = (Decoder(args.vocabulary, args.dim, args.layers).bfloat16() for _ in range(2))
    trains, generates = rank >= apart, not apart or rank < apart
    wrapped = nn.parallel.DistributedDataParallel(model, process_group=trainers) if trains else None
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)

    def step() -> None:
        prompts = torch.randint(2, args.vocabulary, (args.prompts // generators, args.prompt), device="cuda")
        prompts = prompts.repeat_interleave(args.group, 0)
        tokens = functional.pad(prompts, (0, args.completion), value=END)
        if generates:
            with record_function("generate"):
                tokens = torch.cat([prompts, generate(model, prompts, args.completion)], 1)
        if apart:  # each generator sends its part to all
            with record_function("generate: send"):
                parts = [tokens if part == rank else torch.empty_like(tokens) for part in range(apart)]
                for part, sent in enumerate(parts):
                    dist.broadcast(sent, part)
                tokens = torch.cat(parts)
        if wrapped is not None:
            with record_function("score"), torch.no_grad():
                rewards = (tokens[:, args.prompt :] != END).sum(1).float().view(-1, args.group)
                advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
                mine = slice(rank - apart, None, world - apart) if apart else slice(None)
                tokens, advantages = tokens[mine], advantages.flatten()[mine]
                old, _ = (log_probabilities(each, tokens, args.prompt) for each in (model, reference))
            with record_function("train"):
                update(wrapped, old, tokens, args.prompt, advantages)
                optimizer.step()
                optimizer.zero_grad()
        if apart:
            with record_function("sync_weights"):
                for parameter in model.parameters():
                    dist.broadcast(parameter.data, apart)

    for _ in range(args.steps):
        with record_function("step"):
            step()
    torch.cuda.synchronize()
    if rank == 0:
        print(f"peak memory {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
