"""Training and inference loops as users write them, one per rank, each with a process of its own and no process group.

Every loop measures its own step in virtual time and prints it with the flops of a step:
``{"loop": "gan", "seconds": 0.0123, "flops": 1.5e12}``. `seconds` is the mean between the quartiles of the loop's
steady steps, as of a headline, by its clock where it synchronises and by events where it does not. Run by
tests/integration/test_steps.py.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

import torch
from torch import nn
from torch.profiler import ProfilerAction, ProfilerActivity, profile, record_function, schedule
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.flop_counter import FlopCounterMode

WIDTH, ROWS, STEPS = 2048, 4096, 8
Times = list[float]


def network(layers: int = 2) -> nn.Module:
    """Layers of two products each, in bfloat16."""
    blocks = [nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(layers)]
    return nn.Sequential(*blocks).cuda().bfloat16()


def batch(rows: int = ROWS) -> torch.Tensor:
    return torch.ones(rows, WIDTH, device="cuda", dtype=torch.bfloat16)


def now() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


def flops_of(step: Callable[[], object]) -> float:
    """Flops of one more step, after the measured ones."""
    with FlopCounterMode(display=False) as counter:
        step()
    return float(counter.get_total_flops())


class Training:
    """A model with its optimizer, and the step of a plain loop."""

    def __init__(self, layers: int = 2) -> None:
        self.model = network(layers)
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)
        self.x = batch()

    def backward(self) -> torch.Tensor:
        loss = self.model(self.x).float().pow(2).mean()
        loss.backward()
        return loss

    def step(self) -> torch.Tensor:
        loss = self.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


def typical(times: Iterable[float]) -> float:
    """The mean between the quartiles."""
    ordered = sorted(times)
    cut = len(ordered) // 4
    kept = ordered[cut : len(ordered) - cut]
    return sum(kept) / len(kept)


def differences(moments: Times) -> float:
    return typical(b - a for a, b in pairwise(moments[1:]))  # less start-up


def synced(step: Callable[[], object], steps: int = STEPS) -> float:
    moments = [now()]
    for _ in range(steps):
        step()
        moments.append(now())
    return differences(moments)


def free(step: Callable[[], object], steps: int = STEPS) -> float:
    """Without a synchronisation; events say when the GPU had done each step."""
    done = []
    for _ in range(steps):
        step()
        done.append(torch.cuda.Event(enable_timing=True))
        done[-1].record()
    torch.cuda.synchronize()
    return differences([done[0].elapsed_time(event) * 1e-3 for event in done])


Result = tuple[float, Callable[[], object]]  # seconds, a step to count the flops of


def sync_each_step() -> Result:
    t = Training()
    return synced(t.step), t.step


def reads_the_loss() -> Result:
    t = Training()
    return synced(lambda: t.step().item()), t.step


def never_synced() -> Result:
    t = Training()
    return free(t.step, 12), t.step


def bound_by_the_host() -> Result:
    t = Training()
    t.x = batch(16)
    return free(t.step, 12), t.step


def profiler(plan: Callable[[int], ProfilerAction] | None = None) -> Result:
    t = Training()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], schedule=plan) as p:

        def step() -> None:
            t.step()
            p.step()

        seconds = free(step, 10)
    return seconds, t.step


def profiler_with_schedule() -> Result:
    return profiler(schedule(wait=1, warmup=1, active=3, repeat=1))


def gradient_accumulation() -> Result:
    t = Training()

    def step() -> None:
        for _ in range(3):
            t.backward()
        t.step()

    return free(step, 6), step


def evaluation_in_between() -> Result:
    t = Training()
    moments: list[Times] = []
    for k in range(10):
        start = now()
        t.step()
        moments.append([start, now()])
        if k % 4 == 3:
            t.model.eval()
            with torch.no_grad():
                for _ in range(6):
                    t.model(t.x)
            t.model.train()
    return typical(b - a for a, b in moments[1:]), t.step


def checkpoint() -> Result:
    t = Training()
    moments = []
    for k in range(10):
        start = now()
        t.step()
        moments.append(now() - start)
        if k == 4:
            torch.save({"model": t.model.state_dict(), "optimizer": t.optimizer.state_dict()}, os.devnull)
    return typical(moments[1:]), t.step


def inference() -> Result:
    model, x = network(3), batch()

    @torch.no_grad()
    def step() -> None:
        model(x).argmax(-1)

    return synced(step), step


def inference_with_a_loader() -> Result:
    model = network(2)
    data = TensorDataset(torch.ones(9 * 1024, WIDTH, dtype=torch.bfloat16))
    moments = []
    with torch.no_grad():
        for (x,) in DataLoader(data, batch_size=1024):
            moments.append(now())
            model(x.cuda()).cpu()
    return differences(moments), torch.no_grad()(lambda: model(batch(1024)))


def inference_annotated() -> Result:
    """Inference with other lengths at times: the shapes don't repeat."""
    model = network(2)
    moments = []

    @torch.no_grad()
    def step(k: int) -> None:
        with record_function("request"):
            model(batch(ROWS - 128 * (k % 4 == 3)))

    for k in range(2 * STEPS):
        moments.append(now())
        step(k)
    return differences(moments), lambda: step(0)


