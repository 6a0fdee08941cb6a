"""CUDA graphs on a real GPU: what a launch costs, gaps between kernels, whole steps. JSON lines, under two minutes.

    python -m validation.probes.graphs > graphs.jsonl                                      # on a GPU
    phantora trace --cluster 1x1xH100 -m validation.probes.graphs > simulated.jsonl        # simulated

Each row has a `name`. Times are medians: `host_us` of the calling thread, `gpu_us` between two events, `step_ms` of a
whole step with the GPU waited for. Memory is in MiB. With $OUT set the rows go to $OUT/graphs.jsonl too.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F

DEVICE = "cuda"
MIB = 1 << 20
ROWS: list[dict[str, object]] = []


def row(name: str, **values: object) -> None:
    """Prints one measurement."""
    ROWS.append({"name": name, **values})
    print(json.dumps(ROWS[-1]), flush=True)


def capture(body: Callable[[], object], warm: int = 3) -> torch.cuda.CUDAGraph:
    """A graph of `body`, which runs `warm` times before on the side stream that captures."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warm):
            body()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        body()
    return graph


def host_us(call: Callable[[], object], rounds: int = 41) -> float:
    """Median host time of one call in us, the GPU idle before it."""
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    torch.cuda.synchronize()
    return statistics.median(times) * 1e6


def gpu_us(call: Callable[[], object], rounds: int = 21, ahead: int = 0) -> float:
    """Median time on the GPU in us between events around `call`; `ahead` cycles of spinning let the host run ahead."""
    times = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        if ahead:
            torch.cuda._sleep(ahead)
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times)


def launches() -> None:
    """Host cost of capturing, instantiating and launching graphs, by number of nodes."""
    x = torch.zeros(1, device=DEVICE)
    row("eager_add", host_us=host_us(lambda: x.add_(1)))
    for nodes in (1, 3, 10, 30, 100, 300, 1000, 3000):
        begin = time.perf_counter()
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(graph):
            for _ in range(nodes):
                x.add_(1)
        captured = time.perf_counter()
        graph.instantiate()
        made = time.perf_counter()
        graph.replay()
        first = time.perf_counter()
        torch.cuda.synchronize()
        row(
            "launch",
            nodes=nodes,
            host_us=host_us(graph.replay),
            gpu_us=gpu_us(graph.replay, ahead=200_000),
            gpu_idle_us=gpu_us(graph.replay),
            capture_us=(captured - begin) * 1e6,
            instantiate_us=(made - captured) * 1e6,
            first_us=(first - made) * 1e6,
        )
    tiny = capture(lambda: x.add_(1))

    def burst() -> None:
        for _ in range(20):
            tiny.replay()

    row("burst_of_20", host_us=host_us(burst) / 20, gpu_us=gpu_us(burst, ahead=2_000_000) / 20)
    random = capture(lambda: F.dropout(x, 0.5))
    row("launch_random", host_us=host_us(random.replay), gpu_us=gpu_us(random.replay, ahead=200_000))
    branches = [torch.cuda.Stream() for _ in range(4)]

    def fork(kernels: int) -> Callable[[], None]:
        def body() -> None:
            for stream in branches:
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    for _ in range(kernels):
                        x.add_(1)
            for stream in branches:
                torch.cuda.current_stream().wait_stream(stream)

        return body

    for kernels in (1, 25, 250):
        graph = capture(fork(kernels))
        row("launch_forked", branches=4, nodes=4 * kernels, host_us=host_us(graph.replay), gpu_us=gpu_us(graph.replay, ahead=200_000))


