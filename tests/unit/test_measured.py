"""Prices from tables: exact, interpolated, scaled; tables that are refused; a book that is interrupted."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phantora.cost import KernelLaunch, OperatorSignature, TensorSpec, kernel_launch, model_for
from phantora.cost.analytic_model import AnalyticModel
from phantora.cost.coordinates import kernel_stem
from phantora.cost.families.convolution.model import by_gradient, gradients
from phantora.cost.model import GpuCostModel
from phantora.cost.parse import parse_signature, write_signature
from phantora.cost.scaling import scaled_ns
from phantora.cost.table import Entry, Table, TimedKernel, read_table, signature_key, write_table
from phantora.cost.table_files import DATA
from phantora.cost.tensors import contiguous_strides
from phantora.cost.wanted import Wanted
from phantora.errors import PhantoraError
from phantora.hardware import load_gpu
from phantora.profile.arena import Arena
from phantora.profile.forms import bags, tensor
from phantora.profile.rebuild import rebuild
from phantora.profile.session import JOURNAL, Book

H200, H100, A100 = load_gpu("H200"), load_gpu("H100"), load_gpu("A100")
ABOUT = {"gpu": "NVIDIA H200", "torch": "2.11.0", "cuda": "13.0", "driver": "580"}


def mm(m: int, n: int, k: int) -> OperatorSignature:
    a, b = TensorSpec("bfloat16", (m, k), (k, 1)), TensorSpec("bfloat16", (k, n), (n, 1))
    return OperatorSignature("aten::mm", (a, b))


def entry(signature: OperatorSignature, *times: tuple[int, int], kind: str = "kernel") -> Entry:
    kernels = tuple(
        TimedKernel(name="k", kind=kind, grid=(1, 1, 1), block=(128, 1, 1), cold=cold, warm=warm, spread=0.01)
        for cold, warm in times
    )
    return Entry(write_signature(signature), "", kernels, 1980)


def result(signature: OperatorSignature, ns: int) -> dict[str, object]:
    kernel = {"name": "k", "kind": "kernel", "grid": [1] * 3, "block": [1] * 3, "cold": ns, "warm": ns, "spread": 0.0}
    return {"signature": write_signature(signature), "compute": "", "kernels": [kernel], "error": ""}


def test_an_exact_entry_is_measured() -> None:
    model = GpuCostModel(H200, [Table(ABOUT, [entry(mm(512, 512, 512), (5000, 4000))])])
    price = model.operator(mm(512, 512, 512), (KernelLaunch("k"),))
    assert (price.provenance, price.durations) == ("measured", (4500,))
    assert price.flops == 2 * 512**3


def test_a_librarys_hidden_memset_counts() -> None:
    signature = mm(512, 512, 512)
    memset = TimedKernel(name="Memset", kind="memset", grid=(1, 1, 1), block=(1, 1, 1), cold=700, warm=700, spread=0.0)
    kernels = (memset, *entry(signature, (5000, 5000)).kernels)
    model = GpuCostModel(H200, [Table(ABOUT, [Entry(write_signature(signature), "", kernels)])])
    library = {"lib": "cublas", "a": "bf16", "c": "bf16", "m": 512, "n": 512, "k": 512}
    (bare,), (called,) = (
        model.operator(signature, (KernelLaunch("k", library=lib),)).durations for lib in ({}, library)
    )
    assert (bare, called) == (5000, 5000 + 700 + round(H200.calibration.kernel_gap_ns))


def test_neighbours_correct_the_model() -> None:
    plain = GpuCostModel(H200)
    sizes = [(m, n, 4096) for m in (2048, 4096, 8192) for n in (2048, 4096, 8192)]
    slow = [entry(mm(*size), (2 * (ns := plain.operator(mm(*size), ()).durations[0]), 2 * ns)) for size in sizes]
    price = GpuCostModel(H200, [Table(ABOUT, slow)]).operator(mm(3072, 5120, 4096), ())
    assert price.provenance == "interpolated"
    assert price.durations[0] == pytest.approx(2 * plain.operator(mm(3072, 5120, 4096), ()).durations[0], rel=0.02)


def test_an_alike_gpu_is_asked_where_all_neighbours_are_far() -> None:
    """H200's table has large products, H100's the very one that is asked for."""
    large, small = mm(8192, 8192, 8192), mm(16, 4096, 11264)
    asked: list[str] = []

    def same() -> list[tuple[Table, Any]]:
        asked.append("H100")
        return [(Table(ABOUT | {"gpu": "NVIDIA H100"}, [entry(small, (40_000, 40_000))]), H100)]

    model = GpuCostModel(H200, [Table(ABOUT, [entry(large, (1_600_000, 1_600_000))])], same_architecture=same)
    assert model.operator(mm(8192, 8192, 4096), ()).provenance == "interpolated" and not asked
    price = model.operator(small, ())
    assert price.provenance == "scaled" and asked
    assert price.durations[0] == pytest.approx(40_000 * H100.hbm_bandwidth / H200.hbm_bandwidth, rel=0.1)


def test_one_query_over_many_keys_is_split_among_sms() -> None:
    """cuDNN's attention of one query and 8 heads over 8,192 keys takes 18 us on an H100; 107 came out before."""
    shape = (1, 8, 8192, 128)
    keys = TensorSpec("bfloat16", shape, (8 * 8192 * 128, 8192 * 128, 128, 1))
    query = TensorSpec("bfloat16", (1, 8, 1, 128), (1024, 128, 128, 1))
    given = (query, keys, keys, None, None, None, 1, 8192, False, 0.0, False, False, 0.08)
    signature = OperatorSignature("aten::_cudnn_attention_forward", given)
    for name, least, most in (("H100", 15_000, 25_000), ("H200", 10_000, 22_000)):
        ns = sum(model_for(load_gpu(name)).operator(signature, ()).durations)
        assert least < ns < most, (name, ns)


