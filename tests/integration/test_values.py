"""The operator tracer in a real rank process: true small values, zeros, signatures, rows, host cost."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from phantora.wire import layout
from phantora.wire.names import TUNING
from tests.support import ringdump

PROGRAM = Path(__file__).parent / "values_program.py"
INTEGERS = Path(__file__).parent / "integers_program.py"
INSTALL = "ctypes.CDLL(str(stubs.ensure().tracer)).phantora_tracer_install()\n"


def run(text: str, **settings: Any) -> ringdump.Dump:
    dump = ringdump.run_script(INSTALL + text, **settings)
    assert dump.status == 0, dump.stderr
    return dump


def signatures(dump: ringdump.Dump) -> dict[int, Any]:
    return {record["id"]: json.loads(record["blob"]) for record in dump.of("DEFINE_SIGNATURE")}


def launched(dump: ringdump.Dump) -> list[Any]:
    """Signatures in the order in which operators first launched."""
    texts = signatures(dump)
    return [texts[record["id"]] for record in dump.of("OP_BEGIN")]


def find(dump: ringdump.Dump, name: str) -> Any:
    found = [signature for signature in launched(dump) if signature["op"] == name]
    assert found, f"{name} not among {[s['op'] for s in launched(dump)]}"
    return found[0]


def tensor(dtype: str, *shape: int, stride: list[int] | None = None) -> dict[str, Any]:
    dense, strides = 1, list[int]()
    for size in reversed(shape):
        strides.insert(0, dense)
        dense *= size
    return {"t": dtype, "s": list(shape), "st": strides if stride is None else stride}


# ---------------------------------------------------------------- values


def checks_of(program: Path) -> list[str]:
    return re.findall(r"^@check\ndef (\w+)", program.read_text(), re.MULTILINE)


def verdicts_of(program: Path) -> dict[str, str]:
    dump = run(f"import runpy\nrunpy.run_module('tests.integration.{program.stem}', run_name='__main__')\n")
    lines = [line.split(" ", 1) for line in dump.value.splitlines()]
    return {rest.split(":")[0]: f"{word} {rest}" for word, rest in lines}


@pytest.fixture(scope="module")
def verdicts(stub_set: Any) -> dict[str, str]:
    return verdicts_of(PROGRAM)


@pytest.fixture(scope="module")
def integers(stub_set: Any) -> dict[str, str]:
    return verdicts_of(INTEGERS)


@pytest.mark.parametrize("name", checks_of(PROGRAM))
def test_values(verdicts: dict[str, str], name: str) -> None:
    assert verdicts.get(name) == f"ok {name}"


@pytest.mark.parametrize("name", checks_of(INTEGERS))
def test_integers_are_true(integers: dict[str, str], name: str) -> None:
    assert integers.get(name) == f"ok {name}"


def test_without_the_tracer_nothing_is_true(stub_set: Any) -> None:
    """The values of the other tests come from the tracer."""
    dump = ringdump.run_script("print(torch.ones(3, device='cuda').sum().item())")
    assert dump.value.split() == ["0.0"]


def test_operators_wait_for_pending_results(stub_set: Any) -> None:
    """The result of a small collective is fetched when an operator needs it."""
    dump = run(
        "x = torch.empty(2, dtype=torch.int64, device='cuda')\n"
        "library.ph_expect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64]\n"
        "library.ph_expect(x.data_ptr(), 16, 77)\n"
        "print((x + 1).tolist())\n",
        payloads={77: (5).to_bytes(8, "little") + (9).to_bytes(8, "little")},
    )
    assert dump.value.strip() == "[6, 10]"


def test_null_mode_does_nothing(stub_set: Any) -> None:
    dump = run("print((torch.ones(3, device='cuda') + 1).tolist())", null_mode=True)
    assert dump.value.strip() == "[0.0, 0.0, 0.0]"
    assert dump.records == []


# ---------------------------------------------------------------- signatures


@pytest.fixture(scope="module")
def dump(stub_set: Any) -> ringdump.Dump:
    return run("""
a = torch.empty(64, 32, dtype=torch.bfloat16, device='cuda')
b = torch.empty(16, 32, dtype=torch.bfloat16, device='cuda')
a @ b.t()

