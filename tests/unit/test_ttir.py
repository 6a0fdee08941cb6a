"""Following Triton IR: what a launch reads, writes and multiplies, program by program."""

from __future__ import annotations

import json
import lzma
import re
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
from triton._C.libtriton import ir

from phantora.cost.analytic_model import AnalyticModel
from phantora.cost.machine import Machine
from phantora.cost.parse import parse_signature, write_signature
from phantora.cost.triton_work import estimate, resident
from phantora.cost.types import KernelLaunch, OperatorSignature, TensorSpec
from phantora.hardware import load_gpu
from phantora.ttir.launch import Launch, Memory, UnknownIntegers
from phantora.ttir.operations import priced
from phantora.ttir.parse import Unreadable, parse
from phantora.ttir.programs import work_of
from phantora.ttir.slice import deciding, written
from phantora.ttir.stores import stores_of
from phantora.ttir.work import LOOPS, Dot, Work
from validation import data

HEAD = "module {\n  tt.func public @kernel("
ROWS = (
    HEAD
    + """%y: !tt.ptr<bf16> {tt.divisibility = 16 : i32} loc("y"(#loc)), %x: !tt.ptr<bf16>, %n: i32, %seed: i32) {
    %row = tt.get_program_id x : i32 loc(#loc1)
    %start = arith.muli %row, %n : i32
    %at = tt.make_range {end = 1024 : i32, start = 0 : i32} : tensor<1024xi32>
    %ns = tt.splat %n : i32 -> tensor<1024xi32>
    %inside = arith.cmpi slt, %at, %ns : tensor<1024xi32>
    %px = tt.addptr %x, %start : !tt.ptr<bf16>, i32
    %pxs = tt.splat %px : !tt.ptr<bf16> -> tensor<1024x!tt.ptr<bf16>>
    %pxa = tt.addptr %pxs, %at : tensor<1024x!tt.ptr<bf16>>, tensor<1024xi32>
    %v = tt.load %pxa, %inside : tensor<1024x!tt.ptr<bf16>>
    %w = arith.extf %v : tensor<1024xbf16> to tensor<1024xf32>
    %sum = "tt.reduce"(%w) <{axis = 0 : i32}> ({
    ^bb0(%a: f32, %b: f32):
      %c = arith.addf %a, %b : f32
      tt.reduce.return %c : f32
    }) : (tensor<1024xf32>) -> f32
    %noise = tt.splat %seed : i32 -> tensor<1024xi32>
    %real = arith.sitofp %noise : tensor<1024xi32> to tensor<1024xf32>
    %e = math.exp %real : tensor<1024xf32>
    %r = arith.truncf %e : tensor<1024xf32> to tensor<1024xbf16>
    %py = tt.addptr %y, %start : !tt.ptr<bf16>, i32
    %pys = tt.splat %py : !tt.ptr<bf16> -> tensor<1024x!tt.ptr<bf16>>
    %pya = tt.addptr %pys, %at : tensor<1024x!tt.ptr<bf16>>, tensor<1024xi32>
    tt.store %pya, %r, %inside : tensor<1024x!tt.ptr<bf16>>
    tt.return
  }
}
"""
)
LOOP = (
    HEAD
    + """%a: !tt.ptr<bf16>, %lengths: !tt.ptr<i32>) {
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %cst = arith.constant dense<0.000000e+00> : tensor<64x128xf32>
    %me = tt.get_program_id x : i32
    %where = tt.addptr %lengths, %me : !tt.ptr<i32>, i32
    %length = tt.load %where : !tt.ptr<i32>
    %i = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32>
    %column = tt.expand_dims %i {axis = 1 : i32} : tensor<64xi32> -> tensor<64x1xi32>
    %j = tt.make_range {end = 32 : i32, start = 0 : i32} : tensor<32xi32>
    %line = tt.expand_dims %j {axis = 0 : i32} : tensor<32xi32> -> tensor<1x32xi32>
    %c32 = arith.constant dense<32> : tensor<64x1xi32>
    %steps = arith.muli %column, %c32 : tensor<64x1xi32>
    %wide = tt.broadcast %steps : tensor<64x1xi32> -> tensor<64x32xi32>
    %lines = tt.broadcast %line : tensor<1x32xi32> -> tensor<64x32xi32>
    %offset = arith.addi %wide, %lines : tensor<64x32xi32>
    %base = tt.splat %a : !tt.ptr<bf16> -> tensor<64x32x!tt.ptr<bf16>>
    %p = tt.addptr %base, %offset : tensor<64x32x!tt.ptr<bf16>>, tensor<64x32xi32>
    %found = scf.for %k = %zero to %length step %one iter_args(%total = %cst) -> (tensor<64x128xf32>)  : i32 {
      %x = tt.load %p : tensor<64x32x!tt.ptr<bf16>>
      %unit = arith.constant dense<0.000000e+00> : tensor<32x128xbf16>
      %next = tt.dot %x, %unit, %total : tensor<64x32xbf16> * tensor<32x128xbf16> -> tensor<64x128xf32>
      scf.yield %next : tensor<64x128xf32>
    }
    tt.return
  }
}
"""
)