def test_another_gpu_is_scaled_by_the_limit_that_is_met() -> None:
    big = TensorSpec("float32", (1 << 28,), (1,))
    add = OperatorSignature("aten::add.Tensor", (big, big, 1))
    here, there = model_for(H100).operator(add, ()), model_for(A100).operator(add, ())
    assert (here.provenance, there.provenance) == ("interpolated", "scaled")
    ratio = H100.hbm_bandwidth / A100.hbm_bandwidth
    assert sum(there.durations) / sum(here.durations) == pytest.approx(ratio, rel=0.1)


OUTSIDE: dict[str, Any] = {
    "aten::mm": lambda r, c, d: (tensor(r, c, dtype=d), tensor(c, 4096, dtype=d)),
    "aten::add.Tensor": lambda r, c, d: (tensor(r, c, dtype=d), tensor(r, c, dtype=d), 1),
    "aten::copy_": lambda r, c, d: (tensor(r, c, dtype="float32"), tensor(r, c, dtype=d), False),
    "aten::native_layer_norm": lambda r, c, d: (tensor(1, r, c, dtype=d), (c,), *[tensor(c, dtype=d)] * 2, 1e-5),
    "aten::_softmax": lambda r, c, d: (tensor(r, c, dtype=d), 1, False),
    "aten::sum.dim_IntList": lambda r, c, d: (tensor(r, c, dtype=d), (-1,), False, None),
    "aten::_foreach_mul_.Scalar": lambda r, c, d: ((tensor(r, c, dtype=d),) * 8, 0.9),
    "aten::fill_.Scalar": lambda r, c, d: (tensor(r, c, dtype=d), 0),
    "aten::_flash_attention_forward": lambda r, c, d: (
        *(tensor(1, r, 16, 128),) * 3,
        None,
        None,
        r,
        r,
        0.0,
        True,
        False,
        0.1,
    ),
    "aten::cudnn_convolution": lambda r, c, d: (
        tensor(r, c, 14, 14, dtype=d),
        tensor(256, c, 3, 3, dtype=d),
        *((1, 1),) * 3,
        1,
        False,
        False,
        True,
    ),
}


@cache
def shipped(gpu: str) -> GpuCostModel:
    return model_for(load_gpu(gpu))


