"""Transformer Engine's calls as operators, with stand-ins for its extension: it is not installed where tests run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from phantora.cost import KernelLaunch, library_operators, model_for, parse_signature
from phantora.cost.families import base_name, class_of
from phantora.cost.families import gemm as products
from phantora.cost.float8 import WAYS, Way, as_tables_have_it, product, way_of
from phantora.cost.machine import Machine
from phantora.cost.types import OperatorSignature, TensorSpec
from phantora.hardware import load_gpu
from phantora.rank.patches.engine_calls import Calls, clearing

MODEL = model_for(load_gpu("H100"))


class Quantised:
    _fp8_dtype = SimpleNamespace(name="kFloat8E5M2", __str__=lambda self: "kFloat8E5M2")

    def size(self) -> tuple[int, ...]:
        return (8, 16)


class Float8Quantizer:
    dtype, rowwise_usage, columnwise_usage = SimpleNamespace(name="kFloat8E4M3"), True, True


def announced(*args: Any, **kwargs: Any) -> OperatorSignature:
    """Signature that a call reports."""
    seen: list[bytes] = []

    def around(text: bytes, launch: Callable[[], Any]) -> Any:
        seen.append(text)
        return launch()

    module = ModuleType("transformer_engine_torch")
    vars(module).update(quantize=print, get_cudnn_version=len, KIND=3)
    Calls(around).wrap(module)
    assert module.get_cudnn_version is len and module.quantize is not print
    module.quantize(*args, **kwargs, file=open("/dev/null", "w"))  # noqa: SIM115
    return parse_signature(seen[0])


def test_a_call_is_an_operator_with_its_arguments() -> None:
    x = torch.zeros(4, 6, dtype=torch.bfloat16).t()
    said = announced(x, Quantised(), Float8Quantizer(), [x, x], None, True)
    assert said.name == "transformer_engine::quantize"
    cpu = TensorSpec("bfloat16", (6, 4), stride=(1, 6), device="cpu")
    assert said.args[:6] == (
        cpu,
        TensorSpec("float8_e5m2", (8, 16), stride=(16, 1)),
        "Float8Quantizer kFloat8E4M3 rc",
        (cpu, cpu),
        None,
        True,
    )


def test_modules_that_took_a_function_by_name_get_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Megatron-Core, shared among ranks, imports Transformer Engine before its calls are announced."""
    module, taker = ModuleType("transformer_engine_torch"), ModuleType("transformer_engine.pytorch.ops")
    vars(module).update(rmsnorm_fwd=len)
    vars(taker).update(forward=len, other=max)
    monkeypatch.setitem(sys.modules, taker.__name__, taker)
    seen: list[bytes] = []

    def around(text: bytes, launch: Callable[[], Any]) -> Any:
        seen.append(text)
        return launch()

    Calls(around).wrap(module)
    assert taker.forward([1, 2]) == 2 and b"transformer_engine::rmsnorm_fwd" in seen[0] and taker.other is max


def test_long_lists_are_told_by_their_size() -> None:
    said = announced([torch.zeros(3)] * 70)
    assert len(said.args[0]) == 70 and sum(t.shape[0] for t in said.args[0]) == 210


def test_small_results_are_cleared_and_arguments_are_not() -> None:
    cleared: list[tuple[int, int]] = []

    class Clear:
        argtypes: Any = None
        restype: Any = None

        def __call__(self, address: int, size: int) -> None:
            cleared.append((address, size))

    class OnGpu(SimpleNamespace):
        is_cuda = True

        def data_ptr(self) -> int:
            return 64

        def numel(self) -> int:
            return int(self.count)

        def element_size(self) -> int:
            return 4

        def is_contiguous(self) -> bool:
            return True

    given, made, large = OnGpu(count=2), OnGpu(count=3), OnGpu(count=1 << 20)
    clearing(Clear())((given, made, large, None, 7), (given,))
    assert cleared == [(64, 12)]


# ---------------------------------------------------------------- prices


def gemm(**more: Any) -> dict[str, Any]:
    sizes = {"trans": "tn", "m": 4096, "n": 8192, "k": 4096}
    return {"lib": "cublaslt", "call": "gemm", "a": "bf16", "c": "bf16"} | sizes | more