def rows(n: int, programs: int, seed: int = 1) -> Launch:
    size = 2 * n * programs
    tensors = Memory(1 << 20, size, size), Memory(1 << 30, size, size)
    return Launch((programs, 1, 1), (*tensors, n, seed), 4, stages=3)


def test_rows_are_read_and_written_once() -> None:
    work = work_of(parse(ROWS), rows(1000, 512))
    once = 2 * 1000 * 512
    assert (work.read, work.written) == pytest.approx((once, once), rel=0.02)
    assert work.counts["load_bytes"] == 2000
    assert work.counts["crossings"] == 1
    assert work.counts["mufu"] >= 1024
    assert work.longest == 1.0


def test_what_decides() -> None:
    found = deciding(parse(ROWS))
    assert found.direct == {"%y", "%x", "%n"}  # not the seed
    assert not found.read
    assert deciding(parse(LOOP)).read == {"%lengths"}
    assert written(parse(ROWS)) == {"%y"}


def loop(lengths: list[int]) -> Launch:
    held = np.array(lengths, np.int32)
    memory = Memory(1 << 30, held.nbytes, held.nbytes, lambda: held.view(np.uint8))
    return Launch(
        (len(lengths), 1, 1), (Memory(1 << 20, 1 << 16, 1 << 16), memory), 4, stages=3, shared=50_000, registers=64
    )


def test_loops_take_their_bounds_from_memory() -> None:
    work = work_of(parse(LOOP), loop([0, 3, 1000, 21]))
    each = 2.0 * 64 * 128 * 32
    assert work.counts["flops"] * work.programs == each * 1024
    assert work.dots[0].count * work.programs == 1024
    assert (work.dots[0].m, work.dots[0].n, work.dots[0].k, work.dots[0].dtype) == (64, 128, 32, "bfloat16")
    assert work.longest == pytest.approx(1000 / 256, rel=0.01)
    assert work.read <= (1 << 16) + 16 * 32
    assert not work.unknown


def test_masked_integers_read_as_zero() -> None:
    never = "%jump = arith.muli %unread, %zero : i32\n    %from = tt.addptr %a, %jump : !tt.ptr<bf16>, i32\n    %base"
    masked = "%no = arith.constant false\n    %unread = tt.load %where, %no : !tt.ptr<i32>\n    "
    text = LOOP.replace("%base", masked + never, 1)
    text = text.replace("tt.splat %a :", "tt.splat %from :")
    known, same = work_of(parse(text), loop([4])), work_of(parse(LOOP), loop([4]))
    assert not known.unknown
    assert (known.counts["accesses"], known.counts["piped"]) == (same.counts["accesses"] + 1, same.counts["piped"])


def test_few_programs_at_an_end_of_the_grid_count() -> None:
    lengths = [400] * 16 + [4] * 304  # gradients of keys, and of queries of grouped heads
    dots = work_of(parse(LOOP), loop(lengths)).dots
    assert dots[0].count == pytest.approx(sum(lengths) / len(lengths), rel=0.15)