a = torch.empty(2048, device='cuda')
torch.add(a, a, alpha=3)
a.to(torch.float16)
torch.linalg.vector_norm(a, float('inf'))
torch.full((2048,), 2.5, device='cuda')
for step in range(50):
    a.mul_(1 - 0.901 ** (step + 40))

few = [torch.empty(2048, device='cuda') for _ in range(2)]
torch._foreach_add_(few, few, alpha=2)
many = [torch.empty(100, 10, device='cuda') for _ in range(70)]
torch._foreach_mul_(many, 0.5)
index = torch.tensor([1, 2]).cuda()
few[0][index] = few[1][:2]
few[0].view(32, 64)[:, index] = 1.0

q = torch.empty(2, 8, 256, 64, dtype=torch.bfloat16, device='cuda', requires_grad=True)
torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()

torch.backends.cudnn.benchmark = True
torch.nn.functional.conv2d(torch.empty(8, 16, 28, 28, device='cuda'), torch.empty(48, 16, 3, 3, device='cuda'))
torch.backends.cudnn.benchmark = False
""")


def test_trials_of_cudnn_benchmark_are_tuning(dump: ringdump.Dump) -> None:
    names = {record["id"]: record["blob"].decode() for record in dump.of("DEFINE_NAME")}
    kinds = [
        "trial" if r["kind"] == "ANNOTATION" and names[r["id"]] == TUNING else r["kind"]
        for r in dump.records
        if r["kind"] in ("ANNOTATION", "KERNEL")
    ]
    assert kinds.count("trial") >= 2
    last = len(kinds) - kinds[::-1].index("trial")
    assert kinds[last:] == ["KERNEL"], "what is kept runs once more, and is no trial"


def test_signature_of_a_product(dump: ringdump.Dump) -> None:
    assert find(dump, "aten::mm") == {
        "op": "aten::mm",
        "args": [tensor("bfloat16", 64, 32), tensor("bfloat16", 32, 16, stride=[1, 32])],
        "bwd": False,
    }


def test_signatures_with_scalars_and_dtypes(dump: ringdump.Dump) -> None:
    t = tensor("float32", 2048)
    assert find(dump, "aten::add.Tensor")["args"] == [t, t, 3]
    assert find(dump, "aten::copy_")["args"] == [tensor("float16", 2048), t, False]
    assert find(dump, "aten::linalg_vector_norm")["args"] == [t, "inf", None, False, None]
    assert find(dump, "aten::fill_.Scalar")["args"] == [t, 2.5]


def test_numbers_that_change_every_step_make_one_signature(dump: ringdump.Dump) -> None:
    found = [s["args"] for s in signatures(dump).values() if s["op"] == "aten::mul_.Tensor"]
    assert found == [[tensor("float32", 2048), {**tensor("float64"), "d": "cpu"}]]


def test_signatures_of_lists(dump: ringdump.Dump) -> None:
    t = tensor("float32", 2048)
    assert find(dump, "aten::_foreach_add_.List")["args"] == [{"l": [t, t]}, {"l": [t, t]}, 2]
    assert find(dump, "aten::_foreach_mul_.Scalar")["args"] == [
        {"l": [tensor("float32", 100, 10)] * 8, "n": 70, "numel": 70000, "bytes": 280000},
        0.5,
    ]
    puts = [s["args"] for s in launched(dump) if s["op"] == "aten::_index_put_impl_"]
    assert puts[0][:3] == [t, {"l": [tensor("int64", 2)]}, tensor("float32", 2)]
    assert puts[1][1] == {"l": [None, tensor("int64", 2)]}


def test_signatures_of_attention(dump: ringdump.Dump) -> None:
    """On compute capability 9.0 torch takes cuDNN's attention."""
    attention = [s for s in launched(dump) if "attention" in s["op"]]
    assert [("backward" in s["op"], s["bwd"]) for s in attention] == [(False, False), (True, True)]
    assert all("cudnn" in s["op"] for s in attention)
    assert attention[0]["args"][:3] == [tensor("bfloat16", 2, 8, 256, 64)] * 3
    assert True in attention[0]["args"]
    flags = [record["flags"] & layout.Flag["PH_F_BACKWARD"] for record in dump.of("OP_BEGIN")]
    assert [bool(flag) for flag in flags] == [s["bwd"] for s in launched(dump)]


# ---------------------------------------------------------------- rows