def ns(name: str, *kernels: KernelLaunch, args: tuple[Any, ...] = ()) -> int:
    return sum(MODEL.operator(OperatorSignature(f"transformer_engine::{name}", args), kernels).durations)


def test_a_call_on_fewer_sms_takes_the_waves_of_fewer() -> None:
    whole, all_named, fewer = (
        ns("generic_gemm", KernelLaunch("gemm", library=gemm(**sms))) for sms in ({}, {"sms": 132}, {"sms": 116})
    )
    assert whole == all_named
    assert fewer / whole == pytest.approx(1.06, abs=0.01)  # 132 / 116, less what the clock gains


@pytest.mark.parametrize(
    ("trans", "m", "n", "k", "measured"),
    [
        ("nn", 6144, 8192, 12288, 1.083),
        ("nt", 6144, 12288, 8192, 1.105),
        ("nt", 6144, 9216, 8192, 1.116),
        ("nn", 6144, 8192, 9216, 1.073),
    ],
)
def test_products_lose_on_fewer_sms_what_an_h100_loses(trans: str, m: int, n: int, k: int, measured: float) -> None:
    """The times of both runs: validation/workloads/te_steps.py, on two H100."""
    calls = (gemm(trans=trans, m=m, n=n, k=k, **sms) for sms in ({}, {"sms": 116}))
    whole, fewer = (ns("generic_gemm", KernelLaunch("gemm", library=call)) for call in calls)
    assert fewer / whole == pytest.approx(measured, abs=0.07)


@pytest.mark.parametrize(
    ("m", "n", "k", "sms", "measured"),
    [
        (6144, 8192, 12288, 116, 1.067),
        (6144, 8192, 12288, 100, 1.168),
        (12288, 8192, 6144, 116, 1.074),
        (14336, 8192, 4096, 116, 1.070),
        (4096, 8192, 14336, 100, 1.162),
    ],
)
def test_fp8_products_on_fewer_sms(m: int, n: int, k: int, sms: int, measured: float) -> None:
    """validation/measurements/2026-11-25-h100/fewer_sms.jsonl; what they draw is what those of the tables draw."""
    calls = (gemm(a="e4m3", b="e4m3", c="bf16", m=m, n=n, k=k, **some) for some in ({}, {"sms": sms}))
    whole, fewer = (ns("generic_gemm", KernelLaunch("gemm", library=call)) for call in calls)
    assert fewer / whole == pytest.approx(measured, abs=0.04)


@pytest.mark.parametrize(
    ("way", "us"), [(Way(fast=True), 308.2), (Way(), 338.3), (Way("rows", fast=True), 317.7), (Way("rows"), 345.8)]
)
def test_torchs_fp8_products_take_what_bursts_of_them_took(way: Way, us: float) -> None:
    """validation/measurements/2026-11-25-h100/scaled_products.jsonl, of another H100 than the table; no measured
    shape."""
    price = MODEL.operator(product(4096, 4096, 14336, way), ())
    assert price.provenance == "interpolated"
    assert sum(price.durations) / 1e3 == pytest.approx(us, rel=0.12 if way == Way("rows") else 0.04)


@pytest.mark.parametrize(
    ("m", "n", "k", "how", "us"),
    [
        (28672, 4096, 8192, {"fast_accumulation": 1}, 1275.0),
        (8192, 4096, 28672, {"b": "e5m2"}, 1340.0),
        (8192, 28672, 4096, {"b": "e5m2", "c": "f32"}, 1488.0),
        (14336, 8192, 4096, {"b": "e5m2", "c": "f32"}, 739.0),
        (8192, 4096, 5120, {"b": "e5m2"}, 238.0),
    ],
)
def test_transformer_engines_fp8_products(m: int, n: int, k: int, how: dict[str, Any], us: float) -> None:
    """Products in a step of Llama 3 70B's layers: validation/workloads/te_steps.py, on two H100."""
    library = gemm(trans="tn", m=m, n=n, k=k, **({"a": "e4m3", "b": "e4m3", "c": "bf16"} | how))
    assert ns("generic_gemm", KernelLaunch("gemm", library=library)) / 1e3 == pytest.approx(us, rel=0.06)


@pytest.mark.parametrize("way", [way for ways in WAYS.values() for way in ways], ids=lambda way: way.narrow)
def test_the_way_of_an_fp8_product_is_read_off_its_signature(way: Way) -> None:
    assert way_of(product(2048, 4096, 8192, way)) == way