def nobody_knows() -> np.ndarray:
    raise UnknownIntegers


def test_bounds_that_nobody_knows_make_a_wide_bar() -> None:
    unknown = Memory(1 << 30, 16, 16, nobody_knows)
    work = work_of(parse(LOOP), replace(loop([1, 1, 1, 1]), arguments=(Memory(1 << 20, 1 << 26, 1 << 26), unknown)))
    assert work.unknown == (LOOPS,)
    assert work.counts["flops"] == 2.0 * 64 * 128 * 32  # once
    args = (TensorSpec("bfloat16", (1 << 25,), stride=(1,)),)
    known, guessed, product, other = (
        AnalyticModel(load_gpu("H100")).operator(OperatorSignature("triton::kernel", args, **how), ())
        for how in ({"work": replace(work, unknown=())}, {"work": work}, {"products": True}, {"products": False})
    )
    assert sum(guessed.durations) == sum(product.durations)
    assert sum(product.durations) / sum(other.durations) == pytest.approx(6.6 / 1.3, rel=0.05)  # by their tensors
    assert (known.error, guessed.error, other.error) == (0.43, 2.7, 2.2)


GATHER = (
    HEAD
    + """%y: !tt.ptr<bf16>, %x: !tt.ptr<bf16>, %which: !tt.ptr<i32>, %lock: !tt.ptr<i32>) {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %c256 = arith.constant 256 : i32
    %limit = arith.constant 0.000000e+00 : f32
    %me = tt.get_program_id x : i32
    %where = tt.addptr %which, %me : !tt.ptr<i32>, i32
    %row = tt.load %where : !tt.ptr<i32>
    %start = arith.muli %row, %c256 : i32
    %at = tt.make_range {end = 256 : i32, start = 0 : i32} : tensor<256xi32>
    %px = tt.addptr %x, %start : !tt.ptr<bf16>, i32
    %pxs = tt.splat %px : !tt.ptr<bf16> -> tensor<256x!tt.ptr<bf16>>
    %pxa = tt.addptr %pxs, %at : tensor<256x!tt.ptr<bf16>>, tensor<256xi32>
    %v = tt.load %pxa : tensor<256x!tt.ptr<bf16>>
    %w = arith.extf %v : tensor<256xbf16> to tensor<256xf32>
    %sum = "tt.reduce"(%w) <{axis = 0 : i32}> ({
    ^bb0(%a: f32, %b: f32):
      %c = arith.addf %a, %b : f32
      tt.reduce.return %c : f32
    }) : (tensor<256xf32>) -> f32
    %small = arith.cmpf olt, %sum, %limit : f32
    cf.cond_br %small, ^bb1, ^bb2
  ^bb1:  // pred: ^bb0
    tt.return
  ^bb2:  // pred: ^bb0
    scf.while : () -> () {
      %held = tt.atomic_cas acq_rel, gpu, %lock, %c0, %c1 : (!tt.ptr<i32>, i32, i32) -> i32
      %taken = arith.cmpi eq, %held, %c1 : i32
      scf.condition(%taken)
    } do {
      scf.yield
    }
    %py = tt.splat %y : !tt.ptr<bf16> -> tensor<256x!tt.ptr<bf16>>
    %pya = tt.addptr %py, %at : tensor<256x!tt.ptr<bf16>>, tensor<256xi32>
    tt.store %pya, %v : tensor<256x!tt.ptr<bf16>>
    tt.return
  }
}
"""
)


