"""Sorts, selections, lookups, recurrent layers, dropout and copies: their models against what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import replace

import pytest

from phantora.cost import KernelLaunch, OperatorSignature, TensorSpec, model_for
from phantora.cost.families import (
    attention,
    base_name,
    concatenation,
    distances,
    embedding,
    gather,
    identify,
    recurrent,
    sort,
)
from phantora.cost.families.convolution.model import gradients, without_bias
from phantora.cost.families.recurrent import GATES, Recurrent, recurrent_ns
from phantora.cost.family import Family
from phantora.cost.interpolation import places
from phantora.cost.machine import Machine
from phantora.cost.sectors import per_element
from phantora.cost.table import read_table, signature_key
from phantora.cost.table_files import DATA
from phantora.cost.tensors import contiguous_strides
from phantora.cost.timing import kernel_ns, own_kernels
from phantora.cost.transfers import copy_ns, curve, read_curve
from phantora.hardware import load_gpu
from validation.data import rows

TABLES = {gpu: read_table(DATA / f"{gpu.lower()}-sxm.parquet") for gpu in ("H100", "H200")}
MACHINES = {gpu: Machine(load_gpu(gpu)) for gpu in TABLES}
CELLS = {"lstm": 2, "gru": 3, "rnn": 1}


def tensor(*shape: int, dtype: str = "bfloat16") -> TensorSpec:
    return TensorSpec(dtype, shape, contiguous_strides(shape))


def within(ratios: Iterable[float], median: float, ninth_decile: float) -> bool:
    errors = sorted(abs(ratio - 1.0) for ratio in ratios)
    return statistics.median(errors) <= median and errors[int(0.9 * len(errors))] <= ninth_decile


@pytest.mark.parametrize("gpu", TABLES)
@pytest.mark.parametrize(
    ("operators", "family"),
    [(("sort", "topk"), sort.FAMILY), (("_embedding_bag", "_embedding_bag_dense_backward"), embedding.FAMILY)],
)
def test_models_of_what_has_no_neighbours(gpu: str, operators: tuple[str, ...], family: Family) -> None:
    """Without any correction by what was measured nearby."""
    ratios = []
    for entry in (entry for name in operators for entry in TABLES[gpu].of_operator(name)):
        name = base_name(entry.parsed.name)
        cls = family.classify(name)
        assert cls is not None
        real = sum(kernel_ns(kernel, cls) for kernel in own_kernels(entry))
        ratios.append(family.estimate(MACHINES[gpu], entry.parsed, name, ()).ns / real)
    assert len(ratios) > 100 and within(ratios, 0.13, 0.30)


def test_recurrent_layers() -> None:
    forward: list[float] = []
    backward: list[float] = []
    for row in rows("2026-11-22-h100/recurrent.parquet"):
        machine = MACHINES["H100" if "H100" in row["gpu"] else "H200"]
        for back, ratios in ((False, forward), (True, backward)):
            layer = Recurrent(
                backward=back,
                steps=row["steps"],
                batch=row["batch"],
                inputs=row["inputs"],
                hidden=row["hidden"],
                layers=row["layers"],
                directions=1 + row["bidirectional"],
                gates=GATES[CELLS[row["cell"]]],
                dtype=row["dtype"],
            )
            ratios.append(recurrent_ns(machine, layer) / 1e3 / row["backward_us" if back else "forward_us"])
    assert within(forward, 0.06, 0.14) and within(backward, 0.06, 0.15)


def test_long_rows_take_another_way_than_short_ones() -> None:
    """As torch's rules say: a block for each row, or passes over all of them."""
    assert sort.rows_ns(1, 4096, 4) < 25_000 < 30_000 < sort.rows_ns(1, 8192, 4)
    assert sort.select_ns(64, 4096, 4, 2) < sort.select_ns(64, 8192, 4, 2)
    # On the H200 64 and 512 rows of 8,192 took 77 and 348 us: sorted as one, and row by row.
    assert sort.rows_ns(64, 8192, 4) == pytest.approx(77_000, rel=0.2)
    assert sort.rows_ns(512, 8192, 4) == pytest.approx(348_000, rel=0.2)


