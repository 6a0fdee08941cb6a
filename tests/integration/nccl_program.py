"""One rank of tests/integration/test_nccl_stub.py: calls NCCL's C interface without torch.

python nccl_program.py STUBS SESSION_FD RANK WORLD ID_FILE SCENARIO; prints one line of JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

INT8, UINT8, INT32, INT64, FLOAT16, FLOAT32, BFLOAT16 = 0, 1, 2, 4, 6, 7, 9
SUM, PROD, MAX, MIN, AVG = range(5)
UNDEFINED = -(2**31)


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_ubyte * 128)]


class Config(ctypes.Structure):
    """ncclConfig_t of NCCL 2.28; older layouts are prefixes of it."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        ("cga", ctypes.c_int),
        ("min_ctas", ctypes.c_int),
        ("max_ctas", ctypes.c_int),
        ("net", ctypes.c_char_p),
        ("split_share", ctypes.c_int),
        ("traffic", ctypes.c_int),
        ("name", ctypes.c_char_p),
        ("collnet", ctypes.c_int),
        ("policy", ctypes.c_int),
        ("shrink_share", ctypes.c_int),
        ("nvls", ctypes.c_int),
        ("per_peer", ctypes.c_int),
        ("sched", ctypes.c_int),
    )
    _unset = (
        "blocking",
        "cga",
        "min_ctas",
        "max_ctas",
        "split_share",
        "traffic",
        "collnet",
        "policy",
        "shrink_share",
        "nvls",
        "per_peer",
        "sched",
    )

    @classmethod
    def make(cls, **values: Any) -> Config:
        config = cls(size=ctypes.sizeof(cls), magic=0xCAFEBEEF, version=22809)
        for name, value in {**dict.fromkeys(cls._unset, UNDEFINED), **values}.items():
            setattr(config, name, value)
        return config


class Rank:
    """Connects and wraps the libraries. Device memory is addressed by plain integers."""

    def __init__(self, stubs: Path, fd: int, rank: int, world: int, id_file: Path, devices: int) -> None:
        self.rank, self.world, self.id_file = rank, world, id_file
        self.runtime = ctypes.CDLL(str(stubs / "libphantora_rank.so"), ctypes.RTLD_GLOBAL)
        names = sorted(path.name for path in stubs.glob("*.so.*"))
        self.cuda = ctypes.CDLL(str(stubs / next(n for n in names if n.startswith("libcudart"))), ctypes.RTLD_GLOBAL)
        self.nccl = ctypes.CDLL(str(stubs / "libnccl.so.2"), ctypes.RTLD_GLOBAL)
        self.nccl.ncclGetLastError.restype = self.nccl.ncclGetErrorString.restype = ctypes.c_char_p
        self.nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
        self.nccl.ncclCommInitRankConfig.argtypes = [*self.nccl.ncclCommInitRank.argtypes, ctypes.c_void_p]
        if self.runtime.ph_connect(fd, rank, rank, devices) != 0:
            raise SystemExit("cannot connect")
        self.cuda.cudaSetDevice(rank % devices)

    def end(self) -> None:
        self.runtime.ph_exit(0)

    def error(self) -> str:
        return str(self.nccl.ncclGetLastError(None).decode())

    def unique_id(self) -> UniqueId:
        """Rank 0's id, through a file."""
        made = UniqueId()
        if self.rank == 0:
            assert self.nccl.ncclGetUniqueId(ctypes.byref(made)) == 0
            partial = self.id_file.with_suffix(".partial")
            partial.write_bytes(bytes(made))
            partial.rename(self.id_file)
        while not self.id_file.exists():
            time.sleep(0.002)
        return UniqueId.from_buffer_copy(self.id_file.read_bytes())

    def communicator(self, name: bytes | None = None) -> ctypes.c_void_p:
        comm, config = ctypes.c_void_p(), Config.make(name=name, blocking=1)
        status = self.nccl.ncclCommInitRankConfig(
            ctypes.byref(comm), self.world, self.unique_id(), self.rank, ctypes.byref(config)
        )
        assert status == 0, self.error()
        return comm

    def malloc(self, size: int) -> int:
        pointer = ctypes.c_void_p()
        assert self.cuda.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size)) == 0
        assert pointer.value is not None
        return pointer.value

    def put(self, values: list[Any], form: str = "f", pointer: int = 0) -> int:
        data = struct.pack(f"<{len(values)}{form}", *values)
        pointer = pointer or self.malloc(len(data))
        assert self.cuda.cudaMemcpy(ctypes.c_void_p(pointer), data, ctypes.c_size_t(len(data)), 1) == 0
        return pointer

    def get(self, pointer: int, count: int, form: str = "f") -> list[Any]:
        data = ctypes.create_string_buffer(count * struct.calcsize(form))
        assert self.cuda.cudaMemcpy(data, ctypes.c_void_p(pointer), ctypes.c_size_t(len(data)), 2) == 0
        return list(struct.unpack(f"<{count}{form}", data.raw))

    def stream(self) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        assert self.cuda.cudaStreamCreateWithFlags(ctypes.byref(made), 1) == 0
        return made

    def call(self, name: str, *arguments: Any) -> int:
        """An NCCL call; integers of more than 31 bits and pointers must be wrapped by the caller."""
        return int(getattr(self.nccl, name)(*arguments))