def test_rows_picked_by_unknown_integers_locks_and_early_ends() -> None:
    rows = 1000
    tensors = Memory(1 << 20, 512, 512), Memory(1 << 30, 512 * rows, 512 * rows)
    picked, lock = Memory(1 << 24, 4 * rows, 4 * rows, nobody_knows), Memory(1 << 25, 4, 4)
    work = work_of(parse(GATHER), Launch((rows, 1, 1), (*tensors, picked, lock), 4, stages=3))
    assert work.read == pytest.approx(512 * rows + 4 * rows, rel=0.1)  # each row once
    assert work.counts["store_bytes"] >= 512  # it does not end early
    assert work.counts["atomics"] == 1  # the lock is free
    assert work.unknown == (
        "integers in memory, which are taken to count up",
        "whether it ends early, which it is taken not to",
    )
    price = AnalyticModel(load_gpu("H100")).operator(OperatorSignature("triton::kernel", (), work=work), ())
    assert price.error == 1.0
    data = parse(GATHER.replace("bf16", "i8"))  # integers that pick nothing
    unknown = Memory(1 << 30, 256 * rows, 256 * rows, nobody_knows)
    known = Memory(1 << 24, 4 * rows, 4 * rows, lambda: np.arange(rows, dtype=np.int32).view(np.uint8))
    work = work_of(data, Launch((rows, 1, 1), (tensors[0], unknown, known, lock), 4, stages=3))
    assert work.unknown == ("whether it ends early, which it is taken not to",)


@pytest.mark.parametrize(("apart", "moved", "filled"), [(1, 1, 0), (2, 2, 2), (1000, 32, 0)])
def test_what_is_stored_apart_takes_pairs_of_sectors(apart: int, moved: int, filled: int) -> None:
    """1,000 programs store 256 elements of 2 bytes each: side by side, every second, or as columns of a matrix."""
    text = (
        HEAD
        + """%y: !tt.ptr<bf16>, %step: i32, %from: i32) {
    %me = tt.get_program_id x : i32
    %start = arith.muli %me, %from : i32
    %at = tt.make_range {end = 256 : i32, start = 0 : i32} : tensor<256xi32>
    %steps = tt.splat %step : i32 -> tensor<256xi32>
    %far = arith.muli %at, %steps : tensor<256xi32>
    %v = arith.constant dense<0.000000e+00> : tensor<256xbf16>
    %py = tt.addptr %y, %start : !tt.ptr<bf16>, i32
    %pys = tt.splat %py : !tt.ptr<bf16> -> tensor<256x!tt.ptr<bf16>>
    %pya = tt.addptr %pys, %far : tensor<256x!tt.ptr<bf16>>, tensor<256xi32>
    tt.store %pya, %v : tensor<256x!tt.ptr<bf16>>
    tt.return
  }
}
"""
    )
    size = 512 * 1000 * (2 if apart == 2 else 1)
    given = (Memory(1 << 20, size, size), apart, 1 if apart == 1000 else 256 * apart)
    work = work_of(parse(text), Launch((1000, 1, 1), given, 4, stages=3))
    assert work.counts["store_sectors"] == 512 * moved
    assert work.counts.get("partial", 0) == (512 * moved if moved > 1 else 0)
    assert work.written == size
    assert work.read == pytest.approx(size if filled else 0)


def test_columns_larger_than_l2_are_never_found_there() -> None:
    machine = Machine(load_gpu("H100"))
    counts = {"store_bytes": 262144.0, "store_sectors": 4194304.0, "partial": 4194304.0, "steps": 16.0, "stores": 16.0}
    small, large = (
        estimate(
            machine,
            Work(
                programs=256,
                warps=8,
                stages=1,
                shared=0,
                registers=32,
                spills=0,
                counts=counts,
                longest=1.0,
                read=0.0,
                written=written,
            ),
        ).ns
        for written in (40e6, 67e6)
    )
    assert large > 2.5 * small


def test_equal_iterations_are_counted_without_being_run() -> None:
    long, short = work_of(parse(LOOP), loop([1_000_000])), work_of(parse(LOOP), loop([1000]))
    assert long.counts["flops"] == 1000 * short.counts["flops"]


def test_text_that_is_no_ir_says_so() -> None:
    with pytest.raises(Unreadable):
        parse("define void @kernel()")
    with pytest.raises(Unreadable, match="takes 4 arguments, 1 were given"):
        work_of(parse(ROWS), Launch((1, 1, 1), (1,), 4, stages=3))


