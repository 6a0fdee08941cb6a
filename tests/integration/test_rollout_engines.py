"""Two processes of a reinforcement-learning loop: weights by CUDA IPC, and an engine that sleeps."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from tests.support.runs import Run, rows, trace

MIB = 1 << 20
ALLOCATOR = """
// Each block is a reservation with one mapping, as in vLLM's sleep mode.
#include <stddef.h>
typedef unsigned long long address;
typedef struct { int type, id; } location;
typedef struct { int type, handles; location at; void *data; unsigned char flags[8]; } properties;
typedef struct { location at; int flags; } rights;
int cuMemAddressReserve(address *, size_t, size_t, address, address);
int cuMemCreate(address *, size_t, const properties *, address);
int cuMemMap(address, size_t, size_t, address, address);
int cuMemSetAccess(address, size_t, const rights *, size_t);
int cuMemUnmap(address, size_t);
int cuMemRelease(address);
static address at, handle;
static int gpu;
static size_t size;
void wake(void) {
  cuMemCreate(&handle, size, &(properties){.type = 1, .at = {1, gpu}}, 0);
  cuMemMap(at, size, 0, handle, 0);
  cuMemSetAccess(at, size, &(rights){{1, gpu}, 3}, 1);
}
void fall_asleep(void) { cuMemUnmap(at, size), cuMemRelease(handle); }
void *take(size_t bytes, int device, void *stream) {
  size = (bytes + (2u << 20) - 1) / (2u << 20) * (2u << 20);
  gpu = device;
  cuMemAddressReserve(&at, size, 0, 0, 0);
  wake();
  return (void *)at;
}
void give(void *pointer, size_t bytes, int device, void *stream) { fall_asleep(); }
"""
SCRIPT = """
import ctypes, time, torch
import torch.multiprocessing as mp
from torch.cuda.memory import CUDAPluggableAllocator

def train(weights, done):
    torch.cuda.set_device(0)
    large, tokens = torch.ones(4 << 20, device="cuda"), torch.arange(8, device="cuda")
    weights.put((large, tokens))
    done.wait()

def roll_out(weights, done):
    torch.cuda.set_device(1)
    large, tokens = weights.get()  # opens memory of GPU 0 before it uses its own
    print("tokens", tokens.tolist())
    own = large.to("cuda:1")
    torch.cuda.synchronize()
    del large, tokens
    done.set()
    allocator = CUDAPluggableAllocator("./allocator.so", "take", "give")
    with torch.cuda.use_mem_pool(torch.cuda.MemPool(allocator.allocator())):
        cache = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    library = ctypes.CDLL("./allocator.so")
    used = [torch.cuda.mem_get_info()[0]]
    for step in (library.fall_asleep, library.wake):
        step()
        used.append(torch.cuda.mem_get_info()[0])
    print("free", *(now - used[0] for now in used))

if __name__ == "__main__":
    context = mp.get_context("spawn")
    begin = time.perf_counter()
    shared = context.Queue(), context.Event()
    processes = [context.Process(target=role, args=shared) for role in (train, roll_out)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    print("took", time.perf_counter() - begin)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("engines")
    (folder / "allocator.c").write_text(ALLOCATOR)
    compiler = shutil.which("gcc") or "cc"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", "allocator.so", "allocator.c"], cwd=folder, check=True)
    (folder / "train.py").write_text(SCRIPT)
    return trace(folder, "--cluster", "1x2xH100", "--", sys.executable, "train.py", timeout=120)


def test_small_tensors_keep_their_values_across_cuda_ipc(run: Run) -> None:
    assert "tokens [0, 1, 2, 3, 4, 5, 6, 7]" in run.out


def test_the_parent_reads_the_clock_of_the_ranks(run: Run) -> None:
    seconds = float(run.out.rpartition("took ")[2])
    end = rows(run.log, "end")["end"].max() / 1e9  # far below the seconds that the processes really take
    assert abs(seconds - end) < 1e-3 < end < 2


def test_weights_of_another_process_come_over_nvlink(run: Run) -> None:
    found = rows(run.log, "rank", "bytes", "start", "end", kinds=("memcpy",))
    weights = found["bytes"] == 16 * MIB
    assert found["rank"][weights].tolist() == [1]
    ns = int((found["end"] - found["start"])[weights][0])
    assert 16 * MIB / 450 < ns < 16 * MIB / 300  # GB/s of an H100's NVLink to one peer


def test_memory_falls_while_an_engine_sleeps(run: Run) -> None:
    assert f"free 0 {64 * MIB} 0" in run.out
    found = rows(run.log, "rank", "value", "bytes", kinds=("memory",))
    for column in ("value", "bytes"):
        sizes = found[column][found["rank"] == 1]
        changes = [int(change) for change in sizes[1:] - sizes[:-1] if abs(int(change)) == 64 * MIB]
        assert changes[:3] == [64 * MIB, -64 * MIB, 64 * MIB]
