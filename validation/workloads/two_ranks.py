"""Training steps of two GPUs as people set them up, from host-bound to GPU-bound. Plain PyTorch; JSON lines of rank 0.

    torchrun --nproc-per-node 2 -m validation.workloads.two_ranks OUT.jsonl [CASE ...]        # real, or under phantora trace
    phantora trace --null --cluster 1x2xH100 -m validation.workloads.two_ranks OUT.jsonl      # its host work without CUDA's calls

A row has each step's time and the CPU time of rank 0's process in it (s), peaks of memory in bytes; a simulated one also
how often a step was charged for what (wire.layout.Api).
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from validation.charges import SIMULATED, counts, since
from validation.workloads.host_runs import Block, Language, Step, language_loss, trained, words
from validation.workloads.timing import row_of

WARM, ITERS = (3, 5) if SIMULATED else (5, 16)
BF16 = torch.bfloat16


def here() -> int:
    return torch.cuda.current_device()


def mesh() -> DeviceMesh:
    return init_device_mesh("cuda", (dist.get_world_size(),))


def parallel(model: nn.Module, **options: Any) -> nn.Module:
    return DistributedDataParallel(model, device_ids=[here()], **options)


# ---------------------------------------------------------------------- data parallel


def ddp_autocast() -> Step:
    """GPT-2 small's shape, short sequences, torch's default optimizer."""
    model = parallel(Language(768, 12, 12, llama=False).cuda())
    return trained(model, language_loss(model, 2, 256), amp=True, clip=True, fused=False)


def ddp_wide() -> Step:
    """Keeps the GPU busy."""
    model = parallel(Language(2048, 10, 16).to("cuda", BF16))
    return trained(model, language_loss(model, 4, 1024))


def ddp_views() -> Step:
    """Images, buckets as gradients, a scaler."""
    import torchvision.models as models

    model = parallel(models.resnet50(weights=None).cuda().to(memory_format=torch.channels_last), gradient_as_bucket_view=True)
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1, 0.9), torch.amp.GradScaler()
    x = torch.randn(8, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    y = torch.randint(1000, (8,), device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def ddp_accumulated() -> Step:
    """Four batches for each exchange of gradients."""
    model = DistributedDataParallel(Language(512, 8, 8).to("cuda", BF16), device_ids=[here()])
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    loss_of = language_loss(model, 4, 128)

    def step() -> None:
        for last in (False, False, False, True):
            model.require_backward_grad_sync = last
            (loss_of() / 4).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def ddp_compressed() -> Step:
    """Gradients go as bfloat16; parameters that no loss reaches are looked for."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    net = nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, 1024, batch_first=True, dropout=0.0), 8).cuda()
    net.spare = nn.Linear(512, 512).cuda()
    model = DistributedDataParallel(net, device_ids=[here()], find_unused_parameters=True)
    model.register_comm_hook(None, bf16_compress_hook)
    x = torch.randn(8, 128, 512, device="cuda")
    return trained(model, lambda: model(x).square().mean())