def test_attention_with_dropout() -> None:
    """Its random numbers cost as much as much of the rest, in every direction; heads of 40 are computed as 64."""

    def ns(dropout: float, head: int = 64) -> float:
        q = tensor(4, 1024, 16, head)
        args = (q, q, q, None, None, 1024, 1024, dropout, True, False, 0.1)
        signature = OperatorSignature("aten::_flash_attention_forward", args)
        found = attention.from_signature(signature, "_flash_attention_forward")
        assert found is not None and found.dropout == (dropout > 0)
        return attention.attention_ns(MACHINES["H200"], found)

    assert 1.4 * ns(0.0) < ns(0.1) < 2.5 * ns(0.0)
    assert ns(0.0, 40) == pytest.approx(ns(0.0, 64), rel=0.01)
    q = tensor(2, 64, 8, 64)
    backward = OperatorSignature(
        "aten::_efficient_attention_backward",
        (*(q,) * 4, None, q, None, None, 8, 8, tensor(2, 8, 64), 0.1, None, None, 1, False),
    )
    found = attention.from_signature(backward, "_efficient_attention_backward")
    assert found is not None and found.dropout and found.causal


def test_a_bias_adds_no_kernel_to_a_convolutions_gradient() -> None:
    """torch sums the bias's gradient in an operator of its own, so both backward passes have the same measurement."""
    model = model_for(load_gpu("H200"))
    entries = TABLES["H200"].of_operator("convolution_backward")
    bare = next(e for e in entries if e.parsed.args[10] == (True, True, False) and e.compute == "")
    args, width = bare.parsed.args, bare.parsed.args[2].shape[0]
    biased = replace(bare.parsed, args=(*args[:3], (width,), *args[4:10], (True, True, True)))
    both = [model.operator(signature, ()) for signature in (bare.parsed, biased)]
    assert {price.provenance for price in both} == {"measured"}
    assert both[0].durations == both[1].durations
    alone = replace(bare.parsed, args=(*args[:3], (width,), *args[4:10], (False, True, True)))
    assert [part.args[10] for part in gradients(alone)] == [(False, True, False)]
    pairs = [
        sum(kernel_ns(kernel, "convolution") for kernel in own_kernels(entry))
        / sum(kernel_ns(kernel, "convolution") for kernel in own_kernels(twin))
        for table in TABLES.values()
        for entry in table.of_operator("convolution_backward")
        if (same := without_bias(entry.parsed)) and (twin := table.get(signature_key(same, entry.compute)))
    ]
    assert len(pairs) > 40 and 0.9 < min(pairs) < max(pairs) < 1.1
    assert statistics.median(pairs) == pytest.approx(1.0, abs=0.01)


def test_pools_are_told_apart_by_their_windows() -> None:
    x = tensor(8, 64, 56, 56)
    two, three = (
        places(OperatorSignature("aten::max_pool2d_with_indices", (x, (n, n), (2, 2), (0, 0), (1, 1), False)))
        for n in (2, 3)
    )
    assert two[0].family != three[0].family and two[1].family == three[1].family


def test_copies_inside_a_gpu_that_are_no_whole_pages() -> None:
    size = 6 << 20
    for machine in MACHINES.values():
        assert 1_500 < copy_ns(machine, "d2d", size + 2048) - copy_ns(machine, "d2d", size) < 3_000
    table = TABLES["H100"]
    whole, part = (read_curve(curve(table, "copy", ("d2d",), pages), size) for pages in (True, False))
    assert 1_500 < part - whole < 3_000


def test_copies_between_host_and_gpu_go_over_the_link_of_the_gpu() -> None:
    rates = {name: 1e9 / copy_ns(Machine(load_gpu(name)), "d2h_pinned", 1_000_000_000) for name in ("B200", "GB200")}
    assert rates["B200"] == pytest.approx(55.5, abs=1)  # PCIe 5
    assert rates["GB200"] == pytest.approx(198, abs=2)  # NVLink-C2C


