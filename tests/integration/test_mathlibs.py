"""torch's operators through the stubs of cuBLAS, cuBLASLt, cuDNN, cuFFT, cuSOLVER and cuSPARSE."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from phantora.cost.table_files import DATA
from phantora.cost.workspaces import workspaces_for
from phantora.hardware import load_gpu
from phantora.stubs import StubSet
from phantora.wire import layout
from phantora.wire.names import CUDNN_PLAN
from phantora.wire.workspaces import Block, pack
from tests.support import ringdump

Call = dict[str, Any]


@dataclass
class Outcome:
    """`calls`: the library calls that each operator of the program made, by the operator's name."""

    calls: dict[str, list[Call]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    stderr: str = ""
    unsupported: int = 0


@pytest.fixture(scope="module")
def outcome(stub_set: StubSet) -> Outcome:
    by_stem = {path.name.split(".")[0]: str(path) for path in stub_set.libraries}
    tables = workspaces_for(load_gpu("H100"), [DATA])
    assert tables is not None
    libraries = [by_stem[stem] for stem in ("libcublas", "libcublasLt", "libcudnn")]
    dump = ringdump.run_script(
        f"from tests.integration import mathlibs_program as program\nprogram.main(library, {libraries!r})",
        workspaces=pack([Block(**columns) for columns in tables.columns()]),
    )
    assert dump.status == 0, dump.stderr
    printed = json.loads(dump.value.splitlines()[-1])
    found = Outcome(failures=printed["failures"], answers=printed["answers"], stderr=dump.stderr)
    names: dict[int, str] = {}
    current: list[Call] = []
    for record in dump.records:
        if record["kind"] == "DEFINE_NAME":
            names[record["id"]] = record["blob"].decode()
        elif record["kind"] == "ANNOTATION" and names[record["id"]] != CUDNN_PLAN:
            current = found.calls.setdefault(names[record["id"]], [])
        elif record["kind"] == "UNSUPPORTED":
            found.unsupported += 1
        elif record["kind"] == "KERNEL" and record["flags"] & layout.Flag["PH_F_LIBRARY"]:
            current.append(json.loads(names[record["id"]]))
    return found


def made(outcome: Outcome, name: str) -> list[str]:
    return [call["call"] for call in outcome.calls[name]]


def test_everything_runs(outcome: Outcome) -> None:
    assert outcome.failures == {}
    assert outcome.unsupported == 0
    assert [line for line in outcome.stderr.splitlines() if line.lower().startswith("phantora")] == []


def test_every_call_says_what_it_costs(outcome: Outcome) -> None:
    calls = [call for group in outcome.calls.values() for call in group]
    assert len(calls) > 200
    for call in calls:
        assert call["name"] and call["lib"] and call["flops"] >= 0 and call["bytes"] > 0, call
    texts = {json.dumps({k: v for k, v in call.items() if k != "name"}, sort_keys=True) for call in calls}
    assert len(texts) > 60


@pytest.mark.parametrize(
    "name, short, compute",
    [
        ("float32", "f32", "f32"),
        ("bfloat16", "bf16", "f32"),
        ("float16", "f16", "f32"),
        ("float64", "f64", "f64"),
        ("complex64", "c64", "f32"),
    ],
)
def test_products(outcome: Outcome, name: str, short: str, compute: str) -> None:
    """torch's row-major a @ b is cuBLAS's column-major b' @ a': m and n change places."""
    (call,) = outcome.calls[f"mm {name}"]
    expected = {"a": short, "b": short, "c": short, "compute": compute, "trans": "nn"}
    assert expected.items() <= call.items()
    assert (call["m"], call["n"], call["k"], call["batch"]) == (512, 256, 128, 1)
    assert call["flops"] == (8 if short == "c64" else 2) * 512 * 256 * 128
    (call,) = outcome.calls[f"mm_t {name}"]
    assert call["trans"] == "tn"
    (call,) = outcome.calls[f"bmm {name}"]
    assert (call["batch"], call["m"], call["n"], call["k"]) == (4, 512, 256, 128)
    assert call["flops"] == 4 * (8 if short == "c64" else 2) * 512 * 256 * 128


def test_epilogues_and_narrow_types(outcome: Outcome) -> None:
    assert outcome.calls["mm tf32"][0]["compute"] == "tf32"
    (bias,) = outcome.calls["addmm bfloat16"]
    assert (bias["lib"], bias["epilogue"]) == ("cublaslt", "bias")
    assert outcome.calls["gelu"][0]["epilogue"] == "gelu_bias"
    (scaled,) = outcome.calls["scaled_mm"]
    expected = {"a": "e4m3", "b": "e4m3", "c": "bf16", "trans": "tn", "scale_a": "tensor"}
    assert expected.items() <= scaled.items()
    assert (scaled["m"], scaled["n"], scaled["k"]) == (1024, 256, 512)
    for rows in outcome.calls["scaled_mm rows"]:  # before CUDA 12.9 a kernel of torch's own
        assert (rows["scale_a"], rows["scale_b"]) == ("row", "row")
    assert outcome.calls["int_mm"][0]["compute"] == "i32"
    assert made(outcome, "linear") == ["gemm"] * 3
    assert made(outcome, "sparse24") == ["compress", "gemm_sparse24"]
    sparse = outcome.calls["spmm"][-1]
    assert {"lib": "cusparse", "call": "spmm", "m": 64, "n": 32, "nnz": 64}.items() <= sparse.items()


@pytest.mark.parametrize("benchmark", [False, True])
@pytest.mark.parametrize("order, layout_word", [("first", "nchw"), ("last", "nhwc")])
@pytest.mark.parametrize("dims", [2, 3])
def test_convolutions(outcome: Outcome, dims: int, order: str, layout_word: str, benchmark: bool) -> None:
    for dtype, short, compute in (("float32", "f32", "tf32"), ("bfloat16", "bf16", "f32")):
        calls = outcome.calls[f"conv{dims}d {dtype} {order} {benchmark}"]
        if (dims, dtype) == (3, "bfloat16") and not any(call["lib"] == "cudnn" for call in calls):
            continue  # torch 2.9 keeps these from the cuDNN it ships with
        for kind in ("conv_fwd", "conv_dgrad", "conv_wgrad"):
            matching = [call for call in calls if call["call"] == kind]
            # The search runs every engine before it settles on one.
            assert matching and (benchmark or len(matching) == 1)
            last = matching[-1]
            assert (last["a"], last["x"]) == (short, [4, 16] + [16] * dims)
            assert (last["w"], last["y"]) == ([32, 16] + [3] * dims, [4, 32] + [8] * dims)
            assert (last["stride"], last["padding"], last["groups"]) == ([2] * dims, [1] * dims, 1)
            assert last["flops"] == 2 * 4 * 32 * 8**dims * 16 * 3**dims
            if not benchmark:
                assert last["compute"] == compute
        forward = [call for call in calls if call["call"] == "conv_fwd"]
        assert forward[-1]["layout"] == layout_word


def test_workspaces_of_convolutions(outcome: Outcome) -> None:
    """As measured on an H100; from the nearest batch that was measured; by the rule, where nothing like it was."""
    found = outcome.answers["workspaces"]
    image, filters = 4 * 64 * 64 * 56 * 56, 4 * 64 * 64 * 9
    small, small_filters, odd = 4 * 4 * 24 * 20 * 20, 4 * 24 * 24 * 9, 4 * 4 * 24 * 7 * 7
    first = [found[key] for key in found if "contiguous" in key]
    assert first == [
        102_908_051,
        102_908_051 + 2 * image // 4,  # 80 images instead of 64
        400,  # a plain product
        2 * small + small_filters + 16,
        2 * odd + 16,  # a plain product of pixels that are not aligned
    ]
    assert first[0] == 2 * image + filters + 147  # all three tensors, converted and aligned
    assert max(found[key] for key in found if "channels_last" in key) < 512


def test_workspaces_that_cudnn_benchmark_tries(outcome: Outcome) -> None:
    """As measured while plans were tried; then the usual one's; on the line through two batches that were measured."""
    assert outcome.answers["tried"] == [51_453_968, 131, (51_453_968 + 102_834_192) // 2]


def test_convolution_variants(outcome: Outcome) -> None:
    assert {call["groups"] for call in outcome.calls["grouped"]} == {4}
    # A transposed convolution is the gradient of the data forward, and the forward one backward.
    assert made(outcome, "transposed")[0] == "conv_dgrad"
    assert {call["compute"] for call in outcome.calls["conv exact"]} == {"f32"}
    (fused,) = outcome.calls["conv relu"]
    assert fused["call"] == "conv_fwd" and fused["fused"] >= 2


def test_attention(outcome: Outcome, stub_set: StubSet) -> None:
    """On Hopper the choice of torch 2.11 is cuDNN; the other kernels are torch's and no library's."""
    version = tuple(int(part) for part in stub_set.torch_version.split(".")[:2])
    assert made(outcome, "sdpa") == (["sdpa_fwd", "sdpa_bwd"] if version >= (2, 11) else [])
    forward, backward = outcome.calls["sdpa CUDNN_ATTENTION"]
    shape = {"a": "bf16", "b": 2, "h": 8, "hkv": 8, "sq": 256, "skv": 256, "d": 64, "dv": 64, "causal": 1}
    assert ({"lib": "cudnn", "call": "sdpa_fwd"} | shape).items() <= forward.items()
    assert ({"lib": "cudnn", "call": "sdpa_bwd"} | shape).items() <= backward.items()
    assert forward["flops"] == 2 * 2 * (2 * 8 * 256 * 256 * 64)
    assert backward["flops"] == 2.5 * forward["flops"]
    for call in outcome.calls["sdpa full"]:
        assert (call["skv"], call.get("causal", 0)) == (384, 0)
    assert {call["hkv"] for call in outcome.calls["sdpa gqa"]} == {2}
    assert {call["dropout"] for call in outcome.calls["sdpa dropout"]} == {1}
    for name in ("sdpa FLASH_ATTENTION", "sdpa EFFICIENT_ATTENTION", "sdpa float"):
        assert outcome.calls[name] == []
    assert set(made(outcome, "sdpa MATH")) == {"gemm"}


def test_layers(outcome: Outcome) -> None:
    assert made(outcome, "norm train") == ["batch_norm_fwd", "batch_norm_bwd"]
    for kind in ("LSTM", "GRU", "RNN"):
        for variant in ("plain", "bare"):
            assert sorted(made(outcome, f"{kind} {variant}")) == ["rnn_dgrad", "rnn_fwd", "rnn_wgrad"]
        deep = next(call for call in outcome.calls[f"{kind} deep"] if call["call"] == "rnn_fwd")
        assert {"layers": 2, "directions": 2, "length": 10, "batch": 4, "hidden": 64}.items() <= deep.items()
    # Weights of an LSTM: 4 gates, 32 inputs and 64 states, two biases; twice that per token.
    plain = outcome.calls["LSTM plain"][0]
    assert plain["flops"] == 2 * 40 * (4 * 64 * (32 + 64) + 2 * 4 * 64)
    assert outcome.calls["LSTM projected"][0]["projection"] == 16
    assert "ctc_loss" in made(outcome, "ctc")
    assert [call["n"] for call in outcome.calls["fft"]] == [[1024], [1024]]
    assert all(call["n"] == [100, 130] for call in outcome.calls["rfft2"])


@pytest.mark.parametrize(
    "name, call",
    [
        ("cholesky", "potrf"),
        ("svd", "gesvd"),
        ("eigh", "sye"),
        ("qr", "geqrf"),
        ("lu_factor", "getrf"),
        ("ldl_factor", "sytrf"),
        ("solve", "getrf"),
    ],
)
def test_linear_algebra(outcome: Outcome, name: str, call: str) -> None:
    assert any(made_call.startswith(call) for made_call in made(outcome, f"linalg {name}"))


def test_error_codes(outcome: Outcome, stub_set: StubSet) -> None:
    answers = outcome.answers
    # Fine; no handle; negative m; lda below m; no such transposition; nothing to do.
    assert answers["gemm"] == [0, 1, 7, 7, 7, 0]
    major = int(stub_set.cuda.split(".")[0])
    assert answers["version"] == [major, major]
    assert answers["host result"] == [0, 0.0]
    # An attribute has one size; unknown attributes are refused.
    assert answers["lt attribute"] == [0, 7, 7]
    # A tensor without attributes, another descriptor's attribute, not finalised, unknown type.
    assert answers["cudnn"] == [0, 2000, 2000, 1001, 3000]
    assert answers["cudnn message"] == "cudnnBackendFinalize: TENSOR has no attribute 901"
    assert answers["cudnn version"] // 10000 == 9
    # cudnn-frontend asks for engine 5 of attention on Blackwell: two products and more. One product has one engine.
    assert answers["cudnn engines"] == [[1, 3000], [18, 0]]


def test_new_sizes_cost_a_choice_and_sometimes_a_kernel(outcome: Outcome) -> None:
    """On an H100 43, 0, 24 and 1 of these loaded a kernel
    (validation/measurements/2026-11-23-h100/new_shapes.jsonl)."""
    first, same, other, inner = outcome.answers["new sizes"]
    assert 30 <= first[0] <= 50 and first[1] == 64
    assert same == [0, 0]
    assert 15 <= other[0] <= 33 and other[1] == 64
    assert inner[0] <= 2 and inner[1] == 128