def test_work_travels_in_signatures() -> None:
    work = work_of(parse(LOOP), loop([8, 8]))
    text = write_signature(OperatorSignature("triton::kernel", (), work=work))
    read = parse_signature(text).work
    assert read is not None and read.text() == work.text()


def test_price_is_bound_by_bytes_and_by_products() -> None:
    machine = Machine(load_gpu("H100"))
    copied = estimate(machine, work_of(parse(ROWS), rows(1000, 200_000)))
    assert copied.ns > 2 * 2 * 1000 * 200_000 / machine.gpu.hbm_bandwidth * 1e9
    multiplied = work_of(parse(LOOP), loop([4000] * 264))
    flops = 2.0 * 64 * 128 * 32 * 4000 * 264
    assert estimate(machine, multiplied).ns > flops / machine.peak("bfloat16")
    assert resident(machine, multiplied) == 4  # by shared memory


def test_spilled_registers_of_an_attention_cost_less_than_those_of_a_product() -> None:
    """FlexAttention's gradient with a mask of documents and capped scores, 8,192 tokens: 1.05 ms on an H200."""
    counts = {"alu": 1810124.8, "mufu": 138444.8, "integer": 92201.6, "convert": 230195.2, "again": 3328.0}
    counts |= {"load_bytes": 637069.6, "load_sectors": 639193.6, "loads": 111.2, "store_bytes": 39321.6}
    counts |= {"store_sectors": 39321.6, "stores": 1.2, "accesses": 44072.2, "phases": 6.6, "piped": 92.4}
    counts |= {"flops": 124780544.0, "dots": 59.5, "steps": 17.7, "instructions": 3101163.5}
    dots = Dot(128, 64, 128, "bfloat16", 33.8), Dot(128, 128, 64, "bfloat16", 25.7)
    work = Work(
        programs=1280,
        warps=8,
        stages=3,
        shared=166400,
        registers=255,
        spills=148,
        counts=counts,
        longest=4.2975,
        read=85066752.0,
        written=50331648.0,
        dots=dots,
    )
    machine = Machine(load_gpu("H200"))
    assert estimate(machine, work).ns == pytest.approx(1_050_000, rel=0.15)
    alone = replace(work, counts={**counts, "steps": 59.5})
    assert estimate(machine, alone).ns > 3 * estimate(machine, work).ns


def test_kernels_that_cannot_be_followed_are_priced_by_their_tensors() -> None:
    gpu = load_gpu("H100")
    tensor = TensorSpec("bfloat16", (8192, 8192), stride=(8192, 1))
    signature = OperatorSignature("triton::mm", (tensor, tensor, tensor))
    price = AnalyticModel(gpu).operator(signature, (KernelLaunch("mm"),))
    assert (price.cls, price.bytes) == ("other", 3 * 2 * 8192**2)
    assert price.durations[0] > price.bytes / gpu.hbm_bandwidth * 1e9
    assert price.error is not None and price.error >= 0.5


def test_templates_of_products_are_priced_by_their_tiles() -> None:
    """Candidates of Inductor's tuning for 8192 x 2048 x 6144 on an H100: none below the peak, small tiles last."""
    texts = json.loads(lzma.decompress((data.MEASUREMENTS / "2026-11-22-h100/triton_ir.xz").read_bytes()))
    machine = Machine(load_gpu("H100"))
    found: dict[tuple[int, ...], float] = {}
    for row in data.rows("2026-11-22-h100/triton.jsonl.xz"):
        if row.get("case") != "mm 8192 2048 6144" or row.get("aten", True) or len(found) == 8:
            continue
        launch = row["launch"]
        memories = [
            Memory(a["p"], 2 * prod(a["s"]), 2 * prod(a["s"])) if isinstance(a, dict) else a for a in launch["args"]
        ]
        x, y, z = (*launch["grid"], 1, 1)[:3]
        given = Launch(
            (x, y, z),
            tuple(memories),
            launch["warps"],
            stages=launch["stages"],
            shared=launch["shared"],
            registers=launch["regs"],
            spills=launch["spills"],
        )
        work = work_of(parse(texts[launch["ir"]]), given)
        (dot,) = work.dots
        found[dot.m, dot.n, dot.k, launch["warps"], launch["stages"]] = estimate(machine, work).ns
    assert len(found) == 8 and len({round(ns) for ns in found.values()}) == 8
    assert min(found.values()) > 2 * 8192 * 2048 * 6144 / machine.peak("bfloat16")
    tiles = sorted(found, key=lambda key: found[key])
    assert tiles[0][0] * tiles[0][1] >= 4 * tiles[-1][0] * tiles[-1][1]