@settings(max_examples=160, deadline=None, derandomize=True)
@given(
    st.sampled_from(sorted(OUTSIDE)),
    st.integers(2, 16),
    st.integers(1, 160),
    st.sampled_from(("bfloat16", "float16", "float32")),
    st.sampled_from((H100.name, H200.name, A100.name)),
)
def test_guesses_grow_and_keep_to_the_limits(name: str, octave: int, width: int, dtype: str, gpu_name: str) -> None:
    """Inside the tables and far outside: more rows take no less time, within the error bars and a launch's
    microsecond, and nothing is faster than the GPU can."""
    gpu = load_gpu(gpu_name)
    few, many = (
        shipped(gpu_name).operator(OperatorSignature(name, OUTSIDE[name](n, 64 * width, dtype)), ())
        for n in (1 << octave, 8 << octave)
    )
    doubt = min(0.5, (few.error or 0.0) + (many.error or 0.0))
    assert sum(many.durations) >= (1 - doubt) * sum(few.durations) - 1000
    peak = gpu.peak_flops["float32" if dtype == "float32" and name == "aten::mm" else "bfloat16"]
    memory = many.bytes / gpu.hbm_bandwidth if many.bytes > 8 * gpu.l2_bytes else 0.0
    flops = many.flops / (2 if many.cls == "attention" else 1)  # the whole square counts, causal kernels do half
    assert sum(many.durations) >= 0.98e9 * max(memory, flops / peak)


@cache
def one_of_each() -> tuple[OperatorSignature, ...]:
    """A measured signature of each operator."""
    table = read_table(DATA / "h200-sxm.parquet")
    signatures = table.keys()
    last = {text.partition("(")[0]: text for text in signatures if not text.startswith("phantora::")}
    return tuple(entry.parsed for _, text in sorted(last.items()) if (entry := table.get(text)))


ODD = (None, True, 0, -1, "text", (), (0, 0), tensor(), tensor(0), tensor(4, 8, 16), (tensor(8, 16), tensor()))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.data())
def test_unexpected_arguments_have_a_price(data: st.DataObject) -> None:
    """No model of an operator raises an exception: no exception becomes a price."""
    signature = data.draw(st.sampled_from(one_of_each()))
    place = data.draw(st.integers(0, len(signature.args)))
    rest = signature.args[place + 1 :] if data.draw(st.booleans()) else ()
    odd = replace(signature, args=(*signature.args[:place], data.draw(st.sampled_from(ODD)), *rest))
    price = shipped(H200.name).operator(odd, (KernelLaunch("k"),))
    assert len(price.durations) == 1 and price.durations[0] > 0


@pytest.mark.parametrize(("k", "n", "ms"), [(5120, 8192, 1.038), (8192, 5120, 0.969)])
def test_groups_of_any_sizes_take_longer_than_the_equal_ones_of_the_table(k: int, n: int, ms: float) -> None:
    """16 groups of 16 to 1,488 rows of 8,192 on an H200; the table has those of 512 rows: 0.919 and 0.906 ms."""
    operands = tensor(8192, k), tensor(16, k, n, order=(0, 2, 1)), tensor(16, dtype="int32")
    priced = shipped(H200.name).operator(OperatorSignature("aten::_grouped_mm", (*operands, None, None)), ())
    assert priced.provenance == "measured" and sum(priced.durations) == pytest.approx(ms * 1e6, rel=0.07)


def test_half_precision_is_as_fast_as_bfloat16_where_only_that_was_measured() -> None:
    half, brain = (
        OperatorSignature("aten::native_layer_norm", OUTSIDE["aten::native_layer_norm"](8192, 1024, dtype))
        for dtype in ("float16", "bfloat16")
    )
    model = GpuCostModel(H200, [Table(ABOUT, [entry(brain, (14_000, 14_000))])])
    priced = model.operator(half, ())
    assert priced.provenance == "interpolated"
    assert sum(priced.durations) == pytest.approx(14_000, rel=0.02)


