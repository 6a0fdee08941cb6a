"""torch's own flight recorder and memory history in a simulated run agree with its log, call by call and block by
block."""

from __future__ import annotations

from pathlib import Path

from phantora.dumps.why import differs, why
from tests.support.runs import trace

PROGRAM = """
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_nccl_trace

os.environ["TORCH_FR_BUFFER_SIZE"] = "200"
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
torch.cuda.memory._record_memory_history(stacks="python")
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
x = torch.ones(1 << 20, device="cuda")
pair = dist.new_group([0, 1])
dist.all_reduce(x)
dist.all_reduce(x, group=pair)
dist.all_gather([torch.empty_like(x), torch.empty_like(x)], x)
dist.barrier()
dist.reduce_scatter_tensor(torch.empty(1 << 19, device="cuda"), x)
(dist.recv if rank else dist.send)(x, 1 - rank)
dist.all_to_all_single(torch.empty_like(x), x)
layer = torch.nn.Linear(1024, 1024).cuda()
layer(x.view(1024, 1024)).sum().backward()
torch.cuda.synchronize()
Path(f"nccl_trace_rank_{rank}").write_bytes(_dump_nccl_trace())
torch.cuda.memory._dump_snapshot(f"memory{rank}.pickle")
"""


def test_a_run_equals_its_own_dumps(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    run = trace(tmp_path, "--cluster", "1x2xH100", "program.py")
    dumps = [str(tmp_path / f"nccl_trace_rank_{rank}") for rank in (0, 1)]
    calls = differs([*dumps, str(run.log)])
    assert calls.lines[0] == ("AGREE", "14 calls of the dumps, in number, kind and bytes")
    assert calls.lines[1] == ("SAME", "the simulated run ends with the same calls")
    assert why(dumps).lines[0] == ("HANG", "none: every call in these dumps has completed")
    assert why([str(tmp_path / "memory0.pickle")]).lines[0][0] == "PEAK"
    memory = differs([str(tmp_path / "memory0.pickle"), str(run.log)])
    assert memory.lines[1] == ("SAME", "every block at the peak has a partner"), memory