def test_names_of_loops_side_by_side_are_apart() -> None:
    """MLIR names values anew in each region: a number that is drawn in one loop is no address of the next."""
    ir = (
        HEAD
        + """%seeds: !tt.ptr<i64>, %out: !tt.ptr<f32>, %n: i32) {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %zero = arith.constant 0.000000e+00 : f32
    %sum = scf.for %i = %c0 to %n step %c1 iter_args(%kept = %zero) -> (f32)  : i32 {
      %3 = tt.load %seeds : !tt.ptr<i64>
      %4 = arith.sitofp %3 : i64 to f32
      %5 = arith.addf %kept, %4 : f32
      scf.yield %5 : f32
    }
    scf.for %i = %c0 to %n step %c1  : i32 {
      %3 = tt.addptr %out, %i : !tt.ptr<f32>, i32
      %4 = arith.addf %sum, %zero : f32
      tt.store %3, %4 : !tt.ptr<f32>
    }
    tt.return
  }
}
"""
    )
    functions = parse(ir)
    assert deciding(functions).read == frozenset()
    assert deciding(functions).direct == {"%seeds", "%out", "%n"}
    memory = Memory(0, 8, 8, None), Memory(1 << 20, 4096, 4096, None)
    assert work_of(functions, Launch((1, 1, 1), (*memory, 1024), 1, stages=1, shared=0, registers=0, spills=0)).text()


FILL = (
    HEAD
    + """%y: !tt.ptr<i32>, %x: !tt.ptr<i32>, %n: i32) {
    %two = arith.constant dense<2> : tensor<4xi32>
    %at = tt.make_range {end = 4 : i32, start = 0 : i32} : tensor<4xi32>
    %ns = tt.splat %n : i32 -> tensor<4xi32>
    %inside = arith.cmpi slt, %at, %ns : tensor<4xi32>
    %px = tt.splat %x : !tt.ptr<i32> -> tensor<4x!tt.ptr<i32>>
    %pxa = tt.addptr %px, %at : tensor<4x!tt.ptr<i32>>, tensor<4xi32>
    %v = tt.load %pxa, %inside : tensor<4x!tt.ptr<i32>>
    %w = arith.muli %v, %two : tensor<4xi32>
    %py = tt.splat %y : !tt.ptr<i32> -> tensor<4x!tt.ptr<i32>>
    %pya = tt.addptr %py, %at : tensor<4x!tt.ptr<i32>>, tensor<4xi32>
    tt.store %pya, %w, %inside : tensor<4x!tt.ptr<i32>>
    tt.return
  }
}
"""
)


def test_integers_that_follow_from_the_arguments_are_stored() -> None:
    held = np.array([5, -7, 9, 11], np.int32)
    y = Memory(4096, 16, 16)
    known = Memory(8192, 16, 16, lambda: held.view(np.uint8))
    kernel = parse(FILL)
    doubled = [(4 * i, int(2 * n).to_bytes(4, "little", signed=True)) for i, n in enumerate((5, -7, 9))]
    assert stores_of(kernel, Launch((1, 1, 1), (y, known, 3), 4, stages=1)) == {0: doubled}
    assert stores_of(kernel, Launch((1, 1, 1), (y, Memory(8192, 16, 16), 3), 4, stages=1)) == {}, (
        "nobody knows what it loads"
    )
    assert stores_of(parse(ROWS), rows(1000, 4)) == {}, "numbers that are no integers"
    own = Memory(4096, 16, 16, lambda: held.view(np.uint8))
    assert stores_of(kernel, Launch((2, 1, 1), (own, own, 3), 4, stages=1)) == {}, "a program may find another's"


