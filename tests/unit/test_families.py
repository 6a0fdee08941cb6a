"""Operator families: each operator has one, and the recipe in docs/operator-families.md adds one with one file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phantora.cost import AnalyticModel, KernelLaunch, OperatorSignature, Price, TensorSpec, model_for, parse_signature
from phantora.cost import families as package
from phantora.cost.families import base_name, class_of, families, family_of, gemm, identify, natten
from phantora.cost.kernels import UNKNOWN_WAVE_ERROR
from phantora.cost.machine import Machine
from phantora.cost.parse import read_signature, write_signature
from phantora.cost.table import read_table
from phantora.cost.table_files import DATA
from phantora.cost.tensors import contiguous_strides
from phantora.cost.types import CLASSES
from phantora.hardware import load_gpu
from validation.data import rows

RECIPE = Path(__file__).parents[2] / "docs" / "operator-families.md"
ATEN = {base_name(str(s.name)) for s in torch._C._jit_get_all_schemas() if s.name.startswith("aten::")}


MODEL = model_for(load_gpu("H100"))
STREAM = 3350 * 0.915  # bytes/ns of an H100's memory


def tensor(*shape: int, dtype: str = "bfloat16") -> TensorSpec:
    return TensorSpec(dtype, shape, contiguous_strides(shape))


def price(name: str, *args: object, out: tuple[TensorSpec, ...] = ()) -> Price:
    return MODEL.operator(OperatorSignature(name, args, outputs=out), (KernelLaunch("k", (1024, 1, 1), (256, 1, 1)),))


def ns(name: str, *args: object, out: tuple[TensorSpec, ...] = ()) -> int:
    return sum(price(name, *args, out=out).durations)


def forget() -> None:
    families.cache_clear()
    identify.cache_clear()


@pytest.fixture
def rope(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The module of the recipe, as if it lay in the package."""
    block = re.search(r"```python\n(.*?)```", RECIPE.read_text(), re.DOTALL)
    assert block is not None
    (tmp_path / "rope.py").write_text(block[1])
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    forget()
    yield "mylib::rope_pair"
    forget()


def test_the_recipe_adds_a_family_with_one_file(rope: str) -> None:
    assert family_of(rope).name == "rope" and class_of(rope) == "elementwise"
    x = TensorSpec("bfloat16", (1 << 14, 1 << 14), (1 << 14, 1))
    price = model_for(load_gpu("H100")).operator(OperatorSignature(rope, (x, x)), ())
    assert price.bytes == 2 * 2 * (1 << 28)
    assert price.durations[0] == pytest.approx(price.bytes / (3350 * 0.9 * 0.7), rel=0.1)


def test_without_the_file_there_is_no_family() -> None:
    assert family_of("mylib::rope_pair").name == "unknown"


def test_every_operator_has_one_family() -> None:
    """One family among those that are asked at the same time: no order decides."""
    keys = chain.from_iterable(read_table(DATA / f"{gpu}-sxm.parquet").keys() for gpu in ("h100", "h200"))
    for name in ATEN | {base_name(key.partition("(")[0]) for key in keys}:
        assert class_of(name) in CLASSES
        claimed = [family for family in families() if family.classify(name) is not None]
        first = [family.name for family in claimed if family.precedence == claimed[0].precedence]
        assert first == [family_of(name).name]


# ---------------------------------------------------------------- operators of extensions


def test_namespaces_are_kept() -> None:
    """An operator is no product because an extension calls it `mm`."""
    assert class_of(base_name("aten::mm.out")) == "gemm" and base_name("mylib::mm.out") == "mylib::mm"
    assert [class_of(name) for name in ("mylib::mm", "mylib::softmax", "mylib::conv2d", "mylib::sum")] == ["other"] * 4
    x = tensor(8192, 8192)
    assert ns("mylib::mm", x, x, out=(tensor(1),)) < 0.2 * ns("aten::mm", x, x)