def at(pointer: int | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(pointer)


def size(count: int) -> ctypes.c_size_t:
    return ctypes.c_size_t(count)


def errors(r: Rank) -> dict[str, Any]:
    comm, none = r.communicator(), ctypes.c_void_p()
    buffer, other, count = r.malloc(4096), ctypes.c_void_p(), ctypes.c_int()
    wrong, bad_config = UniqueId(), Config.make(max_ctas=0)
    unset = Config()
    old = Config.make(blocking=0)
    old.size = 20  # as in NCCL 2.14: ends behind `blocking`
    old.max_ctas = -5  # lies behind the end: must not be read
    mine = UniqueId()
    assert r.call("ncclGetUniqueId", ctypes.byref(mine)) == 0

    def reduce(send: int | None, receive: int | None, elements: int, dtype: int, op: int, where: Any) -> int:
        return r.call("ncclAllReduce", at(send), at(receive), size(elements), dtype, op, where, none)

    def init(members: int, rank: int, with_id: UniqueId, config: Config) -> int:
        return r.call("ncclCommInitRankConfig", ctypes.byref(other), members, with_id, rank, ctypes.byref(config))

    cases: dict[str, Callable[[], int]] = {
        "rank_too_large": lambda: init(2, 2, mine, Config.make()),
        "no_ranks": lambda: init(0, 0, mine, Config.make()),
        "foreign_id": lambda: init(1, 0, wrong, Config.make()),
        "bad_config": lambda: init(1, 0, mine, bad_config),
        "unset_config": lambda: init(1, 0, mine, unset),
        "old_config": lambda: init(1, 0, mine, old),
        "null_comm": lambda: reduce(buffer, buffer, 4, FLOAT32, SUM, none),
        "null_buffer": lambda: reduce(None, buffer, 4, FLOAT32, SUM, comm),
        "host_buffer": lambda: reduce(ctypes.addressof(mine), buffer, 4, FLOAT32, SUM, comm),
        "bad_type": lambda: reduce(buffer, buffer, 4, 12, SUM, comm),
        "bad_op": lambda: reduce(buffer, buffer, 4, FLOAT32, 5, comm),
        "overflow": lambda: reduce(buffer, buffer, 2**61, FLOAT32, SUM, comm),
        "bad_stream": lambda: r.call("ncclAllReduce", at(buffer), at(buffer), size(4), FLOAT32, SUM, comm, at(buffer)),
        "bad_root": lambda: r.call("ncclBroadcast", at(buffer), at(buffer), size(4), FLOAT32, 1, comm, none),
        "bad_peer": lambda: r.call("ncclSend", at(buffer), size(4), FLOAT32, -1, comm, none),
        "group_end": lambda: r.call("ncclGroupEnd"),
        "null_count": lambda: r.call("ncclCommCount", comm, None),
        "shrink_to_none": lambda: r.call(
            "ncclCommShrink", comm, (ctypes.c_int * 1)(0), 1, ctypes.byref(other), None, 0
        ),
        "device_interface": lambda: r.call("ncclDevCommCreate", comm, None, None),
        "no_count_is_nothing": lambda: reduce(None, None, 0, FLOAT32, SUM, comm),
        "count": lambda: r.call("ncclCommCount", comm, ctypes.byref(count)),
        "destroy": lambda: r.call("ncclCommDestroy", comm),
        "dead_comm": lambda: reduce(buffer, buffer, 4, FLOAT32, SUM, comm),
        "destroy_twice": lambda: r.call("ncclCommDestroy", comm),
    }
    found = {}
    for name, case in cases.items():
        status = case()
        found[name] = [status, r.error() if status else ""]
    texts = [r.nccl.ncclGetErrorString(code).decode() for code in range(9)]
    version = ctypes.c_int()
    r.call("ncclGetVersion", ctypes.byref(version))
    return {"cases": found, "texts": texts, "version": version.value, "count": count.value}


def values(r: Rank) -> dict[str, Any]:
    comm, me, n, none = r.communicator(), r.rank, r.world, ctypes.c_void_p()
    out: dict[str, Any] = {}

    def reduced(op: int, elements: list[Any], form: str = "f", dtype: int = FLOAT32) -> list[Any]:
        send, receive = r.put(elements, form), r.malloc(64)
        status = r.call("ncclAllReduce", at(send), at(receive), size(len(elements)), dtype, op, comm, none)
        assert status == 0, r.error()
        return r.get(receive, len(elements), form)

    out["sum"] = reduced(SUM, [me + 1.0, 10.0 * me])
    out["max"] = reduced(MAX, [float(me), -float(me)])
    out["avg"] = reduced(AVG, [float(me)] * 2)
    out["int64"] = reduced(SUM, [2**40 + me], "q", INT64)
    out["half"] = reduced(SUM, [0.5 * me], "e", FLOAT16)
    op, factor = ctypes.c_int(), ctypes.c_float(0.25)
    assert r.call("ncclRedOpCreatePreMulSum", ctypes.byref(op), ctypes.byref(factor), FLOAT32, 1, comm) == 0
    out["premul"] = reduced(op.value, [4.0 * me])
    on_device = ctypes.c_int()
    scalar = r.put([0.5])
    assert r.call("ncclRedOpCreatePreMulSum", ctypes.byref(on_device), at(scalar), FLOAT32, 0, comm) == 0
    r.put([2.0], pointer=scalar)  # read when the collective runs, not when the operator is made
    out["premul_device"] = reduced(on_device.value, [1.0])
    out["destroyed"] = [r.call("ncclRedOpDestroy", op, comm), r.call("ncclRedOpDestroy", op, comm)]

    gathered = r.malloc(4 * n)
    r.put([7.0 + me], pointer=gathered + 4 * me)  # in place
    assert r.call("ncclAllGather", at(gathered + 4 * me), at(gathered), size(1), FLOAT32, comm, none) == 0
    out["all_gather"] = r.get(gathered, n)
    # The result of one collective feeds the next before anybody has looked at it.
    assert r.call("ncclReduceScatter", at(gathered), at(gathered + 4 * me), size(1), FLOAT32, SUM, comm, none) == 0
    out["reduce_scatter"] = r.get(gathered + 4 * me, 1)

    everyone = r.put([100.0 * me + i for i in range(n)])
    exchanged = r.malloc(4 * n)
    assert r.call("ncclAlltoAll", at(everyone), at(exchanged), size(1), FLOAT32, comm, none) == 0
    out["all_to_all"] = r.get(exchanged, n)
    assert r.call("ncclScatter", at(everyone), at(exchanged), size(1), FLOAT32, 2, comm, none) == 0
    out["scatter"] = r.get(exchanged, 1)
    root_only = r.malloc(4 * n) if me == 1 else None
    assert r.call("ncclGather", at(everyone), at(root_only), size(1), FLOAT32, 1, comm, none) == 0
    out["gather"] = r.get(root_only, n) if root_only else None
    assert r.call("ncclReduce", at(everyone), at(root_only), size(2), FLOAT32, SUM, 1, comm, none) == 0
    out["reduce"] = r.get(root_only, 2) if root_only else None
    copied, source = r.malloc(8), everyone if me == 3 else None
    assert r.call("ncclBroadcast", at(source), at(copied), size(2), FLOAT32, 3, comm, none) == 0
    out["broadcast"] = r.get(copied, 2)

    payload = bytes((me + i) % 251 for i in range(1 << 18))  # of a pickled object: 1 MiB in all, carried
    block, blocks = r.malloc(len(payload)), r.malloc(len(payload) * n)
    assert r.cuda.cudaMemcpy(at(block), payload, size(len(payload)), 1) == 0
    assert r.call("ncclAllGather", at(block), at(blocks), size(len(payload)), UINT8, comm, none) == 0
    got = bytes(r.get(blocks, len(payload) * n, "B"))
    out["objects"] = all(
        got[k * len(payload)] == k % 251 and got[(k + 1) * len(payload) - 1] == (k + (1 << 18) - 1) % 251
        for k in range(n)
    )

    large = r.malloc(1 << 20)
    r.put([5.0] * 8, pointer=large)  # stale bytes: a large result reads as zeros
    assert r.call("ncclAllReduce", at(large), at(large), size(1 << 18), FLOAT32, SUM, comm, none) == 0
    out["large"] = r.get(large, 8)

    inbox, outbox = r.malloc(4), r.put([float(me)])
    r.call("ncclGroupStart")
    parts: list[Callable[[], int]] = [
        lambda: r.call("ncclSend", at(outbox), size(1), FLOAT32, (me + 1) % n, comm, none),
        lambda: r.call("ncclRecv", at(inbox), size(1), FLOAT32, (me - 1) % n, comm, none),
    ]
    statuses = [part() for part in (parts if me % 2 else reversed(parts))]  # both orders match
    statuses.append(r.call("ncclGroupEnd"))
    assert statuses == [0, 0, 0]
    out["ring"] = r.get(inbox, 1)
    assert r.call("ncclCommDestroy", comm) == 0
    return out


def groups(r: Rank) -> dict[str, Any]:
    comm, second = r.communicator(b"first"), ctypes.c_void_p()
    assert r.call("ncclCommSplit", comm, 0, r.rank, ctypes.byref(second), None) == 0
    streams = [r.stream(), r.stream()]
    a, b = r.malloc(1 << 20), r.malloc(1 << 20)
    peer = 1 - r.rank

    def reduce(where: Any, elements: int, stream: Any) -> int:
        return r.call("ncclAllReduce", at(a), at(a), size(elements), FLOAT32, SUM, where, stream)

    statuses = [
        r.call("ncclGroupStart"),
        reduce(comm, 4, streams[0]),
        r.call("ncclGroupStart"),  # nested: belongs to the outer one
        reduce(second, 8, streams[0]),
        reduce(comm, 1 << 18, streams[0]),
        r.call("ncclGroupEnd"),
        reduce(comm, 16, streams[1]),
        r.call("ncclGroupEnd"),
        r.call("ncclGroupStart"),
        r.call("ncclGroupEnd"),  # nothing in it
        r.call("ncclGroupStart"),
        r.call("ncclRecv", at(b), size(1 << 17), BFLOAT16, peer, comm, streams[1]),
        r.call("ncclSend", at(a), size(1 << 17), BFLOAT16, peer, comm, streams[1]),
        r.call("ncclGroupEnd"),
        r.call("ncclGroupStart"),
        reduce(comm, 4, streams[0]),
        r.call("ncclSend", at(a), size(4), FLOAT32, 9, comm, streams[0]),  # wrong: nothing is launched
        r.call("ncclGroupEnd"),
        r.call("ncclAllGather", at(a), at(b), size(1 << 15), BFLOAT16, comm, streams[0]),
    ]
    r.call("ncclCommDestroy", second)
    r.call("ncclCommDestroy", comm)
    return {"statuses": statuses}


def splits(r: Rank) -> dict[str, Any]:
    comm = r.communicator()
    out: dict[str, Any] = {}

    def describe(made: ctypes.c_void_p) -> list[Any] | None:
        if not made:
            return None
        count, rank, device = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        r.call("ncclCommCount", made, ctypes.byref(count))
        r.call("ncclCommUserRank", made, ctypes.byref(rank))
        r.call("ncclCommCuDevice", made, ctypes.byref(device))
        send, receive = r.put([float(r.rank)]), r.malloc(4 * count.value)
        assert r.call("ncclAllGather", at(send), at(receive), size(1), FLOAT32, made, None) == 0
        return [count.value, rank.value, device.value, [int(v) for v in r.get(receive, count.value)]]

    half, reverse, odd = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p(1)
    assert r.call("ncclCommSplit", comm, r.rank // 2, 0, ctypes.byref(half), None) == 0
    assert r.call("ncclCommSplit", comm, 5, -r.rank, ctypes.byref(reverse), None) == 0
    color = 1 if r.rank % 2 else -1
    assert r.call("ncclCommSplit", comm, color, 0, ctypes.byref(odd), None) == 0
    out["half"], out["reverse"], out["odd"] = describe(half), describe(reverse), describe(odd)
    if r.rank != 1:
        less = ctypes.c_void_p()
        assert r.call("ncclCommShrink", comm, (ctypes.c_int * 1)(1), 1, ctypes.byref(less), None, 0) == 0
        out["shrunk"] = describe(less)
    return out


def memory(r: Rank) -> dict[str, Any]:
    def free() -> int:
        left, total = ctypes.c_size_t(), ctypes.c_size_t()
        assert r.cuda.cudaMemGetInfo(ctypes.byref(left), ctypes.byref(total)) == 0
        return left.value

    before = free()
    comm = r.communicator()
    made = free()
    buffer = r.malloc(2 << 20)
    allocated = free()
    for _ in range(2):
        assert r.call("ncclAllReduce", at(buffer), at(buffer), size(4), FLOAT32, SUM, comm, None) == 0
    ring = free()
    peer = 1 - r.rank
    r.call("ncclGroupStart")
    r.call("ncclSend", at(buffer), size(4), FLOAT32, peer, comm, None)
    r.call("ncclRecv", at(buffer), size(4), FLOAT32, peer, comm, None)
    assert r.call("ncclGroupEnd") == 0
    pairs = free()
    assert r.call("ncclCommAbort", comm) == 0
    own = ctypes.c_void_p()
    assert r.call("ncclMemAlloc", ctypes.byref(own), size(1)) == 0
    with_own = free()
    assert r.call("ncclMemFree", own) == 0
    after = free()
    return {
        "init": before - made,
        "ring": allocated - ring,
        "pairs": ring - pairs,
        "own": after - with_own,
        "left": made - after - (made - allocated),
    }


def same_device(r: Rank) -> dict[str, Any]:
    r.cuda.cudaSetDevice(0)
    comm = ctypes.c_void_p()
    status = r.call("ncclCommInitRank", ctypes.byref(comm), r.world, r.unique_id(), r.rank)
    return {"status": status, "error": r.error(), "comm": comm.value}


def one_process(r: Rank) -> dict[str, Any]:
    comms = (ctypes.c_void_p * 2)()
    status = r.call("ncclCommInitAll", comms, 2, None)
    ranks = []
    for comm in comms:
        rank, device = ctypes.c_int(), ctypes.c_int()
        r.call("ncclCommUserRank", ctypes.c_void_p(comm), ctypes.byref(rank))
        r.call("ncclCommCuDevice", ctypes.c_void_p(comm), ctypes.byref(device))
        ranks.append([rank.value, device.value])
    twice = r.call("ncclCommInitAll", comms, 2, (ctypes.c_int * 2)(1, 1))
    return {"status": status, "ranks": ranks, "twice": [twice, r.error()]}


def pretended(r: Rank) -> dict[str, Any]:
    """Null mode: nobody answers, yet exchanged sizes must look plausible."""
    comm, half = r.communicator(), ctypes.c_void_p()
    count = ctypes.c_int()
    assert r.call("ncclCommSplit", comm, 0, 0, ctypes.byref(half), None) == 0
    r.call("ncclCommCount", half, ctypes.byref(count))
    send, gathered, inbox = r.put([5, 6], "q"), r.put([9] * 4, "q"), r.put([9], "q")
    assert r.call("ncclAllGather", at(send), at(gathered), size(2), INT64, comm, None) == 0
    out = {"count": count.value, "all_gather": r.get(gathered, 4, "q")}
    assert r.call("ncclRecv", at(inbox), size(1), INT64, 1 - r.rank, comm, None) == 0
    out["received"] = r.get(inbox, 1, "q")
    return out


SCENARIOS: dict[str, Callable[[Rank], dict[str, Any]]] = {
    "errors": errors,
    "values": values,
    "groups": groups,
    "splits": splits,
    "memory": memory,
    "same_device": same_device,
    "one_process": one_process,
    "pretended": pretended,
}


def main() -> None:
    stubs, fd, rank, world, id_file, scenario = sys.argv[1:]
    devices = int(os.environ["TEST_DEVICES"])
    this = Rank(Path(stubs), int(fd), int(rank), int(world), Path(id_file), devices)
    result = SCENARIOS[scenario](this)
    this.end()
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
