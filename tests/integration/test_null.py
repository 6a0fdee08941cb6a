"""phantora trace --null: no kernel writes, yet a script takes the same way as on a GPU."""

from __future__ import annotations

import subprocess
from pathlib import Path

from support.runs import command, environment

from phantora.hardware import load_host
from phantora.profile import script

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
SCALED = f"""
import torch
import torch.nn as nn
model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).cuda()
optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler()
for step in range({STEPS}):
    with torch.autocast("cuda", torch.float16):
        left = [torch.full((1,), 9.0).cuda() for _ in range(8)]  # numbers of the size of its flags
    del left
    loss = model(torch.full((32, 64), 9.0).cuda()).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""


def test_what_is_read_back_was_copied_there_or_is_zero(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(READ_BACK)
    done = subprocess.run(
        [*command("--null"), "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        env=environment(shared=True),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[3, 5, 8] [3, 5, 8] [1.0, 1.0]\n0.0 0.0\n"


def test_a_loss_scaler_finds_no_infinity_in_memory_that_was_used_before(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCALED)
    found = script.measure([str(tmp_path / "train.py")], "1x1xH100", load_host("default"))
    assert found.steps == STEPS - script.FIRST