def test_shapes_that_do_not_broadcast_are_not() -> None:
    """bitsandbytes: N packed bytes and M scales are no N x M result."""
    n, block = 4096 * 4096 // 2, 64
    packed, scales = tensor(n, 1, dtype="uint8"), tensor(2 * n // block, dtype="float32")
    args = (packed, scales, block, "nf4", (4096, 4096), "bfloat16")
    expected = (n + 8 * n / block + 4 * n) / STREAM
    for out in ((), (tensor(4096, 4096),)):
        found = price("bitsandbytes::dequantize_4bit", *args, out=out)
        assert found.durations[0] == pytest.approx(expected / 0.7, rel=0.25) and found.cls == "elementwise"
    unnamed = price("mylib::unpack", *args[:2], out=(tensor(4096, 4096),))
    assert unnamed.durations[0] == pytest.approx(expected, rel=0.25)
    assert unnamed.error is not None and unnamed.error >= 0.5


def test_rows_are_picked_from_tables() -> None:
    """fbgemm's bags and vLLM's caches are not charged for what they do not touch."""
    tables, width, bags, each = 26, 128, 2048, 20
    indices = tensor(tables * bags * each, dtype="int64")
    args = (
        tensor(tables * 1_000_000 * width, dtype="float32"),
        tensor(0),
        tensor(0, 0),
        tensor(tables, dtype="int32"),
        tensor(tables, dtype="int64"),
        tensor(tables + 1, dtype="int32"),
        tables * width,
        width,
        indices,
        tensor(tables * bags + 1, dtype="int64"),
        0,
        tensor(0),
        tensor(0, dtype="int32"),
        0,
        False,
    )
    rows = tables * bags * each * width * 4
    for out in ((), (tensor(bags, tables * width, dtype="float32"),)):
        found = ns("fbgemm::split_embedding_codegen_forward_unweighted_cuda", *args, out=out)
        assert rows / STREAM < found < 2.5 * rows / STREAM
    key, cache, slots = tensor(4096, 8, 128), tensor(20_000, 16, 8, 128), tensor(4096, dtype="int64")
    write = ("_C_cache_ops::reshape_and_cache_flash", key, key, cache, cache, slots, "auto", 1.0, 1.0)
    assert ns(*write) < 60_000 < 0.2 * ns("aten::mul", cache, cache)
    assert ns("mylib::write_cache", *write[1:6]) < 60_000
    decode = (tensor(64, 32, 128), tensor(64, 32, 128), cache, cache, 8, 0.1, tensor(64, 128, dtype="int32"))
    paged = price("_C::paged_attention_v1", *decode, tensor(64, dtype="int32"), 16, 2048, None, "auto", 1.0, 1.0)
    assert paged.cls == "attention" and paged.bytes == pytest.approx(64 * 2048 * 8 * 128 * 2 * 2, rel=0.01)


def test_a_mask_picks_at_most_what_there_is() -> None:
    """``edges[:, mask]`` of a graph: a mask stands for its own dimensions, not for an index into them."""
    edges, mask = tensor(2, 1_500_000, dtype="int64"), tensor(1_500_000, dtype="bool")
    found = price("aten::index.Tensor", edges, (None, mask))
    assert found.bytes == 2 * 2 * 1_500_000 * 8 + 1_500_000 and sum(found.durations) < 100_000
    grid = tensor(64, 64, 1024)
    assert price("aten::index.Tensor", grid, (tensor(64, 64, dtype="bool"),)).bytes == 2 * 2 * 64 * 64 * 1024 + 64 * 64
    rows = tensor(100, dtype="int64")
    assert price("aten::index.Tensor", grid, (None, rows)).bytes == 2 * 2 * 64 * 100 * 1024 + 100 * 8


def test_tables_that_might_be_read_whole_have_a_long_error_bar() -> None:
    table, indices, rows = tensor(1 << 20, 512), tensor(4096, dtype="int64"), tensor(4096, 512)
    found = price("mylib::pick", table, indices, out=(rows,))
    whole = ns("aten::clone", table)
    assert found.durations[0] < 20_000 and found.error is not None
    assert found.durations[0] * (1 + found.error) > 0.4 * whole


def test_a_product_inside_an_operator_is_seen() -> None:
    """The product with matching shapes is found: the real one takes as long as torch's."""
    x, weight = tensor(8192, 4096), tensor(14336, 4096)
    found = price("mylib::linear", x, weight, out=(tensor(8192, 14336),))
    torchs = ns("aten::mm", x, TensorSpec("bfloat16", (4096, 14336), (1, 4096)))
    assert found.durations[0] == pytest.approx(torchs, rel=0.15) and found.error == 1.0
    assert ns("mylib::add", *[tensor(4096, 4096)] * 2, out=(tensor(4096, 4096),)) < 0.4 * ns(
        "aten::mm", *[tensor(4096, 4096)] * 2
    )


def test_flash_attns_own_operators_are_attention() -> None:
    q, kv = tensor(2, 4096, 32, 128), tensor(2, 4096, 8, 128)
    torchs = ns("aten::_flash_attention_forward", q, kv, kv, None, None, 4096, 4096, 0.0, True, False)
    own = price("flash_attn::_flash_attn_forward", q, kv, kv, 0.0, 0.09, True, -1, -1, 0.0, None, False)
    assert own.cls == "attention" and own.durations[0] == pytest.approx(torchs, rel=0.25) and own.flops > 0
    lengths = tensor(3, dtype="int32")
    packed = [tensor(8192, heads, 128) for heads in (32, 8, 8)]
    name, varlen = "flash_attn::_flash_attn_varlen_forward", (*packed, lengths, lengths, 4096, 4096, 0.0, 0.09)
    assert ns(name, *varlen, True, -1, -1) == own.durations[0] < ns(name, *varlen, False, -1, -1)
    window = ns("flash_attn::_flash_attn_forward", q, kv, kv, 0.0, 0.09, True, 511, 0, 0.0, None, False)
    assert window < 0.4 * own.durations[0]


def test_flex_attention_is_not_flash_attention() -> None:
    """Causal ones against an H100, where their code is not known."""
    found = 0
    for row in rows("2026-11-22-h100/triton.jsonl.xz"):
        for kernel in row.get("kernels", ()) if row.get("case", "").startswith("flex causal") else ():
            if not kernel["name"].startswith("triton_tem"):
                continue
            operands = [tensor(*t["s"]) for t in kernel["launch"]["args"][:3]]
            ours = ns(f"inductor::{kernel['name']}", *operands)
            assert ours == pytest.approx((kernel["cold"] + kernel["warm"]) / 2, rel=0.15)
            found += 1
    assert found == 4


def test_what_is_made_on_the_gpu_costs_what_was_measured() -> None:
    """Permutations are sorted, ranges are counted, rows of probabilities are added up by a block each."""
    apart = ("Memset", "Memcpy", "arange", "distribution", "FillFunctor")  # commands and operators of their own
    dtypes = {"randperm": "int64", "linspace": "float32", "logspace": "float32", "multinomial": "float32"}
    for row in rows("2026-11-24-h100/factories.jsonl"):
        name, size = row["name"].split()
        if name not in dtypes:
            continue
        kernels = {k: v for k, v in row["kernels"].items() if name.endswith("space") or not any(a in k for a in apart)}
        own = list(kernels.values())
        real = sum(ns for _, ns in own)
        launched = (KernelLaunch("k", (64, 1, 1), (256, 1, 1)),) * round(sum(count for count, _ in own))
        signature = OperatorSignature(f"aten::{name}", (tensor(*map(int, size.split("x")), dtype=dtypes[name]),))
        predicted = sum(MODEL.operator(signature, launched).durations)
        assert real / 1.4 < predicted < 1.4 * real, row["name"]


def test_a_kernel_of_cupy_takes_the_bytes_in_its_name() -> None:
    def of(name: str) -> Price:
        return MODEL.kernel(KernelLaunch(name, (1 << 17, 1, 1), (128, 1, 1)))

    doubled = of("cupy_multiply__float32_float_float32")  # a number of Python has no bytes
    assert doubled.bytes == 8 << 24 and doubled.cls == "elementwise"
    assert of("cupy_less__float64_float64_bool").bytes == 17 << 24
    assert of("cupy_fill").error == of("my_kernel__float32").error == UNKNOWN_WAVE_ERROR


# ---------------------------------------------------------------- no signature ends a run


def test_sparse_tensors_have_a_price() -> None:
    """SparseAdam, sampled products: of what is stored, if that is known; else by the kernels' grids."""
    sparse = {"t": "float32", "s": [50_000_000, 128], "st": [], "layout": "sparse_coo"}
    dense = {"t": "float32", "s": [128, 64], "st": [64, 1]}
    text = orjson.dumps({"op": "aten::_sparse_addmm", "args": [sparse, dense], "bwd": False})
    kernels = (KernelLaunch("k", (256, 1, 1), (256, 1, 1)),)
    unknown = MODEL.operator(parse_signature(text), kernels)
    assert sum(unknown.durations) < 10_000 and unknown.error == UNKNOWN_WAVE_ERROR
    alone, late = MODEL.kernel(kernels[0]), MODEL.covered(kernels[0])
    assert alone.error == UNKNOWN_WAVE_ERROR and sum(alone.durations) > sum(late.durations)
    known = orjson.dumps({"op": "aten::_sparse_addmm", "args": [{**sparse, "nnz": 4_000_000}, dense], "bwd": False})
    found = MODEL.operator(parse_signature(known), kernels)
    assert 4_000_000 * 20 / STREAM < sum(found.durations) < 4_000_000
    assert parse_signature(write_signature(parse_signature(known))) == parse_signature(known)


def test_bitsandbytes_takes_what_was_measured() -> None:
    """On an H100 (validation/probes/extension_kernels.py): code books are searched slowly, looked up fast; 8-bit
    AdamW is no copy."""
    n = 45_088_768
    half, code = {"t": "bfloat16", "s": [n], "st": [1]}, {"t": "float32", "s": [256], "st": [1]}
    byte, scales = {"t": "uint8", "s": [n], "st": [1]}, {"t": "float32", "s": [n // 256], "st": [1]}
    packed, small = {"t": "uint8", "s": [n // 2, 1], "st": [1, 1]}, {"t": "float32", "s": [n // 64], "st": [1]}
    real = {"t": "float32", "s": [n], "st": [1]}
    square = {"t": "bfloat16", "s": [11008, 4096], "st": [4096, 1]}
    numbers = [0.9, 0.999, 0.0, 0.0, 1e-8, 3, 1e-4]
    cases: tuple[tuple[str, list[Any], list[Any], float], ...] = (
        ("quantize_4bit", [square, 64, "nf4", "uint8"], [packed, small], 424.9),
        ("dequantize_4bit", [packed, small, 64, "nf4", [11008, 4096], "bfloat16"], [square], 53.4),
        (
            "optimizer_update_8bit_blockwise",
            ["adam", half, half, byte, byte, *numbers, code, code, scales, scales, 0.01, 1.0, False],
            [],
            1240.8,
        ),
        ("optimizer_update_32bit", ["adam", half, half, real, real, None, 0.0, 0.0, *numbers], [], 499.7),
    )
    for name, args, made, us in cases:
        text = orjson.dumps({"op": f"bitsandbytes::{name}", "args": args, "out": made})
        found = MODEL.operator(parse_signature(text), (KernelLaunch("k"),))
        assert sum(found.durations) / 1e3 == pytest.approx(us, rel=0.1), name
        assert found.cls != "other"


def test_products_with_sparse_matrices_take_what_was_measured() -> None:
    """On an H100 (validation/probes/sparse.py): a CSR matrix, the sampled product of two dense ones; on an H200
    the kernels of a product of a COO matrix."""
    rows, stored, width = 131_072, 1_048_540, 128
    matrix = {"t": "float32", "s": [rows, rows], "st": [], "layout": "sparse_csr", "nnz": stored}
    dense = {"t": "float32", "s": [rows, width], "st": [width, 1]}
    across = {"t": "float32", "s": [width, rows], "st": [rows, 1]}
    pairs = {**matrix, "s": [100_000] * 2, "layout": "sparse_coo", "nnz": 1_000_000}
    cases = (
        ("aten::mm", [matrix, dense], 232.1),
        ("aten::mm", [pairs, {**dense, "s": [100_000, width]}], 677.8),
        ("aten::sparse_sampled_addmm", [matrix, dense, across, 1, 1], 2520.3),
    )
    for name, args, us in cases:
        found = MODEL.operator(parse_signature(orjson.dumps({"op": name, "args": args})), ())
        assert sum(found.durations) / 1e3 == pytest.approx(us, rel=0.25), name
    along = {**across, "st": [1, width]}  # columns that lie as the sum runs are read whole
    args = [matrix, dense, along, 1, 1]
    whole = MODEL.operator(parse_signature(orjson.dumps({"op": "aten::sparse_sampled_addmm", "args": args})), ())
    assert sum(whole.durations) / 1e3 < 0.5 * 2520.3


sizes = st.lists(st.integers(-2, 1 << 40), max_size=4)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**62), 2**62), st.floats(), st.text(max_size=6)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.fixed_dictionaries({"t": st.sampled_from(["float32", "int64", "x"]), "s": sizes}),
        st.fixed_dictionaries({"t": inner, "s": inner, "st": inner, "layout": inner, "nnz": inner}),
        st.fixed_dictionaries({"l": inner, "n": inner, "numel": inner, "bytes": inner}),
    ),
    max_leaves=12,
)
operators = st.one_of(values, st.sampled_from(sorted(ATEN)).map("aten::{}".format))
texts = st.one_of(
    st.text(max_size=40),
    st.fixed_dictionaries({"op": operators, "args": values, "out": values}).map(lambda t: orjson.dumps(t).decode()),
)


@settings(max_examples=600, deadline=None)
@given(texts, st.integers(0, 3))
def test_any_text_is_priced(text: str, launched: int) -> None:
    kernels = (KernelLaunch("k", (64, 1, 1), (128, 1, 1)),) * launched
    found = MODEL.operator(read_signature(text), kernels)
    assert len(found.durations) == max(1, launched) and all(each > 0 for each in found.durations)
    assert found.cls in CLASSES and found.error is not None


@pytest.mark.parametrize("length", [1 << 30, 1 << 50])
def test_lists_that_cannot_be_are_not_built(length: int) -> None:
    tensors = {"l": [{"t": "float32", "s": [4]}], "n": length, "numel": 4 * length, "bytes": 16 * length}
    for value in (tensors, {"l": [1, 2], "n": length}):
        signature = read_signature(orjson.dumps({"op": "aten::cat", "args": [value]}))
        assert signature == OperatorSignature("aten::cat", ())
    deep = '{"op": "aten::cat", "args": ' + "[" * 900 + "]" * 900 + "}"
    assert read_signature(deep).name == "aten::cat"


def test_numbers_that_are_not_finite_are_written_as_the_tracer_does() -> None:
    written = write_signature(OperatorSignature("aten::masked_fill", (float("-inf"), 0.34, float("nan"))))
    assert parse_signature(written).args == ("-inf", 0.3, "nan")


@pytest.mark.parametrize(("dtype", "real"), [("c64", "f32"), ("c128", "f64")])
def test_library_products_of_complex_numbers_have_a_price(dtype: str, real: str) -> None:
    call = {"call": "gemm", "m": 1024, "n": 1024, "k": 1024, "trans": "nn"}
    machine, ns = Machine(load_gpu("H100")), []
    for name in (dtype, real):
        product = gemm.from_library({**call, "a": name, "c": name, "compute": name})
        assert product is not None
        ns.append(gemm.product_ns(machine, product))
    assert ns[0] >= ns[1] > 0


@pytest.mark.parametrize(
    ("name", "shape", "us"),
    [("", (4, 263, 14, 9), 111.2), ("", (4, 100, 14, 32), 48.0), ("_backward_data", (4, 263, 14, 9), 63.6)],
)
def test_softmax_along_channels_goes_from_element_to_element(name: str, shape: tuple[int, ...], us: float) -> None:
    """On an H200, of few blocks, whose threads go over all channels one by one."""
    x, model = tensor(*shape, dtype="float32"), AnalyticModel(load_gpu("H200"))
    args = (x, x, 1, "float32") if name else (x, 1, False)
    (priced,) = model.operator(OperatorSignature(f"aten::_softmax{name}", args), ()).durations
    assert priced == pytest.approx(1e3 * us, rel=0.2)


@pytest.mark.parametrize("width", ["bfloat16", "float8"])
def test_grouped_products_take_the_tiles_of_their_groups(width: str) -> None:
    measured = [row for row in rows("2026-11-28-h200/grouped_products.jsonl") if row["rows"] >= 8192]
    key = {"bfloat16": "bfloat16_ns", "float8": "float8_ns_fast"}[width]
    errors = []
    for row in (row for row in measured if row["form"] == "rows" and row.get(key, 0.0) > 150e3):
        ends = tensor(row["groups"], dtype="int32")
        dtype, name = ("bfloat16", "_grouped_mm") if width == "bfloat16" else ("float8_e4m3fn", "_scaled_grouped_mm")
        operands = tensor(row["rows"], row["k"], dtype=dtype), tensor(row["groups"], row["k"], row["n"], dtype=dtype)
        scales = () if width == "bfloat16" else (tensor(row["rows"], dtype="float32"), tensor(1, dtype="float32"))
        signature = OperatorSignature(f"aten::{name}", (*operands, *scales, ends, None, None))
        (product,) = gemm.from_signature(signature, name)
        errors.append(abs(gemm.product_ns(Machine(load_gpu("H200")), product) / row[key] - 1))
    assert len(errors) > 100 and sorted(errors)[len(errors) // 2] < 0.1


def test_natten_is_attention_to_windows() -> None:
    """Windows of 16 x 16 keys of 128 x 128 tokens, by tiles of 8 x 16: 24 x 40 keys a query where strides are 1."""
    tokens = tensor(1, 16384, 16, 128)
    grid, tiles = [128, 128], ([8, 16], [8, 16])

    def fna(window: int, stride: int = 1, *, causal: bool = False) -> int:
        each = [[window] * 2, [stride] * 2, [1, 1], [causal] * 2]
        return ns("natten::hopper_na2d_forward", *[tokens] * 3, *each, 0.09, grid, grid, grid, *tiles, 1)

    whole = ns("natten::hopper_fmha_forward", *[tokens] * 3, False, 0.09, 128, 128, 1, None, None, 0, 0)
    torchs = ns("aten::_scaled_dot_product_cudnn_attention", *[tensor(1, 16, 16384, 128)] * 3, None, True, 0.0, False)
    assert whole == pytest.approx(torchs, rel=0.05) and fna(128) == pytest.approx(whole, rel=0.05)
    assert 1.1 < fna(16) / whole / (24 * 40 / 128**2) < 1.4, "blocks have a cost of their own"
    assert fna(16, 16) < 0.6 * fna(16) and fna(16, causal=True) < fna(16)
    side = natten.Side(128, 16, queries=8, keys=8)
    assert side.keys_of(0) == side.keys_of(7) == (0, 16) and side.keys_of(100) == (92, 108)
    assert natten.Side(128, 16, causal=True).keys_of(3) == (0, 4) and natten.Side(128, 8, dilation=4).tokens == 32


def test_flash_attn_3_takes_cudnns_measured_time() -> None:
    """On an H100: 16 heads of 128, 8 of keys, 16,384 tokens. The longer a block, the less its own cost counts."""
    q, kv, lse = tensor(1, 16384, 16, 128), tensor(1, 16384, 8, 128), tensor(1, 16, 16384, dtype="float32")
    backward = ns("flash_attn_3::bwd", q, q, kv, kv, q, lse, q, kv, kv, *[None] * 6, 0.09, True, -1, -1)
    assert backward == pytest.approx(4.738e6, rel=0.05)