def test_operators_enclose_their_launches(dump: ringdump.Dump) -> None:
    open_operators: list[int] = []
    launches = 0
    for record in dump.records:
        if record["kind"] == "OP_BEGIN":
            assert record["op"] not in open_operators
            assert record["start"] <= record["time"]
            open_operators.append(record["op"])
        elif record["kind"] == "OP_END":
            assert open_operators.pop() == record["op"]
        elif record["kind"] in ("KERNEL", "MEMSET", "MEMCPY"):
            assert record["op"] == open_operators[-1]
            launches += 1
    assert launches >= 60 and not open_operators


def test_annotations(stub_set: Any) -> None:
    dump = run(
        "p = torch.nn.Parameter(torch.empty(2048, device='cuda'))\n"
        "optimizer = torch.optim.AdamW([p], lr=0.1)\n"
        "with torch.profiler.record_function('ProfilerStep#3'):\n"
        "    p.grad = torch.zeros_like(p)\n"
        "    optimizer.step()\n",
        api_ns={"OP_TOP": 1000, "ANNOTATION": 10},
    )
    names = {record["id"]: record["blob"].decode() for record in dump.of("DEFINE_NAME")}
    found = {names[record["id"]]: record for record in dump.of("ANNOTATION")}
    assert list(found) == ["Optimizer.step#AdamW.step", "ProfilerStep#3"]
    inner, outer = found.values()
    assert outer["start"] < inner["start"] < inner["time"] <= outer["time"]


def test_host_cost(stub_set: Any) -> None:
    """Per operator: from Python, from another operator or node, views, allocations, autograd nodes."""
    prices = {"OP_TOP": 10**9, "OP_NESTED": 10**6, "OP_VIEW": 10**3, "OP_VIEW_NESTED": 1, "OP_ALLOC": 10**12}
    prices |= {"OP_ALLOC_NESTED": 10**6, "OP_NODE": 10**6, "OP_BACKWARD": 10**15, "OP_ACCUMULATE": 10**15}
    dump = run(
        "library.ph_now.restype = ctypes.c_int64\n"
        "a = torch.empty(64, 64, device='cuda', requires_grad=True)\n"
        "b = torch.empty(64, 64, device='cuda')\n"
        "def cost(f):\n"
        "    before = library.ph_now(); f(); print(library.ph_now() - before)\n"
        "cost(lambda: b.add_(1))\n"
        "cost(lambda: b.view(4096))\n"
        "cost(lambda: torch.empty(5, device='cuda'))\n"
        "cost(lambda: torch.zeros(5, device='cuda'))\n"
        "cost(lambda: torch.nn.functional.linear(b, b))\n"
        "y = a.mul(b)\n"
        "cost(lambda: torch.autograd.backward(y, b))\n",
        api_ns=prices,
    )
    add, view, empty, zeros, linear, backward = (int(line) for line in dump.value.split())
    assert (add, view, empty) == (10**9, 10**3, 10**12)
    assert zeros == 10**9 + 3 * 10**6  # zeros -> empty, zero_ -> fill_
    assert linear // 10**6 == 1002 and linear % 10**6 >= 2  # linear -> views, matmul -> mm
    nodes, rest = divmod(backward, 10**15)
    assert nodes == 2  # MulBackward0 and AccumulateGrad
    assert rest % 10**9 >= 10**6


def test_capacity(stub_set: Any) -> None:
    """Context and libraries have their share; what is left, and what the context gives back, can be had."""
    dump = run(
        "def left(): torch.cuda.empty_cache(); return torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()\n"
        "x = torch.ones(64, 64, device='cuda')\n"
        "fresh, total = left(), torch.cuda.mem_get_info()[1]\n"
        "x @ x\n"
        "products = left()\n"
        "torch.nn.functional.conv2d(x.view(1, 1, 64, 64), x[:1, :1, None, None])\n"
        "print(total - fresh, fresh - products, products - left())\n"
        f"most = torch.cuda.mem_get_info()[0] + {ringdump.DEVICE['spare_bytes']} >> 21 << 21\n"
        "torch.empty(most, dtype=torch.uint8, device='cuda')\n"
        "torch.cuda.empty_cache()\n"
        "try: torch.empty(most + 1, dtype=torch.uint8, device='cuda')\n"
        "except torch.OutOfMemoryError: print('full', total - left())\n"
    )
    taken, full = dump.value.strip().splitlines()
    assert taken.split() == [str(ringdump.DEVICE[name]) for name in ("context_bytes", "cublas_bytes", "cudnn_bytes")]
    rest = ringdump.DEVICE["context_bytes"] - ringdump.DEVICE["spare_bytes"] + (76 << 20)
    assert full.split() == ["full", str(rest)]