COUNT = (
    HEAD
    + """%p: !tt.ptr<i32>, %tab: !tt.ptr<i64>) {
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %at = tt.load %tab : !tt.ptr<i64>
    %q = tt.int_to_ptr %at : i64 -> !tt.ptr<i32>
    %n = tt.load %q : !tt.ptr<i32>
    scf.for %i = %zero to %n step %one  : i32 {
      %v = tt.load %p : !tt.ptr<i32>
      %w = arith.addi %v, %one : i32
      tt.store %p, %w : !tt.ptr<i32>
    }
    tt.return
  }
}
"""
)


def test_a_program_reads_what_it_stored_and_what_its_table_of_pointers_leads_to() -> None:
    held, table = np.array([5], np.int32), np.array([1 << 40], np.int64)
    p, tab = Memory(4096, 4, 4, lambda: held.view(np.uint8)), Memory(8192, 8, 8, lambda: table.view(np.uint8))

    def stored(bound: int | None, programs: int = 1) -> object:
        def read(address: int, size: int) -> np.ndarray[Any, Any] | None:
            return np.array([bound], np.int32).view(np.uint8) if (address, size) == (1 << 40, 4) else None

        launch = Launch((programs, 1, 1), (p, tab), 4, stages=1, read=None if bound is None else read)
        return stores_of(parse(COUNT), launch)

    assert stored(30) == {0: [(0, (35).to_bytes(4, "little"))]}
    assert stored(None) == {}, "nobody knows how often"
    assert stored(3, programs=2) == {}, "a program may find another's"


LARGEST = (
    HEAD
    + """%x: !tt.ptr<i32>, %out: !tt.ptr<i32>, %sums: !tt.ptr<i32>) {
    %o = tt.make_range {end = 4 : i32, start = 0 : i32} : tensor<4xi32>
    %px = tt.splat %x : !tt.ptr<i32> -> tensor<4x!tt.ptr<i32>>
    %pxa = tt.addptr %px, %o : tensor<4x!tt.ptr<i32>>, tensor<4xi32>
    %v = tt.load %pxa : tensor<4x!tt.ptr<i32>>
    %0:2 = "tt.reduce"(%v, %o) <{axis = 0 : i32}> ({
    ^bb0(%a: i32, %i: i32, %b: i32, %j: i32):
      %tie = arith.cmpi eq, %a, %b : i32
      %first = arith.cmpi slt, %i, %j : i32
      %both = arith.andi %tie, %first : i1
      %gt = arith.cmpi sgt, %a, %b : i32
      %left = arith.ori %gt, %both : i1
      %value = arith.select %left, %a, %b : i32
      %index = arith.select %left, %i, %j : i32
      tt.reduce.return %value, %index : i32, i32
    }) : (tensor<4xi32>, tensor<4xi32>) -> (i32, i32)
    tt.store %out, %0#1 : !tt.ptr<i32>
    %1 = "tt.scan"(%v) <{axis = 0 : i32, reverse = REVERSE}> ({
    ^bb0(%c: i32, %d: i32):
      %e = arith.addi %c, %d : i32
      tt.scan.return %e : i32
    }) : (tensor<4xi32>) -> tensor<4xi32>
    %ps = tt.splat %sums : !tt.ptr<i32> -> tensor<4x!tt.ptr<i32>>
    %psa = tt.addptr %ps, %o : tensor<4x!tt.ptr<i32>>, tensor<4xi32>
    tt.store %psa, %1 : tensor<4x!tt.ptr<i32>>
    tt.return
  }
}
"""
)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("numbers", [(3, 9, 9, 1), (7, -2, 0, 5), (1, 2, 3, 4)])
def test_reductions_and_scans_of_integers(numbers: tuple[int, ...], turned: bool) -> None:
    """Triton's argmax, which takes the first of equal ones, and cumsum."""
    held = np.array(numbers, np.int32)
    x = Memory(4096, 16, 16, lambda: held.view(np.uint8))
    kernel = parse(LARGEST.replace("REVERSE", str(turned).lower()))
    stored = stores_of(kernel, Launch((1, 1, 1), (x, Memory(8192, 4, 4), Memory(12288, 16, 16)), 4, stages=1))
    found = {place: np.frombuffer(b"".join(data for _, data in kept), np.int32) for place, kept in stored.items()}
    assert found[1].tolist() == [int(np.argmax(held))]
    assert found[2].tolist() == (held[::-1].cumsum()[::-1] if turned else held.cumsum()).tolist()


