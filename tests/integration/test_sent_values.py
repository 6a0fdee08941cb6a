"""Known reals that are sent: the receiver reads them, and its host does not wait for the sender before it does."""

from __future__ import annotations

from pathlib import Path

from tests.support import runs

PROGRAM = """
import json, os, time
import torch, torch.distributed as dist
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
size = 1 << 18
def pair(send, receive):
    for _ in range(2):  # the first pair connects, and there both hosts wait
        if rank == 0: send()
        else: found = receive()
    return None if rank == 0 else found
def late(tensor):
    torch.cuda._sleep(20_000_000)
    torch.cuda.synchronize()
    dist.send(tensor, 1)
def sums(tensor):
    dist.recv(tensor, 0)
    began = time.perf_counter()
    sum, half = tensor.sum(), (tensor[: size // 2] * 2).sum()
    took = time.perf_counter() - began
    return [sum.item(), half.item(), took < 1e-3]
known = pair(lambda: late(torch.arange(float(size), device="cuda")), lambda: sums(torch.empty(size, device="cuda")))
weights = torch.nn.Linear(512, 512, device="cuda").weight.detach().view(-1)
unknown = pair(lambda: late(weights), lambda: sums(torch.empty(size, device="cuda")))
if rank: print(json.dumps({"known": known, "unknown": unknown}))
"""


def test_known_reals_arrive_when_they_are_read(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    run = runs.trace(tmp_path, "--cluster", "1x2xH100", "train.py")
    numbers = range(1 << 18)
    half = 2.0 * sum(numbers[: 1 << 17])
    assert run.report() == {"known": [float(sum(numbers)), half, True], "unknown": [0.0, 0.0, True]}