def test_launches_look_for_room_between_operators(stub_set: Any) -> None:
    """Every 128 kernels, before an operator's first: what an open one has launched has no price yet."""
    dump = run(
        "xs = [torch.ones(10, device='cuda') for _ in range(100)]\nfor _ in range(300): torch._foreach_norm(xs)\n"
    )
    since, open_, waits = 0, 0, []
    for kind in dump.kinds():
        since += kind == "KERNEL"
        open_ += (kind == "OP_BEGIN") - (kind == "OP_END")
        if kind == "ROOM":
            assert not open_
            waits.append(since)
            since = 0
    kernels = dump.kinds().count("KERNEL")
    assert kernels > 300 and len(dump.of("OP_BEGIN")) < kernels  # some launch several
    assert len(waits) == kernels // 128 > 2 and all(127 <= wait < 132 for wait in waits)


def test_memory_rows_agree_with_torch(stub_set: Any) -> None:
    dump = run(
        "a = torch.empty(1000, 1000, device='cuda')\n"
        "b = torch.empty(3, device='cuda')\n"
        "c = torch.empty(40 << 20, dtype=torch.uint8, device='cuda')\n"
        "torch.zeros(5000, device='cuda').add(1)\n"
        # At the peak, within one call, lies a workspace in a block that is larger than what was asked for.
        "x, w = torch.empty(728, 16, 32, 32, device='cuda'), torch.empty(16, 16, 3, 3, device='cuda')\n"
        "torch.nn.functional.conv2d(x, w, padding=1)\n"
        "del a, x, w\n"
        "now, reserved = torch.cuda.memory_allocated, torch.cuda.memory_reserved\n"
        "print(now(), reserved(), torch.cuda.max_memory_allocated())\n"
        "del c\n"
        "torch.cuda.empty_cache()\n"
        "print(now(), reserved())\n"
        "try: torch.empty(10 << 30, dtype=torch.uint8, device='cuda')\n"
        "except torch.OutOfMemoryError: print('full')\n"
    )
    first, last, oom = (line.split() for line in dump.value.strip().splitlines())
    assert oom == ["full"]
    rows = dump.of("MEMORY")
    kinds = [layout.Mem.names()[record["id"]] for record in rows]
    totals = [(record["allocated"], record["reserved"]) for record in rows]
    assert (int(first[0]), int(first[1])) in totals
    assert max(allocated for allocated, _ in totals) == int(first[2])
    assert totals[-1] == (int(last[0]), int(last[1]))
    assert kinds[0] == "SEGMENT_ALLOC" and kinds[-2:] == ["OOM", "SITE"] and "SEGMENT_FREE" in kinds
    blocks = [record["change"] for record, kind in zip(rows, kinds, strict=True) if kind in ("ALLOC", "FREE")]
    assert sum(blocks) == int(last[0])


def test_a_collection_of_garbage_frees_in_the_order_of_blocks(stub_set: Any) -> None:
    """Python's own order is that of its objects, which depends on their addresses and on earlier collections."""
    dump = run(
        "import gc\n"
        "from phantora.rank.patch import Rank\n"
        "from phantora.rank.patches import garbage\n"
        "garbage.PATCH.install(Rank(stubs.ensure(), ctypes.CDLL(None)))\n"
        "x = [torch.empty(1000 + i, device='cuda') for i in range(8)]\n"
        "for i in 3, 1, 7, 2, 0, 5, 4, 6:\n"
        "    cycle = [x[i].detach()]; cycle.append(cycle)\n"
        "del x, cycle\n"
        "gc.collect()\n"
    )
    rows = [(r["address"], r["change"], r["allocated"]) for r in dump.of("MEMORY")[1:]]  # of one segment
    made, freed = rows[:8], rows[8:]
    assert [row[0] for row in freed] == [row[0] for row in made] == sorted(row[0] for row in made)
    assert [row[1:] for row in freed] == [(-4096, 4096 * left) for left in reversed(range(8))]
