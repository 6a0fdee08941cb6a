"""Transformer Engine's Userbuffers without Transformer Engine: memory of peers by cudaIpc, and kernels of its names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import records, trace

MIB = 1 << 20
CUDA = """
import ctypes, json, sys, torch, torch.distributed as dist
from ctypes import addressof, byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p

class Dim(ctypes.Structure):
    _fields_ = [("x", c_uint), ("y", c_uint), ("z", c_uint)]

class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]

class Wrapper(ctypes.Structure):
    _fields_ = [("magic", c_int), ("version", c_int), ("data", c_void_p), ("names", c_void_p)]

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
torch.cuda.init()
gloo = dist.new_group(backend="gloo")
rt = ctypes.CDLL("libcudart.so.13")
kept = []

def kernel(symbol):
    data, host, name = (ctypes.create_string_buffer(64) for _ in range(3))
    name = c_char_p(symbol.encode())
    wrapper = Wrapper(0x466243B1, 1, addressof(data), None)
    begin = rt["__cudaRegisterFatBinary"]
    begin.restype = c_void_p
    handle = c_void_p(begin(byref(wrapper)))
    rt["__cudaRegisterFunction"](handle, host, name, name, c_int(-1), None, None, None, None, None)
    rt["__cudaRegisterFatBinaryEnd"](handle)
    kept.append((data, host, name, wrapper))
    return addressof(host)

def launch(function, blocks, stream, *arguments):
    array = (c_void_p * len(arguments))(*(addressof(a) for a in arguments))
    status = rt.cudaLaunchKernel(c_void_p(function), Dim(blocks, 1, 1), Dim(1024 if blocks > 1 else 1, 1, 1), array,
                                 c_size_t(0), c_void_p(stream.cuda_stream))
    assert status == 0, status

table = None

def register(size):
    "A block of every rank, as userbuffers-host.cpp does it; the first contains the table of all."
    global table
    own, mine = c_void_p(), Handle()
    assert rt.cudaMalloc(byref(own), c_size_t(size)) == 0
    assert rt.cudaIpcGetMemHandle(byref(mine), own) == 0
    all_of_them = [None] * world
    dist.all_gather_object(all_of_them, bytes(mine), group=gloo)
    pointers = (c_void_p * world)()
    for i, given in enumerate(all_of_them):
        if i == rank:
            pointers[i] = own.value
            continue
        there = c_void_p()
        assert rt.cudaIpcOpenMemHandle(byref(there), Handle.from_buffer_copy(given), c_uint(1)) == 0
        pointers[i] = there.value
    number = register.count
    register.count += 1
    if table is None:
        table = own.value
    assert rt.cudaMemcpy(c_void_p(table + number * world * 8), pointers, c_size_t(world * 8), c_int(1)) == 0
    return number, pointers

register.count = 0
"""
PROGRAM = (
    CUDA
    + """
_, flags = register(4 << 20)
number, buffer = register(64 << 20)
send, receive = kernel("_Z21kuserbuffers_pushsendPiS_P4int4S1_i"), kernel("_Z21kuserbuffers_pushrecviiiiPiS_imS_S_")
gather = kernel(f"_Z38userbuffers_fp16_sum_inplace_gpu_rw_agILi{world}EEviiiiiiiPPvim")
scatter = kernel(f"_Z42userbuffers_fp16_sum_inplace_gpu_rr_rs_oopILi{world}EEviiiiiiiiiPPviS0_m")
high = [torch.cuda.Stream(priority=-1) for _ in range(2)]
counter = torch.zeros(64, dtype=torch.int32, device="cuda")

def flag(of, sender):
    return c_void_p(flags[of] + 65536 + 4 * (sender * 32 + number))

def give(peer, lines, stream, blocks=1):
    here, there = c_void_p(buffer[rank]), c_void_p(buffer[peer])
    launch(send, blocks, stream, c_void_p(counter.data_ptr()), flag(peer, rank), here, there, c_int(lines))

def take(peer, stream):
    launch(receive, 1, stream, c_int(rank), c_int(peer), c_int(rank), c_int(peer), c_void_p(counter.data_ptr()),
           flag(rank, peer), c_int(1), c_uint64(1), c_void_p(), c_void_p())

def copy(peer, size, stream):
    status = rt.cudaMemcpyAsync(c_void_p(buffer[peer]), c_void_p(buffer[rank]), c_size_t(size), c_int(3),
                                c_void_p(stream.cuda_stream))
    assert status == 0

after, before = (rank + 1) % world, (rank - 1) % world
give(after, 0, high[0])  # loads the kernels
take(before, high[1])
torch.cuda.synchronize()
dist.barrier()
torch.cuda.synchronize()
if rank == 0:
    torch.cuda._sleep(20_000_000)  # the next one waits for its message
for stream in high:
    stream.wait_stream(torch.cuda.current_stream())
for _ in range(3):  # three under way at once: giving one waits for none
    copy(after, 16 << 20, high[0])
    give(after, 0, high[0])
for _ in range(3):
    take(before, high[1])
torch.cuda.synchronize()
dist.barrier()