def test_functions_of_many_instructions_cost_more() -> None:
    """tanh takes 22, an exponential is one of the special function units' and some."""
    call = '%e = tt.extern_elementwise %real {symbol = "__nv_tanhf"} : (tensor<1024xf32>) -> tensor<1024xf32>'
    text = ROWS.replace("%e = math.exp %real : tensor<1024xf32>", call)
    tanh, exp = work_of(parse(text), rows(1000, 4)), work_of(parse(ROWS), rows(1000, 4))
    assert tanh.counts["instructions"] == pytest.approx(1024 * 22.4) and "instructions" not in exp.counts
    assert tanh.counts.get("mufu", 0.0) == 0.0 < exp.counts["mufu"]


# Of Triton's builder: what makes operations of other dialects (arith, math, scf, cf), and what makes no operation.
OTHERS = re.compile(
    r"(add|sub|mul|[su]div|[su]rem|shl|[al]shr|and|or|xor|select|f(add|sub|mul|div|rem|abs|ma)|[fi]cmp\w+|iabs|int_cast|"
    r"fp_(ext|trunc)|fp_to_[su]i|[su]i_to_fp|(max|min)(imumf|numf|[su]i)|ceil|floor|cos|sin|exp2?|log2?|erf|r?sqrt|"
    r"assume|barrier|poison|(for|if|while|condition|yield)_op|(cond_)?branch|block(_with_parent)?|module|(name_)?loc|"
    r"\w+_ret|tensor_descriptor_type)"
)
RENAMED = {
    "make_block_ptr": "make_tensor_ptr",
    "inline_asm": "elementwise_inline_asm",
    "umulhi": "mulhiui",
    "masked_load": "load",
    "masked_store": "store",
    "tensor_pointer_load": "load",
    "tensor_pointer_store": "store",
}


def test_every_operation_of_triton_has_a_price() -> None:
    made = {name.removeprefix("create_") for name in dir(ir.builder) if name.startswith("create_")}
    own = {f"tt.{RENAMED.get(name, name)}" for name in made if not OTHERS.fullmatch(name)}
    assert len(own) > 35
    assert [name for name in sorted(own) if not priced(name)] == []


def test_square_roots_and_scaled_products() -> None:
    """A rounded root is a first guess and corrections; 4-bit values lie two in a byte, so 64 bytes are 128 values."""
    root = ROWS.replace("math.exp %real", "tt.precise_sqrt %real")
    assert not work_of(parse(root), rows(1000, 512)).unknown
    scaled = (
        HEAD
        + """%n: i32) {
    %a = arith.constant dense<0> : tensor<128x64xi8>
    %s = arith.constant dense<0> : tensor<128x4xi8>
    %b = arith.constant dense<0.0> : tensor<128x32xf8E4M3FN>
    %c = arith.constant dense<0.0> : tensor<128x32xf32>
    %d = tt.dot_scaled %a scale %s, %b, %c lhs = e2m1 rhs = e4m3 {fastMath = false} : tensor<128x64xi8>, \
tensor<128x4xi8> * tensor<128x32xf8E4M3FN> -> tensor<128x32xf32>
    tt.return
  }
}
"""
    )
    work = work_of(parse(scaled), Launch((1, 1, 1), (1,), 4, stages=3))
    assert work.counts["flops"] == 2 * 128 * 32 * 128 and not work.unknown