def test_a_launch_carries_over_between_gpus() -> None:
    """A kernel that does next to nothing takes the other GPU's launch, whatever the ratio of their limits."""
    fill = OperatorSignature("aten::fill_.Scalar", (TensorSpec("float32", (64,), (1,)), 0))
    there, here = AnalyticModel(H100), AnalyticModel(H200)
    assert scaled_ns(960.0, there, here, fill, "", (KernelLaunch("k"),)) == pytest.approx(H200.launch_ns, rel=0.1)
    product = mm(4096, 4096, 4096)
    assert scaled_ns(1e6, there, here, product, "", ()) == pytest.approx(1e6, rel=0.02)


def test_shipped_tables_are_of_their_gpus() -> None:
    for gpu in (H100, H200):
        model = model_for(gpu)
        assert len(model.tables) == 1 and gpu.product in model.tables[0]
        assert model.operator(mm(4096, 4096, 4096), ()).provenance == "measured"
        assert model.copy("h2d_pinned", 1 << 24).provenance == "measured"
        assert model.copy("d2d", 9 << 20).provenance == "interpolated"


@pytest.mark.parametrize(
    ("mangled", "readable", "stem"),
    [
        (
            "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEEEEviT0_",
            "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >(int, float)",
            "vectorized_elementwise_kernel",
        ),
        (
            "_ZN2at6native12_GLOBAL__N_114softmax_kernelIfEEvPT_",
            "void at::native::(anonymous namespace)::softmax_kernel<float>(float*)",
            "softmax_kernel",
        ),
    ],
)
def test_kernels_are_known_by_either_name(mangled: str, readable: str, stem: str) -> None:
    assert kernel_stem(mangled) == kernel_stem(readable) == stem


def test_a_table_survives_its_file(tmp_path: Path) -> None:
    entries = [entry(mm(64, 64, 64), (1000, 900), (2000, 1900)), entry(mm(128, 64, 64), (3000, 2900))]
    write_table(tmp_path / "t.parquet", ABOUT, entries)
    table = read_table(tmp_path / "t.parquet")
    assert table.about == ABOUT and len(table) == 2
    for expected in entries:
        found = table.get(signature_key(expected.parsed))
        assert found is not None and [k.cold for k in found.kernels] == [k.cold for k in expected.kernels]


def test_foreign_and_corrupt_tables_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"

    def refused(reason: str) -> None:
        with pytest.raises(PhantoraError, match=reason) as caught:
            read_table(path)
        assert str(path) in str(caught.value)

    refused("no table of kernel times")
    path.write_bytes(b"PAR1 or not")
    refused("no table of kernel times")
    pq.write_table(pa.table({"a": [1]}), path)
    refused("no table of kernel times")
    whole = (DATA / "h200-sxm.parquet").read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refused("no table of kernel times")
    write_table(path, ABOUT, [entry(mm(64, 64, 64), (-5, 900))])
    refused("negative time")
    write_table(path, {**ABOUT, "format": "7"}, [])
    refused("version 7 of the format, and 1 is known; measure it anew")
    write_table(path, ABOUT, [entry(mm(64, 64, 64), (1000, 900))])
    pq.write_table(pq.read_table(path).drop_columns(["warm"]), path)
    refused("has no columns warm; measure it anew")


def test_tables_of_an_unknown_gpu_are_refused(tmp_path: Path) -> None:
    """Next to a table of the GPU itself they do not matter; to scale from, they do."""
    path = tmp_path / "t.parquet"
    write_table(path, {**ABOUT, "gpu": "NVIDIA X9000"}, [entry(mm(64, 64, 64), (1000, 900))])
    assert model_for(H200, tmp_path).operator(mm(4096, 4096, 4096), ()).provenance == "measured"
    with pytest.raises(PhantoraError, match="measured on 'NVIDIA X9000', which no GPU file describes") as caught:
        model_for(A100, tmp_path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value) and ".toml" in str(caught.value)


def test_tables_of_another_torch_are_named() -> None:
    model = model_for(H200)
    assert model.of_other_builds("2.11.7+cu130") == []
    for other in ("2.9.1+cu130", "2.11.0+cu128"):
        (line,) = model.of_other_builds(other)
        assert "h200-sxm.parquet" in line and "2.11.0+cu130" in line and f"those of torch {other} may differ" in line
        assert "phantora profile" in line and "\n" not in line