@pytest.mark.parametrize(
    ("recipes", "way"), [((0, 0), Way()), ((1, 1), Way("rows")), ((4, 4), Way("vectors")), ((4, 5), Way("blocks"))]
)
def test_the_newer_operator_makes_the_same_products(recipes: tuple[int, int], way: Way) -> None:
    older = product(2048, 4096, 8192, way)
    a, b, scale_a, scale_b = older.args[:4]
    first, second = ((recipe,) for recipe in recipes)
    args = (a, b, (scale_a,), first, (0,), (scale_b,), second, (0,), None, "bfloat16", (), False)
    newer = OperatorSignature("aten::_scaled_mm_v2", args)
    assert as_tables_have_it(newer) == older
    assert MODEL.operator(newer, ()).durations == MODEL.operator(older, ()).durations


def test_a_product_into_a_given_tensor_or_with_a_bias_is_the_measured_one() -> None:
    plain = product(2048, 4096, 8192, Way(fast=True))
    a, b = plain.args[:2]
    one, bias = TensorSpec("float32", (1, 1), stride=(1, 1)), TensorSpec("bfloat16", (4096,), stride=(1,))
    out = TensorSpec("bfloat16", (2048, 4096), stride=(4096, 1))
    called = OperatorSignature("aten::_scaled_mm.out", (a, b, one, one, bias, None, "bfloat16", True, out))
    assert as_tables_have_it(called) == plain


@pytest.mark.parametrize("way", [Way("mx"), Way("nv", first="float4_e2m1fn_x2")])
def test_microscaled_products_are_found_again(way: Way) -> None:
    """MXFP8 and NVFP4: 32 or 16 elements share a scale, in a format of its own."""
    assert way_of(product(4096, 4096, 4096, way)) == way
    assert as_tables_have_it(product(4096, 4096, 4096, way)) == product(4096, 4096, 4096, way)


def test_other_products_are_made_in_no_such_way() -> None:
    a, b = product(4096, 4096, 4096, Way()).args[:2]
    assert way_of(OperatorSignature("aten::mm", (a, b))) is None


def test_a_library_call_is_the_operator_of_torch_that_makes_it() -> None:
    mm = library_operators.operator_of(gemm())
    assert mm is not None and mm.name == "aten::mm"
    assert mm.args == (
        TensorSpec("bfloat16", (8192, 4096), stride=(4096, 1)),
        TensorSpec("bfloat16", (4096, 4096), stride=(1, 4096)),
    )
    narrow = library_operators.operator_of(gemm(a="e4m3", b="e5m2"))
    assert narrow is not None and narrow.name == "aten::_scaled_mm" and narrow.args[0].dtype == "float8_e5m2"
    assert library_operators.operator_of({"call": "conv_fwd"}) is None
    assert library_operators.operator_of({"call": "gemm"}) is None


@pytest.mark.parametrize("trans", ["nn", "nt", "tn", "tt"])
def test_products_take_as_long_as_torchs(trans: str) -> None:
    like = library_operators.operator_of(gemm(trans=trans))
    assert like is not None
    kernel = KernelLaunch("gemm", library=gemm(trans=trans))
    assert ns("generic_gemm", kernel) == sum(MODEL.operator(like, (kernel,)).durations)


def test_packed_sequences_and_windows_are_less_than_their_graph() -> None:
    """cuDNN's graph of packed sequences is as long as all tokens, and one with a window as long as one without."""
    graph = {"call": "sdpa_fwd", "a": "bf16", "b": 32, "h": 32, "hkv": 8, "sq": 8192, "skv": 8192, "d": 128}
    graph["causal"] = 1
    q, ends = TensorSpec("bfloat16", (8192, 32, 128), stride=(4096, 128, 1)), TensorSpec("int32", (9,), stride=(1,))
    given = (1024, 1024, True, "NVTE_THD_THD_THD", ends, q)
    packed = ns("fused_attn_fwd", KernelLaunch("sdpa", library=graph), args=given)
    short = graph | {"b": 8, "sq": 1024, "skv": 1024}
    plain = ns("fused_attn_fwd", KernelLaunch("sdpa", library=short), args=(1024, 1024, True))
    assert packed == plain
    long = graph | {"b": 1}
    whole = ns("fused_attn_fwd", KernelLaunch("sdpa", library=long), args=((-1, 0),))
    window = ns("fused_attn_fwd", KernelLaunch("sdpa", library=long), args=((1023, 0),))
    assert 0.15 * whole < window < 0.35 * whole


