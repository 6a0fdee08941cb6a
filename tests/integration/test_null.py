"""phantora trace --null: no kernel writes, yet a script takes the same way as on a GPU."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from phantora.errors import PhantoraError
from phantora.hardware import load_host
from phantora.profile import script
from tests.support.runs import phantora

STEPS = 8
READ_BACK = """
import torch
lengths = torch.tensor([3, 5, 8]).cuda()
copy, part = lengths.clone(), torch.ones(2).cuda()
print(lengths.tolist(), copy.tolist(), part.tolist())
left = torch.full((64,), 7.0).cuda()
at = left.data_ptr()
del left
fresh = torch.empty(1, device="cuda")  # where the copied 7 lie
assert fresh.data_ptr() == at
found = fresh.item()
print(found, fresh.clone().item())
"""
EXCHANGED = """
import os
import torch
import torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
size = torch.tensor([196]).cuda()
sizes, objects = [torch.empty_like(size) for _ in range(2)], [None, None]
dist.all_gather(sizes, size)
dist.broadcast(size, 0)
dist.all_gather_object(objects, {"a": 1})
torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4).cuda())  # asks whether all have the same parameters
print([part.item() for part in sizes], size.item(), objects)
"""
OBJECT_OF_ANOTHER = """
import os
import torch
import torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
dist.broadcast_object_list([{"a": 1} if dist.get_rank() == 0 else None], 0)
"""
SCALED = f"""
import torch
import torch.nn as nn
model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).cuda()
optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler()
for step in range({STEPS}):
    left = [torch.full((1,), 9.0).cuda() for _ in range(8)]  # numbers of the size of its flags
    del left
    with torch.autocast("cuda", torch.float16):
        loss = model(torch.full((32, 64), 9.0).cuda()).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""


def run(folder: Path, text: str, cluster: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(text)
    return phantora("trace", "--null", "--cluster", cluster, "train.py", cwd=folder, timeout=120)


def output(folder: Path, text: str, cluster: str) -> str:
    done = run(folder, text, cluster)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_is_read_back_was_copied_there_or_is_zero(tmp_path: Path) -> None:
    assert output(tmp_path, READ_BACK, "1x1xH100") == "[3, 5, 8] [3, 5, 8] [1.0, 1.0]\n0.0 0.0\n"


def test_ranks_receive_what_they_send(tmp_path: Path) -> None:
    lines = output(tmp_path, EXCHANGED, "1x2xH100").splitlines()
    assert sorted(lines) == [f"[rank{rank}]: [196, 196] 196 [{{'a': 1}}, {{'a': 1}}]" for rank in range(2)]


def test_an_object_that_another_rank_sends_is_refused_by_name(tmp_path: Path) -> None:
    done = run(tmp_path, OBJECT_OF_ANOTHER, "1x2xH100")
    assert done.returncode == 1
    assert "phantora: rank 1: a pickled object of another rank did not come: without simulation" in done.stderr
    with pytest.raises(PhantoraError, match=r"train.py failed without CUDA: .*pickled object of another rank"):
        script.measure([str(tmp_path / "train.py")], "1x2xH100", load_host("default"))


def test_a_loss_scaler_finds_no_infinity_in_memory_that_was_used_before(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCALED)
    found = script.measure([str(tmp_path / "train.py")], "1x1xH100", load_host("default"))
    assert found.steps == STEPS - script.FIRST
