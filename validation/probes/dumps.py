"""Real dumps and snapshots of failing jobs, for the tests of `phantora why`: on two GPUs,

    python -m validation.probes.dumps FOLDER

Each case is a job of two ranks that hangs, or of one rank that runs out of memory. FOLDER gets a folder per case.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

HANGS = ("missing", "mismatch", "size", "order", "receive", "busy", "fine")
MEMORY = ("leak", "fragmentation")
SECONDS = 6


def hang(case: str, rank: int) -> None:
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import _dump_nccl_trace  # type: ignore[attr-defined]

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    x = torch.ones(1 << 10, device="cuda")
    pair = dist.new_group([0, 1])
    dist.all_reduce(x)
    dist.all_reduce(x, group=pair)
    torch.cuda.synchronize()
    if case == "missing" and rank == 0:
        dist.all_reduce(x)
    elif case == "mismatch":
        dist.all_reduce(x) if rank else dist.broadcast(x, 0)
    elif case == "size":
        dist.all_reduce(x[: 512 << rank])
    elif case == "order":
        first, second = (None, pair) if rank else (pair, None)
        dist.all_reduce(x, group=first)
        dist.all_reduce(x, group=second)
    elif case == "receive" and rank == 0:
        dist.recv(x, 1)
    elif case == "busy":
        if rank:
            torch.cuda._sleep(1 << 40)
        dist.all_reduce(x)
    elif case == "fine":
        dist.all_gather([torch.empty_like(x), torch.empty_like(x)], x)
    time.sleep(SECONDS)
    Path(f"nccl_trace_rank_{rank}").write_bytes(_dump_nccl_trace())
    os._exit(0)


def memory(case: str) -> None:
    import torch

    torch.cuda.set_per_process_memory_fraction(2 * (1 << 30) / torch.cuda.get_device_properties(0).total_memory)
    torch.cuda.memory._record_memory_history(stacks="python")
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8))).cuda()
    kept = []
    try:
        for _ in range(200):
            x = torch.randn(1 << 14, 1024, device="cuda")
            y = model(x)
            if case == "leak":
                kept.append(y)
            else:
                y.sum().backward()
                blocks = [torch.empty(100 << 20, dtype=torch.uint8, device="cuda") for _ in range(12)]
                del blocks[::2]
                torch.empty(900 << 20, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        torch.cuda.memory._dump_snapshot("oom.pickle")


def main() -> None:
    if len(sys.argv) == 2:
        folder, jobs = Path(sys.argv[1]), []
        for number, case in enumerate((*HANGS, *MEMORY)):
            place = folder / case
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            shutil.copy(__file__, place / "train.py")
            for rank in range(2 if case in HANGS else 1):
                more = {
                    "RANK": str(rank),
                    "WORLD_SIZE": "2",
                    "MASTER_ADDR": "localhost",
                    "MASTER_PORT": str(29600 + number),
                }
                more |= {"TORCH_FR_BUFFER_SIZE": "200", "NCCL_NVLS_ENABLE": "0", "OMP_NUM_THREADS": "1"}
                jobs.append(
                    subprocess.Popen([sys.executable, "train.py", case, str(rank)], cwd=place, env=os.environ | more)
                )
        for job in jobs:
            try:
                job.wait(60)
            except subprocess.TimeoutExpired:
                job.kill()
        for case in (*HANGS, *MEMORY):
            (folder / case / "train.py").unlink()
            print(case, sorted(path.name for path in (folder / case).iterdir()), flush=True)
    elif sys.argv[1] in HANGS:
        hang(sys.argv[1], int(sys.argv[2]))
    else:
        memory(sys.argv[1])


if __name__ == "__main__":
    main()
