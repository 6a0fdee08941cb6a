"""Runs with CUDA graphs, small (a launch counts) and large (kernels count), made to judge predictions. JSON lines.

    python -m validation.workloads.graphs_holdout --which captured_small [--iters N]    # one run, real or under phantora trace
    python -m validation.workloads.graphs_holdout --all DIR [--budget S]                # runs: DIR/graphs_holdout.jsonl

`--kernels FILE` adds a line with the kernels of one more step: [name, start, duration] in ns. `--all` writes
DIR/graphs_kernels.jsonl. `--all` starts each run in a process of its own and starts none after the budget. Decoding needs transformers.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

from validation.gpu_work import profiled
from validation.workloads.host_runs import Language, Step, trained, words
from validation.workloads.timing import row_of, timed

WARM = 5


def loss_of(model: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> Callable[[], torch.Tensor]:
    return lambda: F.cross_entropy(model(x).float().flatten(0, 1), y.flatten())


def reduce_overhead(width: int, layers: int, batch: int, seq: int) -> Step:
    """A GPT's step, its model compiled in reduce-overhead mode."""
    torch.set_float32_matmul_precision("high")
    model = Language(width, layers, width // 64, llama=False).to("cuda", torch.bfloat16)
    return trained(model, loss_of(torch.compile(model, mode="reduce-overhead"), words(batch, seq), words(batch, seq)))


class Dropped(nn.Module):
    """A Llama with dropout behind its words and before its head: random numbers drawn inside of the graph."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.body = Language(width, layers, width // 64)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.body.blocks(F.dropout(self.body.words(ids), 0.1))
        return self.body.head(F.dropout(self.body.norm(x), 0.1))


def whole(step: Step) -> Step:
    """A step captured whole, after three on the stream that captures."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    return graph.replay


def captured(width: int, layers: int, batch: int, seq: int) -> Step:
    """Forward, backward and a capturable AdamW in one graph; new tokens are copied into place before each replay."""
    model = Dropped(width, layers).to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True, capturable=True)
    x, y = words(batch, seq), words(batch, seq)
    fresh = words(batch, seq).cpu().pin_memory()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss_of(model, x, y)().backward()
        optimizer.step()

    replay = whole(step)

    def turn() -> None:
        x.copy_(fresh, non_blocking=True)
        replay()

    return turn


def captured_image(batch: int) -> Step:
    """ResNet-50's training step in one graph, channels last, under autocast without its cache."""
    import torchvision.models as models

    model = models.resnet50(weights=None).cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    x = torch.randn(batch, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    y = torch.randint(1000, (batch,), device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    return whole(step)


def callables(width: int, layers: int, batch: int, seq: int) -> Step:
    """The blocks as graphed callables; words, head, loss and optimizer eager."""
    model = Language(width, layers, width // 64).to("cuda", torch.bfloat16)
    sample = torch.randn(batch, seq, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    model.blocks = torch.cuda.make_graphed_callables(model.blocks, (sample,))  # type: ignore[assignment]
    return trained(model, loss_of(model, words(batch, seq), words(batch, seq)))


def decoding(width: int, layers: int, batch: int, places: int) -> Step:
    """One token with a static cache, the forward pass compiled in reduce-overhead mode, the next token chosen outside."""
    from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

    config = LlamaConfig(
        hidden_size=width, intermediate_size=11 * width // 4, num_hidden_layers=layers, num_attention_heads=width // 128,
        num_key_value_heads=width // 512, vocab_size=32000, max_position_embeddings=2 * places,
    )
    model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
    cache = StaticCache(config=config, max_cache_len=places)
    cache.early_initialization(batch, width // 512, 128, torch.bfloat16, torch.device("cuda"))  # inside, it would lie in the graph's pool
    forward = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)
    token, place = words(batch, 1), torch.full((batch, 1), places // 2, device="cuda")

    @torch.no_grad()
    def step() -> None:
        logits = forward(input_ids=token, past_key_values=cache, position_ids=place, use_cache=True).logits
        token.copy_(logits[:, -1].argmax(-1, keepdim=True))

    return step


RUNS: dict[str, Callable[[], Step]] = {
    "captured_small": lambda: captured(512, 6, 2, 256),
    "captured_large": lambda: captured(2048, 6, 4, 2048),
    "callables_small": lambda: callables(512, 6, 2, 256),
    "callables_large": lambda: callables(2048, 6, 4, 2048),
    "captured_resnet_small": lambda: captured_image(4),
    "captured_resnet_large": lambda: captured_image(128),
    "decode_small": lambda: decoding(1024, 4, 1, 512),
    "decode_large": lambda: decoding(4096, 4, 16, 2048),
    "reduce_small": lambda: reduce_overhead(512, 3, 2, 256),
    "reduce_large": lambda: reduce_overhead(2048, 3, 4, 2048),
}


def kernels_of(step: Step) -> list[tuple[str, int, int]]:
    """The kernels of a step: name, start and duration in ns, in order."""
    return sorted(((e.name(), e.start_ns(), e.duration_ns()) for e in profiled(step)), key=lambda row: row[1])


def run(which: str, iters: int, kernels: Path | None) -> None:
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.manual_seed(0)
    step = RUNS[which]()
    times = timed(step, WARM, iters)
    about = {"name": "graphs_holdout", "world_size": 1, "config": {"which": which}}
    print(json.dumps(row_of(f"graphs_{which}", times, **about)), flush=True)
    if kernels:
        with kernels.open("a") as file:
            print(json.dumps({"run_id": f"graphs_{which}", "kernels": kernels_of(step)}), file=file)


def run_all(folder: Path, only: list[str], iters: int, budget: float) -> None:
    began = time.perf_counter()
    with (folder / "graphs_holdout.jsonl").open("w") as file:
        for which in only or RUNS:
            if time.perf_counter() - began > budget:
                row: dict[str, object] = {"name": "skipped", "which": which, "why": "the budget is spent"}
                print(json.dumps(row), file=file)
                continue
            command = [sys.executable, __file__, "--which", which, "--iters", str(iters)]
            command += ["--kernels", str(folder / "graphs_kernels.jsonl")]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
            row = json.loads(lines[-1]) if done.returncode == 0 and lines else {"name": "failed", "which": which, "why": done.stderr[-800:]}
            print(json.dumps(row | {"elapsed_s": time.perf_counter() - began}), file=file, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--which", choices=RUNS)
    chosen.add_argument("--all", type=Path, metavar="DIR")
    parser.add_argument("--only", nargs="*", choices=RUNS, default=[], metavar="RUN", help="of --all, in this order")
    parser.add_argument("--iters", type=int, default=15)
    parser.add_argument("--budget", type=float, default=90.0, help="seconds after which no run is started")
    parser.add_argument("--kernels", type=Path, metavar="FILE")
    args = parser.parse_args()
    if args.which:
        run(args.which, args.iters, args.kernels)
    else:
        run_all(args.all, args.only, args.iters, args.budget)


if __name__ == "__main__":
    main()