def chains() -> None:
    """Time of one link of a chain of equal kernels: eager behind a full queue, in a graph, and forked in a graph."""
    counts = (20, 220)
    a, b = (torch.randn(1024, 1024, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    c = torch.empty_like(a)
    one, small, mid, large = (torch.zeros(n, device=DEVICE) for n in (1, 1 << 16, 1 << 20, 1 << 24))
    other = torch.empty_like(mid)
    kinds: dict[str, Callable[[], object]] = {
        "add_1": lambda: one.add_(1),
        "add_64Ki": lambda: small.add_(1),
        "add_1Mi": lambda: mid.add_(1),
        "add_16Mi": lambda: large.add_(1),
        "mm_1024": lambda: torch.mm(a, b, out=c),
        "spin_10000": lambda: torch.cuda._sleep(10_000),
        "copy_4MiB": lambda: other.copy_(mid),
        "memset_4MiB": lambda: mid.zero_(),
    }
    side = torch.cuda.Stream()
    for kind, kernel in kinds.items():
        eager, linear, split = [], [], []
        for count in counts:

            def chain(count: int = count, kernel: Callable[[], object] = kernel) -> None:
                for _ in range(count):
                    kernel()

            def ladder(count: int = count, kernel: Callable[[], object] = kernel) -> None:
                for _ in range(count // 2):  # each second kernel on another stream, in turn: every edge crosses streams
                    kernel()
                    side.wait_stream(torch.cuda.current_stream())
                    with torch.cuda.stream(side):
                        kernel()
                    torch.cuda.current_stream().wait_stream(side)

            chain()
            eager.append(gpu_us(chain, rounds=11, ahead=6_000_000))
            linear.append(gpu_us(capture(chain).replay, rounds=11, ahead=200_000))
            split.append(gpu_us(capture(ladder).replay, rounds=11, ahead=200_000))
        per = counts[1] - counts[0]
        row(
            "chain",
            kernel=kind,
            eager_us=(eager[1] - eager[0]) / per,
            graph_us=(linear[1] - linear[0]) / per,
            crossing_us=(split[1] - split[0]) / per,
        )


def parallel() -> None:
    """A fork into branches of spinning kernels that fit next to each other, and its join."""
    for branches in (1, 2, 4, 8):
        streams = [torch.cuda.Stream() for _ in range(branches)]
        times = []
        for kernels in (5, 25):

            def body(streams: list[torch.cuda.Stream] = streams, kernels: int = kernels) -> None:
                for stream in streams:
                    stream.wait_stream(torch.cuda.current_stream())
                    with torch.cuda.stream(stream):
                        for _ in range(kernels):
                            torch.cuda._sleep(20_000)
                for stream in streams:
                    torch.cuda.current_stream().wait_stream(stream)

            times.append(gpu_us(capture(body).replay, rounds=11, ahead=200_000))
        row("forked_spin", branches=branches, total_us_5=times[0], link_us=(times[1] - times[0]) / 20)


def profiled() -> None:
    """Gaps between kernels of a graph and of a full queue as the profiler sees them."""
    x = torch.zeros(1 << 20, device=DEVICE)

    def chain() -> None:
        for _ in range(60):
            x.add_(1)

    graph = capture(chain)
    for name, call in (("eager", chain), ("graph", graph.replay)):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            torch.cuda._sleep(6_000_000)
            call()
            torch.cuda.synchronize()
        spans = sorted(
            (event.time_range.start, event.time_range.end) for event in profile.events() if "elementwise" in event.name
        )
        gaps = [later[0] - sooner[1] for sooner, later in itertools.pairwise(spans)]
        if gaps:
            row("gap", what=name, kernel_us=statistics.median(end - start for start, end in spans), gap_us=statistics.median(gaps))


class Block(nn.Module):
    """A pre-norm transformer block with causal attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(self.before(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.after(x))))


class GPT(nn.Module):
    """A small GPT that returns its loss."""

    def __init__(self, layers: int = 6, width: int = 768, heads: int = 12, vocabulary: int = 16384) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(1024, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def fresh() -> None:
    """Gives back what the allocator contains and forgets its peaks."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def memory() -> dict[str, float]:
    """Peaks of the allocator, and what the device has in use, in MiB."""
    free, total = torch.cuda.mem_get_info()
    return {
        "allocated_mib": torch.cuda.max_memory_allocated() / MIB,
        "reserved_mib": torch.cuda.max_memory_reserved() / MIB,
        "device_mib": (total - free) / MIB,
    }


def timed(name: str, step: Callable[[], object], warm: int = 4, rounds: int = 15, **more: object) -> None:
    """A row with the median time of a step, of its host part and of five steps without a wait between them."""
    for _ in range(warm):
        step()
    hosts, wholes = [], []
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step()
        hosts.append(time.perf_counter() - begin)
        torch.cuda.synchronize()
        wholes.append(time.perf_counter() - begin)
    begin = time.perf_counter()
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    row(
        name,
        step_ms=statistics.median(wholes) * 1e3,
        host_ms=statistics.median(hosts) * 1e3,
        stream_ms=(time.perf_counter() - begin) * 200,
        **more,
        **memory(),
    )


def training(batch: int, length: int) -> None:
    """A GPT's training step: eager, captured whole, graphed callables."""
    shape = {"batch": batch, "length": length}
    ids, labels = (torch.randint(0, 16384, (batch, length), device=DEVICE) for _ in range(2))

    def make(**options: object) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = GPT().to(DEVICE, torch.bfloat16)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=True, **options)  # type: ignore[arg-type]

    def body(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], object]:
        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            model(ids, labels).backward()
            optimizer.step()

        return step

    for kind, options in (("fused", {"fused": True}), ("foreach", {"foreach": True})):
        fresh()
        model, optimizer = make(**options)
        timed(f"eager_{kind}", body(model, optimizer), **shape)
        del model, optimizer
        fresh()
        model, optimizer = make(**options)
        graph = capture(body(model, optimizer))
        timed(f"captured_{kind}", graph.replay, **shape)
        del graph, model, optimizer
    fresh()
    model, optimizer = make(fused=True)
    blocks: Any = model.blocks
    sample = torch.randn(batch, length, 768, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    model.blocks = torch.cuda.make_graphed_callables(blocks, (sample,))  # type: ignore[assignment]
    timed("graphed_callables", body(model, optimizer), **shape)
    del model, optimizer, blocks


def compiled(batch: int, length: int) -> None:
    """A compiled GPT's training step, with and without graphs."""
    ids, labels = (torch.randint(0, 16384, (batch, length), device=DEVICE) for _ in range(2))
    for mode in ("default", "reduce-overhead"):
        fresh()
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = GPT(layers=3).to(DEVICE, torch.bfloat16)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        forward = torch.compile(model, mode=mode)
        begin = time.perf_counter()

        def step(forward: Callable[..., torch.Tensor] = forward, optimizer: torch.optim.Optimizer = optimizer) -> None:
            forward(ids, labels).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        step()
        torch.cuda.synchronize()
        row("compile", mode=mode, seconds=time.perf_counter() - begin)
        timed(f"compiled_{mode}", step, batch=batch, length=length)
        del model, optimizer, forward, step


def decoding() -> None:
    """One token at a time with a static cache: eager, and its forward pass compiled in reduce-overhead mode."""
    try:
        from transformers import LlamaConfig, LlamaForCausalLM, StaticCache
    except ImportError:
        row("decode", skipped="transformers is not installed")
        return
    config = LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=6, num_attention_heads=16, num_key_value_heads=4,
        vocab_size=32000, max_position_embeddings=1024,
    )
    torch._dynamo.reset()
    fresh()
    model = LlamaForCausalLM(config).to(DEVICE, torch.bfloat16).eval()
    cache = StaticCache(config=config, max_cache_len=512, max_batch_size=4, device=DEVICE, dtype=torch.bfloat16)
    token = torch.randint(0, 32000, (4, 1), device=DEVICE)
    place = torch.tensor([100], device=DEVICE)

    def step(forward: Callable[..., object]) -> Callable[[], object]:
        def decode() -> object:
            with torch.no_grad():
                return forward(
                    input_ids=token, past_key_values=cache, cache_position=place, position_ids=place[None], use_cache=True
                )

        return decode

    timed("decode_eager", step(model))
    forward = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)
    begin = time.perf_counter()
    step(forward)()
    torch.cuda.synchronize()
    row("compile", mode="decode", seconds=time.perf_counter() - begin)
    timed("decode_reduce_overhead", step(forward))


def main() -> None:
    torch.backends.cuda.matmul.allow_tf32 = True
    row("machine", gpu=torch.cuda.get_device_name(), torch=torch.__version__, cuda=torch.version.cuda)
    began = time.perf_counter()
    parts: dict[str, Callable[[], object]] = {
        "launches": launches,
        "chains": chains,
        "parallel": parallel,
        "profiled": profiled,
        "training_small": lambda: training(2, 256),
        "training": lambda: training(8, 1024),
        "compiled": lambda: compiled(2, 256),
        "decoding": decoding,
    }
    wanted = sys.argv[1:] or list(parts)
    for name in wanted:
        try:
            parts[name]()
        except Exception as error:  # one part that fails leaves the others
            row(name, failed=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
        row("part", part=name, seconds=time.perf_counter() - began)
    if out := os.environ.get("OUT"):
        Path(out, "graphs.jsonl").write_text("".join(json.dumps(item) + "\n" for item in ROWS))


if __name__ == "__main__":
    main()