give(after, (16 << 20) // 16, high[0], blocks=4)  # by a kernel
take(before, high[1])
torch.cuda.synchronize()
dist.barrier()

lines = (64 << 20) // 16 // world
together = [c_int(0), c_int(8192), c_int(0), c_int(rank), c_int(1), c_int(rank * lines), c_int(lines)]
place = [c_void_p(table), c_int(number * world)]
launch(gather, 16, high[0], *together, *place, c_uint64(1))
out = torch.ones(lines * 8, dtype=torch.bfloat16, device="cuda")
launch(scatter, 16, high[0], *together, c_int(lines), c_int(0), *place, c_void_p(out.data_ptr()), c_uint64(1))
torch.cuda.synchronize()
dist.barrier()

# Products next to one block that waits, and next to 16 that scatter.
a, b = (torch.empty(8192, 8192, dtype=torch.bfloat16, device="cuda") for _ in range(2))
for _ in range(2):
    a @ b
torch.cuda.synchronize()
dist.barrier()
if rank == 0:
    torch.cuda._sleep(20_000_000)
    give(1, 0, torch.cuda.current_stream())
elif rank == 1:
    take(0, high[1])
    a @ b
torch.cuda.synchronize()
if rank == 0:
    print(json.dumps({"summed": out[0].item()}))
"""
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    directory = tmp_path_factory.mktemp("userbuffers")
    (directory / "program.py").write_text(PROGRAM)
    done = trace(directory, "--cluster", "1x2xH100", "program.py")
    return done.report(), done.log


def of(log: Path, name: str, kind: str = "sendrecv") -> list[dict[str, Any]]:
    columns = ("rank", "name", "bytes", "start", "ready", "end", "algorithm", "value", "provenance")
    found = [r for r in records(log, kind, *columns) if name in r["name"]]
    return sorted(found, key=lambda r: (r["rank"], r["start"]))


def test_messages_wait_for_what_was_sent_and_for_nothing_else(run: tuple[dict[str, Any], Path]) -> None:
    _, log = run
    copies = [r for r in of(log, "PtoP") if r["bytes"] == 16 * MIB]
    assert [(r["rank"], r["value"]) for r in copies] == 3 * [(0, 1)] + 3 * [(1, 0)]
    takes = {rank: [r for r in of(log, "pushrecv") if r["rank"] == rank] for rank in (0, 1)}
    gives = {rank: [r for r in of(log, "pushsend") if r["rank"] == rank and not r["bytes"]] for rank in (0, 1)}
    for rank in (0, 1):
        for taken, given in zip(takes[rank][:4], gives[1 - rank][:4], strict=True):
            assert taken["end"] >= given["start"]
    assert takes[1][1]["end"] - takes[1][1]["start"] > 9_000_000, "20 million cycles"
    ended = copies[3]["start"], copies[5]["end"]  # of rank 1, whose peer takes nothing for as long as it sleeps
    assert ended[1] - ended[0] < 200_000


def test_a_kernel_copies_as_fast_as_its_blocks(run: tuple[dict[str, Any], Path]) -> None:
    pushed = [r for r in of(run[1], "pushsend") if r["bytes"] == 16 * MIB]
    assert [r["rank"] for r in pushed] == [0, 1]
    for row in pushed:
        assert 16 * MIB / (row["end"] - row["start"]) == pytest.approx(4 * 60, rel=0.05)
        assert row["algorithm"] == "PUSHED/SIMPLE/4"


def test_members_gather_and_scatter_together(run: tuple[dict[str, Any], Path]) -> None:
    found, log = run
    assert found["summed"] == 0
    for name in ("rw_ag<2>", "rr_rs<2>"):
        rows = of(log, name, "collective")
        assert [r["rank"] for r in rows] == [0, 1]
        assert len({r["end"] for r in rows}) == 1 and {r["bytes"] for r in rows} == {64 * MIB}
        assert {r["provenance"] for r in rows} == {"fitted"}
        assert 160_000 > rows[0]["end"] - rows[0]["ready"] > 32 * MIB / 400, "half of it, one way"


def test_one_block_that_waits_hardly_slows_a_product(run: tuple[dict[str, Any], Path]) -> None:
    columns = ("rank", "start", "end", "op")
    products = [
        r["end"] - r["start"] for r in records(run[1], "kernel", *columns) if r["rank"] == 1 and r["op"] == "aten::mm"
    ]
    assert len(products) == 3
    assert products[2] == pytest.approx(products[1], rel=0.1), "NCCL's kernel would cost a third of it"


REFUSED = """
launch(kernel(%r), 1, torch.cuda.current_stream(), *(c_uint64(0) for _ in range(20)))
torch.cuda.synchronize()
"""


@pytest.mark.parametrize(
    "symbol",
    [
        "_Z38userbuffers_fp16_sum_inplace_gpu_mc_agILi2EEviiiiiiiPPviP5uint4m",  # multicast
        "_Z21kuserbuffers_pullsendiiPiS_",
        "_Z15consumer_kernelPvi",  # waits for tiles of a product
        "_Z21kuserbuffers_pushsendPiS_P4int4S1_i",  # to nobody
    ],
)
def test_the_rest_is_refused_by_name(tmp_path: Path, symbol: str) -> None:
    (tmp_path / "program.py").write_text(CUDA + REFUSED % symbol)
    done = trace(tmp_path, "--cluster", "1x1xH100", "program.py", check=False)
    assert done.status
    assert "Transformer Engine's Userbuffers" in done.err