def zero_one() -> Step:
    """The optimizer's states are sharded, and updated parameters broadcast."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = parallel(Language(768, 8, 12).cuda())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-4)
    loss_of = language_loss(model, 2, 256)

    def step() -> None:
        with torch.autocast("cuda", BF16):
            loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def hf_gpt2() -> Step:
    """A trainer's step: a schedule, clipping, and a loss that is gathered and read."""
    from transformers import GPT2Config, GPT2LMHeadModel, get_cosine_schedule_with_warmup

    model = parallel(GPT2LMHeadModel(GPT2Config(n_layer=8, n_embd=768, n_head=12)).cuda().train())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    schedule = get_cosine_schedule_with_warmup(optimizer, 10, 1000)
    ids = words(4, 256)

    def step() -> None:
        with torch.autocast("cuda", BF16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        dist.all_reduce(loss := loss.detach())
        loss.item()

    return step


def contrastive() -> Step:
    """Two towers whose features are gathered from all ranks, with gradients."""
    towers = [nn.TransformerEncoder(nn.TransformerEncoderLayer(384, 6, 1536, batch_first=True, dropout=0.0), 6).cuda() for _ in range(2)]
    model = parallel(nn.ModuleList(towers), broadcast_buffers=False)
    both = [torch.randn(32, 50, 384, device="cuda"), torch.randn(32, 32, 384, device="cuda")]

    def loss() -> torch.Tensor:
        features = [F.normalize(tower(x).mean(1), dim=-1) for tower, x in zip(towers, both, strict=True)]
        one, two = (torch.cat(differentiable.all_gather(f)) for f in features)
        scores = one @ two.T * 14
        target = torch.arange(len(scores), device="cuda")
        return F.cross_entropy(scores, target) + F.cross_entropy(scores.T, target)

    return trained(model, loss, amp=True)


# ---------------------------------------------------------------------- sharded


def sharded(width: int, layers: int, reshard: bool = True) -> Any:
    model = Language(width, layers, width // 64).cuda()
    policy = MixedPrecisionPolicy(BF16, torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy, reshard_after_forward=reshard)
    return fully_shard(model, mp_policy=policy)


def fsdp2_listed() -> Step:
    """The optimizer that torch takes by default, which walks lists of DTensors."""
    model = sharded(1024, 12)
    return trained(model, language_loss(model, 1, 512), clip=True, fused=False)


def fsdp2_accumulated() -> Step:
    model = sharded(1024, 8, reshard=False)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    loss_of = language_loss(model, 2, 256)

    def step() -> None:
        for last in (False, True):
            model.set_requires_gradient_sync(last)
            loss_of().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def fsdp2_middle() -> Step:
    model = sharded(2048, 8)
    return trained(model, language_loss(model, 2, 1024), clip=True)


def fsdp2_wide() -> Step:
    """Keeps the GPU busy."""
    model = sharded(4096, 6)
    return trained(model, language_loss(model, 2, 2048), clip=True)


def fsdp1() -> Step:
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    model = FullyShardedDataParallel(
        Language(1024, 10, 16).cuda(), auto_wrap_policy=ModuleWrapPolicy({Block}), use_orig_params=True, device_id=here(),
        mixed_precision=MixedPrecision(BF16, torch.float32),
    )
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    loss_of = language_loss(model, 2, 256)

    def step() -> None:
        loss_of().backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


# ---------------------------------------------------------------------- model parallel


class Attention(nn.Module):
    """Heads by the shape of what the projections give, so that each rank has its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, _ = x.shape
        q, k, v = (w(x).view(b, s, -1, 64).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        return self.wo(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, -1))


class Gated(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.w2 = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention, self.gated = Attention(width), Gated(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.n1(x))
        return x + self.gated(self.n2(x))


def split(width: int, layers: int, batch: int, seq: int, sequence: bool) -> Step:
    """Tensor parallel as in PyTorch's tutorial; `sequence`: norms on a part of the sequence each."""
    group, model = mesh(), nn.Sequential(*(Layer(width) for _ in range(layers))).to("cuda", BF16)
    across: Any = Shard(1) if sequence else Replicate()
    for layer in model:
        ways: dict[str, Any] = {
            **{f"attention.{w}": ColwiseParallel() for w in ("wq", "wk", "wv")}, "attention.wo": RowwiseParallel(output_layouts=across),
            "gated.w1": ColwiseParallel(), "gated.w3": ColwiseParallel(), "gated.w2": RowwiseParallel(output_layouts=across),
        }
        if sequence:
            for norm, inner in (("n1", "attention"), ("n2", "gated")):
                ways[norm] = SequenceParallel()
                ways[inner] = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
        parallelize_module(layer, group, ways)
    part = seq // group.size() if sequence else seq
    x = torch.randn(batch, part, width, device="cuda", dtype=BF16)
    by_kind = [[p for p in model.parameters() if hasattr(p, "placements") == kind] for kind in (True, False)]
    optimizers = [torch.optim.AdamW(some, 1e-4) for some in by_kind if some]

    def step() -> None:
        model(x).float().square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return step


def split_plain() -> Step:
    return split(1024, 8, 1, 512, sequence=False)


def split_sequence() -> Step:
    return split(1024, 8, 1, 512, sequence=True)


def split_wide() -> Step:
    """Keeps the GPU busy."""
    return split(4096, 8, 2, 2048, sequence=False)


def pipelined() -> Step:
    """One forward, one backward; eight small batches through two stages."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, world = dist.get_rank(), dist.get_world_size()
    part = nn.Sequential(*(Layer(1024) for _ in range(6))).to("cuda", BF16)
    stage = PipelineStage(part, rank, world, torch.device("cuda", here()))
    schedule = Schedule1F1B(stage, 8, loss_fn=lambda out, target: F.mse_loss(out.float(), target.float()))
    optimizer = torch.optim.AdamW(part.parameters(), 1e-4, fused=True)
    x, target = (torch.randn(8, 512, 1024, device="cuda", dtype=BF16) for _ in range(2))

    def step() -> None:
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=target)
        optimizer.step()
        optimizer.zero_grad()

    return step


CASES: dict[str, Callable[[], Step]] = {
    step.__name__: step
    for step in (
        ddp_autocast, ddp_wide, ddp_views, ddp_accumulated, ddp_compressed, zero_one, hf_gpt2, contrastive, fsdp2_listed,
        fsdp2_accumulated, fsdp2_middle, fsdp2_wide, fsdp1, split_plain, split_sequence, split_wide, pipelined,
    )
}


def run(name: str) -> dict[str, Any]:
    torch.manual_seed(0)
    step = CASES[name]()
    times, worked, before = [], [], counts()
    for turn in range(WARM + ITERS):
        if turn == WARM:
            before = counts()
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        cpu, begin = time.process_time(), time.perf_counter()
        step()
        torch.cuda.synchronize()
        if turn >= WARM:
            times.append(time.perf_counter() - begin)
            worked.append(time.process_time() - cpu)
    row = row_of(f"two_{name}", times, name="two_ranks", cpu_times=worked)
    if SIMULATED:
        row["charges"] = {api: count / ITERS for api, count in since(before)["charges"].items()}
    return row


def main() -> None:
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl", device_id=torch.device("cuda", here()))
    for name in sys.argv[2:] or CASES:
        torch.cuda.reset_peak_memory_stats()
        try:
            row = run(name)
        except Exception:
            traceback.print_exc()  # both ranks fail; the other cases go on
            continue
        finally:
            gc.collect()
            torch.cuda.empty_cache()
        if dist.get_rank() == 0:
            print(json.dumps(row), flush=True)
            with open(sys.argv[1], "a", encoding="utf-8") as file:
                print(json.dumps(row), file=file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