class Attention(nn.Module):
    """One layer with a cache of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, cache: list[torch.Tensor]) -> torch.Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 16, WIDTH // 16).permute(2, 0, 3, 1, 4)
        if cache:
            k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
        cache[:] = [k, v]
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(x.shape))


def generate() -> Result:
    """Requests of 6 tokens each behind a prompt: a step is a request."""
    table, layer = nn.Embedding(32000, WIDTH).cuda().bfloat16(), Attention().cuda().bfloat16()

    @torch.no_grad()
    def request() -> None:
        cache: list[torch.Tensor] = []
        tokens = torch.zeros(8, 512, dtype=torch.long).cuda()
        for _ in range(6):
            logits = layer(table(tokens), cache)[:, -1] @ table.weight.T
            tokens = logits.argmax(-1, keepdim=True)

    return synced(request, 10), request


def two_optimizers() -> Result:
    t = Training()
    first, second = (list(block.parameters()) for block in t.model.children())
    both = [torch.optim.AdamW(first, lr=1e-3, fused=True), torch.optim.SGD(second, lr=1e-3, momentum=0.9, fused=True)]

    def step() -> None:
        t.backward()
        for optimizer in both:
            optimizer.step()
            optimizer.zero_grad()

    return free(step), step


def gan() -> Result:
    generator, critic = network(1), nn.Sequential(network(1), nn.Linear(WIDTH, 1).cuda().bfloat16())
    g, c = (torch.optim.Adam(model.parameters(), lr=1e-4, fused=True) for model in (generator, critic))
    x = batch()

    def step() -> None:
        c.zero_grad()
        (critic(x).mean() - critic(generator(x).detach()).mean()).backward()
        c.step()
        g.zero_grad()
        (-critic(generator(x)).mean()).backward()
        g.step()

    return free(step), step


def gan_of_many_operators() -> Result:
    """Optimizers that launch an operator for each part of their formula, with numbers that change from step to step."""
    maker, critic = network(1), nn.Sequential(network(1), nn.Linear(WIDTH, 1).cuda().bfloat16())
    g, c = (torch.optim.Adam(model.parameters(), lr=2e-4, betas=(0.5, 0.999)) for model in (maker, critic))
    x = batch()

    def step() -> None:
        made = maker(x)
        c.zero_grad()
        (critic(x).mean() - critic(made.detach()).mean()).backward()
        c.step()
        g.zero_grad()
        (-critic(made).mean()).backward()
        g.step()

    return free(step, 6), step


def critic_thrice() -> Result:
    """A generator that is trained after every third step of its critic."""
    maker, critic = network(1), nn.Sequential(network(1), nn.Linear(WIDTH, 1).cuda().bfloat16())
    g, c = (torch.optim.AdamW(model.parameters(), lr=1e-4) for model in (maker, critic))
    x = batch()

    def step() -> None:
        for _ in range(3):
            c.zero_grad()
            (critic(x).mean() - critic(maker(x).detach()).mean()).backward()
            c.step()
        g.zero_grad()
        (-critic(maker(x)).mean()).backward()
        g.step()

    return free(step, 6), step


def reinforcement() -> Result:
    """A policy acts many times, each action is read by the host, then it learns."""
    policy = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 8)).cuda()
    optimizer = torch.optim.Adam(policy.parameters(), 1e-3)

    def step() -> None:
        chosen = []
        for _ in range(16):
            chances = torch.log_softmax(policy(torch.ones(1, 64).cuda()), -1)
            chosen.append(chances[0, int(chances.argmax(-1).item()) % 8])
        optimizer.zero_grad()
        (-torch.stack(chosen).mean()).backward()
        optimizer.step()

    return synced(step), step


def averaged_weights() -> Result:
    """Loop with a moving average of the weights and a schedule of the rate."""
    t = Training()
    mean = torch.optim.swa_utils.get_ema_multi_avg_fn(0.99)
    average = torch.optim.swa_utils.AveragedModel(t.model, multi_avg_fn=mean)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(t.optimizer, 100)

    def step() -> None:
        t.step()
        average.update_parameters(t.model)
        rates.step()

    return synced(step), step


def varying_lengths() -> Result:
    """Batches of other lengths, as text has them. Of each length the first pays for plans and takes longer."""
    t = Training()
    moments = [now()]
    for k in range(24):
        t.x = batch(ROWS - 512 * (k % 3))
        t.step()
        moments.append(now())
    t.x = batch(ROWS - 512)  # the one in the middle
    return differences(moments[2:]), t.step


def frozen_at_first() -> Result:
    """A backbone without gradients under a head that is trained."""
    t = Training()
    for p in next(t.model.children()).parameters():
        p.requires_grad_(False)
    trained = [p for p in t.model.parameters() if p.requires_grad]
    t.optimizer = torch.optim.AdamW(trained, lr=1e-3, fused=True)
    return free(t.step, 10), t.step


def lbfgs() -> Result:
    t = Training(1)
    t.model.float()
    t.x = batch(512).float()
    optimizer = torch.optim.LBFGS(t.model.parameters(), max_iter=3, history_size=4)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        return t.backward()

    return synced(lambda: optimizer.step(closure), 10), lambda: optimizer.step(closure)


def by_hand() -> Result:
    """Gradient descent without an optimizer."""
    t = Training()

    def step() -> None:
        t.backward()
        with torch.no_grad():
            for p in t.model.parameters():
                p.sub_(p.grad, alpha=1e-3)  # type: ignore[arg-type]
                p.grad = None

    return free(step), step


def scaled_loss() -> Result:
    """Mixed precision with a scaler, which reads on the host whether gradients are finite."""
    t = Training()
    t.model.float()
    t.optimizer = torch.optim.SGD(t.model.parameters(), lr=1e-3)
    scaler, x = torch.amp.GradScaler(), batch().half()

    def step() -> None:
        with torch.autocast("cuda", torch.float16):
            loss = t.model(x).float().pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(t.optimizer)
        scaler.update()
        t.optimizer.zero_grad()

    return free(step), step


LOOPS: tuple[Callable[[], Result], ...] = (
    sync_each_step,
    reads_the_loss,
    never_synced,
    bound_by_the_host,
    profiler,
    profiler_with_schedule,
    gradient_accumulation,
    evaluation_in_between,
    checkpoint,
    inference,
    inference_with_a_loader,
    inference_annotated,
    generate,
    two_optimizers,
    gan,
    lbfgs,
    by_hand,
    scaled_loss,
    gan_of_many_operators,
    critic_thrice,
    reinforcement,
    averaged_weights,
    varying_lengths,
    frozen_at_first,
)


def main(chosen: Iterator[str]) -> None:
    torch.set_num_threads(1)
    names = list(chosen) or [loop.__name__ for loop in LOOPS]
    loop = {loop.__name__: loop for loop in LOOPS}[names[int(os.environ["RANK"])]]
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    seconds, step = loop()
    torch.cuda.synchronize()
    print(json.dumps({"loop": loop.__name__, "seconds": seconds, "flops": flops_of(step)}), flush=True)


if __name__ == "__main__":
    main(iter(sys.argv[1:]))