def test_lists_cost_what_is_in_them_however_many_launches() -> None:
    tensors = tuple(TensorSpec("float32", (4096, 4096), stride=(4096, 1)) for _ in range(12))
    lists = (tensors, tensors, tensors, tensors)
    few, many = (
        ns("multi_tensor_adam", *[KernelLaunch("adam", (320, 1, 1), (512, 1, 1))] * count, args=(65536, lists))
        for count in (1, 12)
    )
    assert few <= many < 1.1 * few
    assert 1.8e6 < few < 2.6e6  # 12 x 16.8 M parameters, 28 bytes each, at 2.65 TB/s as torch's: 2.1 ms


def test_scales_of_narrow_products_are_small() -> None:
    """Rearranging the scales of an operand of 64 Mi elements moves 4 MiB, not the operand; what quantises it reads
    and writes it."""
    operand = TensorSpec("float8_e4m3fn", (8192, 8192), stride=(8192, 1))
    swizzle = KernelLaunch("transformer_engine::swizzle_row_scaling_kernel", (256, 1, 1), (128, 1, 1))
    cast = KernelLaunch("transformer_engine::quantize_mxfp8_kernel_cast_only", (256, 1, 1), (128, 1, 1))
    assert 1_000 < ns("generic_gemm", swizzle, args=(operand,)) < 4_000
    given = TensorSpec("bfloat16", (8192, 8192), stride=(8192, 1))
    cast_ns = ns("quantize", cast, args=(given, "MXFP8Quantizer kFloat8E4M3 rc"))
    assert cast_ns == pytest.approx((2 + 2 * 33 / 32) * 8192**2 / (3.35e3 * 0.8), rel=0.25)


def test_mxfp8_of_each_expert_is_written_along_rows_and_columns() -> None:
    """As one tensor, published: 52.3 us on a B200 (github.com/ROCm/TransformerEngine/pull/598); each has a start."""
    cast = KernelLaunch("transformer_engine::dispatch::mxfp8::quantize_mxfp8_kernel", (256, 1, 1), (128, 1, 1))
    given = TensorSpec("bfloat16", (8192, 8192), stride=(8192, 1))
    one = "MXFP8Quantizer kFloat8E4M3 rc"
    calls = (("quantize", 1, (given, one)), ("split_quantize", 4, (given, (2048,) * 4, (one,) * 4)))
    model = model_for(load_gpu("B200"))
    alone, several = (
        sum(model.operator(OperatorSignature(f"transformer_engine::{name}", args), (cast,) * count).durations)
        for name, count, args in calls
    )
    assert alone == pytest.approx(52_340, rel=0.08)
    assert several == pytest.approx(alone + 3 * 3_500, rel=0.01)


def test_classes() -> None:
    names = {"generic_gemm": "gemm", "fused_attn_bwd": "attention", "rmsnorm_fwd": "normalization"}
    names |= {"swiglu": "elementwise"}
    assert {name: class_of(base_name(f"transformer_engine::{name}")) for name in names} == names


@pytest.mark.parametrize("gpu", ["B200", "B300", "GB200", "GB300", "RTX-PRO-6000"])
def test_narrower_products_take_less_time(gpu: str) -> None:
    """No format is priced at the peak of a wider one."""
    machine = Machine(load_gpu(gpu))
    shape = (8192, 8192, 8192)
    ways = (Way("nv", first="float4_e2m1fn_x2"), Way("mx"))
    wide = OperatorSignature("aten::mm", (TensorSpec("bfloat16", shape[:2], stride=(8192, 1)),) * 2)
    signatures = (*(product(*shape, way) for way in ways), wide)
    found = [products.from_signature(signature, base_name(signature.name))[0] for signature in signatures]
    times = [products.product_ns(machine, each) for each in found]
    assert times[0] < 0.75 * times[1] < 0.75 * 0.75 * times[2]
    with pytest.raises(ValueError, match="no arithmetic"):
        machine.peak("bits3")