@pytest.mark.parametrize(
    ("operators", "median", "ninth_decile"),
    [
        (("_index_put_impl_",), 0.20, 0.60),
        (("nll_loss_backward",), 0.12, 0.30),
        (("tril_", "tril"), 0.06, 0.06),
        (("native_group_norm",), 0.12, 0.50),
        (("native_layer_norm_backward",), 0.20, 0.45),
        (("_weight_norm_interface", "_weight_norm_interface_backward"), 0.20, 0.35),
    ],
)
def test_models_by_the_kernels_that_run(operators: tuple[str, ...], median: float, ninth_decile: float) -> None:
    """The models alone: sorted indices, one block for all rows, sectors across a matrix, sums before a pass."""
    ratios = []
    for entry in (entry for name in operators for entry in TABLES["H100"].of_operator(name)):
        name = base_name(entry.parsed.name)
        family, cls = identify(name)
        real = sum(kernel_ns(kernel, cls) for kernel in own_kernels(entry))
        if name.startswith("tril") and real < 10_000:
            continue  # small ones take twice the floor of a kernel, which the model gives them
        ratios.append(family.estimate(MACHINES["H100"], entry.parsed, name, ()).ns / real)
    assert len(ratios) > 2 and within(ratios, median, ninth_decile)


def test_an_operand_across_the_result_costs_sectors() -> None:
    """Less where a block meets its sectors again; additions to places of their own cost more than rows."""
    flat = tensor(6000, 6000, dtype="float32")
    across = replace(flat, stride=(1, 6000))
    assert per_element(flat, flat) == (1 / 8, 1 / 8) and per_element(across, flat) == (1.0, 1.0)
    few = TensorSpec("float32", (8, 3, 64, 64), (12288, 1, 192, 3))
    load, sector = per_element(replace(few, stride=contiguous_strides(few.shape)), few)
    assert sector < 0.15 < load < 0.25
    index = replace(tensor(4096, 256, dtype="int64"), stride=(1, 0))
    rows, single = (
        gather.estimate(MACHINES["H100"], OperatorSignature("aten::scatter_add_", args), "scatter_add_", ()).ns
        for args in (
            (tensor(4096, 256), 0, index, tensor(4096, 256)),
            (tensor(4096, 256), 0, tensor(4096, 256, dtype="int64"), tensor(4096, 256)),
        )
    )
    assert single > 1.5 * rows


def test_a_size_far_from_all_measured_ones_returns_to_the_analytic_model() -> None:
    """The largest measured comparison of rows with gaps has 32,768 elements. A silu of these rows is measured; both
    kernels compute an index for each element."""
    strided = TensorSpec("bfloat16", (32768, 3584), (7168, 1))
    model = model_for(load_gpu("H200-SXM"))
    compared, silu = (
        model.operator(OperatorSignature(name, args), ()).durations[0]
        for name, args in (("aten::le.Scalar", (strided, 7)), ("aten::silu", (strided,)))
    )
    assert compared == pytest.approx(silu, rel=0.2)


def test_attention_in_float8_takes_the_published_share_of_bfloat16() -> None:
    """DeepSeek-V3's heads on GB300, 4,096 tokens, cuDNN 9.22: 0.546 of 0.864 ms in the forward pass of MXFP8."""
    q, v = tensor(2, 128, 4096, 192), tensor(2, 128, 4096, 128)
    narrow, wide = (
        model_for(load_gpu("GB300"))
        .operator(
            OperatorSignature(
                "aten::_scaled_dot_product_cudnn_attention",
                (*(replace(each, dtype=dtype) for each in (q, q, v)), None, True, 0.0, True, False),
            ),
            (),
        )
        .durations[0]
        for dtype in ("float8_e4m3fn", "bfloat16")
    )
    assert narrow / wide == pytest.approx(0.546 / 0.864, rel=0.1)


def test_index_copy_takes_the_time_of_its_rows() -> None:
    """A key for each of 512 heads, written into a cache of 64 MiB; not the whole cache."""
    cache, key, at = tensor(32, 16, 512, 128), tensor(32, 16, 1, 128), tensor(1, dtype="int64")
    signature = OperatorSignature("aten::index_copy_", (cache, 2, at, key))
    family, cls = identify("index_copy_")
    assert (family, cls) == (gather.FAMILY, "copy")
    done = family.estimate(MACHINES["H200"], signature, "index_copy_", ())
    assert done.moved == 2 * 65536 * 2 + 8
    assert done.ns == pytest.approx(4100, rel=0.15)
    written = tensor(262144, dtype="int64")
    fill = OperatorSignature("aten::index_fill_.int_Scalar", (tensor(42892, 256), 0, written, 1.0))
    assert family.estimate(MACHINES["H200"], fill, "index_fill_", ()).ns == pytest.approx(197_700, rel=0.1)  # measured