def test_the_halves_of_a_backward_pass_are_its_whole() -> None:
    """Kernels go to the gradient that they compute, and its halves are predicted from those of others."""
    table = read_table(DATA / "h200-sxm.parquet")
    seen = 0
    entries = table.of_operator("convolution_backward")
    transformed = [each for each in entries if any("fft2d" in kernel.name for kernel in each.kernels)]
    for measured in [*entries[::20], *transformed]:
        parts = gradients(measured.parsed)
        if len(parts) == 2:
            kernels = [kernel for kernel in measured.kernels if kernel.kind == "kernel"]
            inputs, weight = by_gradient(kernels)
            assert kernels in ([*inputs, *weight], [*weight, *inputs]) and inputs and weight
            assert not any("grad_weight" in kernel.name for kernel in inputs)
            assert not any("wgrad" in kernel.name for kernel in inputs)
            assert not any("dgrad" in kernel.name for kernel in weight)
            assert "fft2d_r2c" not in inputs[-1].name  # transforms of the filters, without the product and the way back
            analytic = AnalyticModel(H200)
            whole, *halves = (sum(analytic.operator(s, ()).durations) for s in (measured.parsed, *parts))
            assert sum(halves) == pytest.approx(whole, rel=0.01)
            seen += 1
    assert seen > 50


def test_an_interrupted_book_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    wanted = [Wanted(signature=write_signature(mm(64 * i, 64, 64))) for i in (1, 2, 3)]
    first = Book(path)
    first.add(ABOUT, [result(mm(64, 64, 64), 1000)])
    with open(path.with_name(path.name + JOURNAL), "ab") as journal:
        journal.write(b'{"about": {"gpu"')  # killed while it wrote
    second = Book(path)
    assert second.missing(wanted) == wanted[1:]
    second.add(ABOUT, [result(mm(128, 64, 64), 2000)])
    second.finish()
    assert not path.with_name(path.name + JOURNAL).exists()
    third = Book(path)
    assert third.missing(wanted) == wanted[2:] and len(read_table(path)) == 2
    with pytest.raises(PhantoraError, match="contains times of NVIDIA H200"):
        third.add({**ABOUT, "gpu": "NVIDIA B200"}, [])
    with pytest.raises(PhantoraError, match=r"contains times of 2\.11\.0, and this is torch 2\.10\.0"):
        third.add({**ABOUT, "torch": "2.10.0"}, [])


def test_operands_that_are_written_are_fresh_and_those_of_optimizers_positive() -> None:
    """Else a table's times are those of infinities, that earlier operators left, and of roots of negative numbers."""
    arena = Arena(3 << 20, "cpu")
    flat = TensorSpec("float32", (400_000,), (1,))  # more than the part that is only read
    arena.cut(flat, written=True).fill_(float("nan"))
    arena.reset()
    fresh = arena.cut(flat, written=True)
    assert fresh.isfinite().all() and (fresh < 0).any()
    for dtype in ("float32", "bfloat16", "float16", "float64"):
        moments = (TensorSpec(dtype, (1000,), (1,)),) * 2
        roots = rebuild(OperatorSignature("aten::_foreach_sqrt", (moments,)), arena).run()
        assert all(root.min() > 1e-5 and root.max() < 100 for root in roots)  # far from subnormal and infinite


def test_bags_are_of_equal_size_in_both_directions() -> None:
    rows, width, batch, each = 50, 4, 6, 8
    arena = Arena(3 << 20, "cpu")
    forward, backward = (parse_signature(w.signature) for w in bags(rows, width, batch, each))
    mean = replace(forward, args=(*forward.args[:4], 1, *forward.args[5:]))  # for sums torch counts nothing on a CPU
    _, _, sizes, _ = rebuild(mean, arena).run()
    assert sizes.tolist() == [each] * batch
    gradient = rebuild(backward, arena).run()
    assert gradient.shape == (rows, width)
    # The arena's numbers are the same for each call, so these are those of the bags.
    total = OperatorSignature("aten::sum.dim_IntList", (backward.args[0], (0,)))
    assert gradient.sum(0).tolist() == pytest.approx((each * rebuild(total, arena).run()).tolist(), rel=1e-3, abs=1e-3)


