"""Ways in which distributed programs hang; `tests/robustness/hangs.py` runs each and reads what is said of it.

``hang_programs.py NAME``: three ranks. The line at which a rank hangs ends with a comment ``# here``.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])


def ones(count: int = 1024, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(count, dtype=dtype, device="cuda")


def everyone() -> None:
    dist.all_reduce(ones())
    torch.cuda.synchronize()  # here


def missing_member() -> None:
    if rank != 2:
        everyone()
    threading.Event().wait()  # here


def member_that_ended() -> None:
    if rank != 2:
        everyone()


def member_that_died() -> None:
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    everyone()


def member_that_raised() -> None:
    if rank == 2:
        raise ValueError("no such file")  # here
    everyone()


def member_that_is_stopped() -> None:
    if rank == 2:
        subprocess.Popen(["sh", "-c", f"sleep 9; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
    everyone()


def other_order() -> None:
    (dist.all_reduce if rank else lambda x: dist.broadcast(x, 0))(ones())
    (dist.all_reduce if not rank else lambda x: dist.broadcast(x, 0))(ones())
    torch.cuda.synchronize()


def other_size() -> None:
    dist.all_reduce(ones(1024 + rank // 2))
    torch.cuda.synchronize()


def other_dtype() -> None:
    dist.all_reduce(ones(dtype=torch.bfloat16 if rank == 2 else torch.float32))
    torch.cuda.synchronize()


def other_root() -> None:
    dist.broadcast(ones(), 1 if rank == 2 else 0)
    torch.cuda.synchronize()


def one_collective_more() -> None:
    for _ in range(3 if rank else 4):
        everyone()


def cycle_of_groups() -> None:
    groups = [dist.new_group(members) for members in ([0, 1], [1, 2], [0, 2])]
    for index in ((0, 2), (1, 0), (2, 1))[rank]:
        dist.all_reduce(ones(), group=groups[index])  # here
        torch.cuda.synchronize()


def cycle_of_sends() -> None:
    dist.send(ones(1 << 20), (rank + 1) % 3)  # here
    dist.recv(ones(1 << 20), (rank + 2) % 3)
    torch.cuda.synchronize()


def send_without_receive() -> None:
    if rank == 0:
        dist.send(ones(1 << 20), 1)  # here
        torch.cuda.synchronize()
    threading.Event().wait()


def receive_without_send() -> None:
    if rank == 0:
        dist.recv(ones(1 << 20), 1)  # here
        torch.cuda.synchronize()
    threading.Event().wait()


def group_that_one_rank_makes() -> None:
    if rank == 0:
        group = dist.new_group([0, 1])
        dist.all_reduce(ones(), group=group)  # here
    everyone()


def object_that_one_rank_does_not_gather() -> None:
    if rank != 2:
        found: list[object] = [None] * 3
        dist.all_gather_object(found, {"rank": rank})  # here
    threading.Event().wait()


def key_that_nobody_sets() -> None:
    if rank == 2:
        dist.distributed_c10d._get_default_store().get("never")  # here
    everyone()


def gloo_barrier() -> None:
    group = dist.new_group(backend="gloo", timeout=timedelta(minutes=30))
    if rank != 2:
        dist.barrier(group)  # here
    threading.Event().wait()


def lock_taken_twice() -> None:
    lock = threading.Lock()
    if rank == 2:
        lock.acquire()
        lock.acquire()  # here
    everyone()


def queue_that_stays_empty() -> None:
    if rank == 2:
        queue.Queue[int]().get()  # here
    everyone()


def worker_that_dies() -> None:
    class Data(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> torch.Tensor:
            if rank == 2 and index == 4:
                os.kill(os.getpid(), signal.SIGKILL)
            return torch.ones(1)

    for _ in torch.utils.data.DataLoader(Data(), num_workers=1):
        everyone()


def long_python_loop() -> None:
    if rank == 2:
        end = time.process_time() + 10
        while time.process_time() < end:  # here
            pass
    everyone()


if __name__ == "__main__":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    everyone()
    globals()[sys.argv[1]]()