def test_index_operators_take_what_was_measured() -> None:
    """On an H200 (validation/probes/index_operators.py), us: distances, gradients of narrow tables and of the largest
    rows of bags, packed sequences."""

    def single(*shape: int) -> TensorSpec:
        return tensor(*shape, dtype="float32")

    index, pairs = tensor(1_048_576, dtype="int64"), single(596, 383)
    bags, rows, ends = single(27_586, 16), tensor(275_865, dtype="int64"), tensor(27_586, dtype="int64")
    largest = (bags, rows, rows, ends, tensor(27_586, 16, dtype="int64"), 262_144, False, 2, None, -1)
    state = single(1, 256, 586)
    layer = (single(1542, 300), (single(1758, 300), single(1758, 586)), 4, None, state, None, 3, 586, 0, 1, False, 0.0)
    cases: tuple[tuple[Family, str, tuple[object, ...], float], ...] = (
        (distances.FAMILY, "_cdist_forward", (single(124, 17), single(966, 17), 2.0, 2), 162.0),
        (distances.FAMILY, "_cdist_backward", (pairs, single(596, 317), single(383, 317), 2.0, pairs), 227.0),
        (embedding.FAMILY, "embedding_dense_backward", (single(1_048_576, 8), index, 8192, -1, False), 232.2),
        (embedding.FAMILY, "_embedding_bag_dense_backward", largest, 7.5),
        (recurrent.FAMILY, "_cudnn_rnn", (*layer, True, False, (257,) * 6), 215.0),
    )
    for family, name, args, us in cases:
        found = family.estimate(MACHINES["H200"], OperatorSignature(f"aten::{name}", args), name, ())
        assert found.ns / 1e3 == pytest.approx(us, rel=0.3), name


def test_joined_volumes_and_gathered_rows_take_what_their_kernels_took() -> None:
    """On an H200, in traces of a video network and of a beam search: three copies of slices, and rows by index."""
    video = tensor(1, 128, 9, 192, 192)
    frame = TensorSpec("bfloat16", (1, 128, 1, 192, 192), video.stride)
    joined = OperatorSignature("aten::cat", ((frame, frame, video), 2))
    copies = (KernelLaunch("void at::native::elementwise_kernel<128, 4, x>"),) * 3
    assert concatenation.FAMILY.estimate(MACHINES["H200"], joined, "cat", copies).ns == pytest.approx(125_000, rel=0.2)
    rows = TensorSpec("int64", (40, 16, 24, 64), (1, 0, 0, 0))
    picked = OperatorSignature("aten::gather", (tensor(40, 16, 24, 64, dtype="float16"), 0, rows))
    by_rows = (KernelLaunch("void at::native::vectorized_gather_kernel<16, long>"),)
    assert gather.FAMILY.estimate(MACHINES["H200"], picked, "gather", by_rows).ns == pytest.approx(2600, rel=0.3)


def test_index_takes_a_block_a_row_or_a_thread_an_element() -> None:
    """On an H200: rows of 16 to 256 numbers take 603 us a million; 11 million of a table of 16 take 55 us."""
    by_rows = (KernelLaunch("void at::native::vectorized_gather_kernel<16, long>"),)
    million = (tensor(1_000_000, dtype="int64"),)
    for width in (16, 256):
        args = (tensor(100_000, width, dtype="float32"), million)
        picked = OperatorSignature("aten::index.Tensor", args)
        found = gather.FAMILY.estimate(MACHINES["H200"], picked, "index", by_rows)
        assert found.ns == pytest.approx(603_000, rel=0.05)
    codes = OperatorSignature("aten::index.Tensor", (tensor(16, dtype="float32"), (tensor(176128, 64, dtype="int32"),)))
    by_element = (KernelLaunch("void at::native::index_elementwise_kernel<128, 4, x>"),)
    assert gather.FAMILY.estimate(MACHINES["H200"], codes, "index", by_element).ns == pytest.approx(55_000, rel=0.15)


def test_results_larger_than_operands_are_placed_by_their_size() -> None:
    """A column against a row of 8,192 integers each takes 155 us on an H200, and its operands' bytes no time."""
    signature = OperatorSignature("aten::eq.Tensor", (tensor(8192, 1, dtype="int64"), tensor(8192, dtype="int64")))
    assert all(place.family.endswith("grown") and place.at[0] > 26 for place in places(signature))