def test_a_call_whose_operands_were_cut_again_does_not_run() -> None:
    """It would be timed on what another operator left, NaN among it."""
    arena = Arena(3 << 20, "cpu")
    x = TensorSpec("float32", (1000,), (1,))
    first, second = (rebuild(OperatorSignature("aten::neg", (x,)), arena) for _ in range(2))
    second.run()
    with pytest.raises(RuntimeError, match="gave way"):
        first.run()


def test_refused_operators_are_named_with_their_reason(tmp_path: Path) -> None:
    book = Book(tmp_path / "t.parquet")
    result = {"signature": '{"op":"aten::mm","args":[]}', "compute": "", "kernels": [], "error": "why"}
    book.add({"gpu": "X"}, [result])
    book.add({"gpu": "X"}, [result])
    assert book.refused == [("aten::mm", "why")] and not book.entries


def test_a_kernel_that_spins_takes_its_cycles_whatever_operator_launches_it() -> None:
    model = GpuCostModel(H200, [])
    spin, other = KernelLaunch("spin_kernel(long) [1980000 cycles]"), KernelLaunch("k")
    alone = model.operator(mm(512, 512, 512), (other,)).durations
    both = model.operator(mm(512, 512, 512), (other, spin)).durations
    assert both[:1] == alone
    assert both[1] == model.kernel(spin).durations[0] == pytest.approx(1e6, rel=0.01)
    assert model.operator(mm(512, 512, 512), (spin,)).durations == both[1:]


def test_a_large_table_is_read_from_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache holds the same entries, and a table of other contents at the same path is read anew."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("phantora.cost.table_rows.WORTH_KEEPING", 1)
    path = tmp_path / "t.parquet"
    entries = [entry(mm(n, 64, 64), (n, n)) for n in (512, 64, 128)] + [entry(mm(32, 64, 64), (1, 2), (3, 4))]
    write_table(path, ABOUT, entries)
    first, second = read_table(path), read_table(path)
    assert len(list((tmp_path / "cache" / "phantora" / "tables").iterdir())) == 1
    for key in [*(signature_key(e.parsed) for e in entries), signature_key(mm(65, 64, 64)), "", "~"]:
        assert first.get(key) == second.get(key)
    assert [e.signature for e in first] == [e.signature for e in entries]
    assert list(second) == list(first) == second.of_operator("mm") and second.about == first.about
    write_table(path, ABOUT, entries[:1])
    assert list(read_table(path)) == list(first)[:1]


@pytest.mark.parametrize(
    ("images", "weight", "tf32", "real_ms", "error"),
    [
        ((16, 64, 128, 128), (64, 64, 3, 7), False, 0.815, 0.30),
        ((16, 64, 128, 256), (64, 128, 3, 5), False, 2.284, 0.10),
        ((16, 64, 256, 256), (64, 128, 5, 5), False, 4.498, 0.30),
        ((16, 64, 128, 128), (64, 64, 3, 7), True, 0.398, 0.30),
        ((16, 64, 256, 256), (64, 128, 5, 5), True, 2.144, 0.30),
    ],
)
def test_transposed_convolutions_in_float32(
    images: tuple[int, ...], weight: tuple[int, ...], tf32: bool, real_ms: float, error: float
) -> None:
    """Measured on an H200 (a public report); 0.106 ms of the first with the filters' transform as its gradient."""
    tensors = [TensorSpec("float32", shape, contiguous_strides(shape)) for shape in (images, weight, weight[1:2])]
    signature = OperatorSignature("aten::convolution", (*tensors, (1, 1), (0, 0), (1, 1), True, (0, 0), 1))
    call = kernel_launch(json.dumps({"call": "cudnnConvolutionBackwardData", "compute": "tf32" if tf32 else "f32"}))
    assert sum(shipped("H200").operator(signature, (call,)).durations) / 1e6 == pytest.approx(real_ms, rel=error)
