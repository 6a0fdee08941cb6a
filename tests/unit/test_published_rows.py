"""Rows of Megatron-Bridge as runs: what is simulated of a row, and the time of its step."""

from pathlib import Path

import pytest

from validation.published import nvidia_products
from validation.published.bridge import Journal, step_seconds
from validation.published.bridge_rows import Run, expressed

ROW = {
    "section": "Pre-Training Performance",
    "model": "LLAMA3_70B",
    "System": "DGX-GB200",
    "#-GPUs": "64",
    "Precision": "MXFP8",
    "GBS": "256",
    "MBS": "1",
    "Sequence Length": "8192",
    "TP": "2",
    "PP": "4",
    "CP": "1",
    "VP": "5",
    "EP": "n/a",
    "container": "26.04 NeMo Container",
    "Model TFLOP / sec / GPU": "1",
}


def test_a_row_is_folded_to_its_pipeline_and_takes_the_line_through_two_numbers_of_micro_batches(
    tmp_path: Path,
) -> None:
    run = expressed(ROW)
    assert isinstance(run, Run)
    assert run.options[1:4] == ("gb200-nvl72:16", "--fold", "pp=4,dp=8:first,tp=2:first")
    assert (run.layers, run.points, run.micro, run.rounds, run.tokens) == (80, (80,), 32, (4, 8), 256 * 8192 // 64)
    journal = Journal(tmp_path / "journal.jsonl")
    journal.known = {" ".join(run.command(80, 4)): 1.0, " ".join(run.command(80, 8)): 1.5}
    assert step_seconds(run, journal) == 1.0 + (32 - 4) * 0.125


def test_experts_exchange_tokens_as_the_recipe_of_the_gpu_does() -> None:
    row = {**ROW, "model": "Qwen3_235B_a22B", "TP": "1", "PP": "8", "VP": "n/a"}
    hybrid, nccl = expressed({**row, "EP": "32"}), expressed({**row, "System": "DGX-B200", "EP": "8"})
    assert isinstance(hybrid, Run) and isinstance(nccl, Run)
    assert hybrid.words[-8:-4] == ("--ep", "32", "--etp", "1")
    assert (hybrid.words[-1], nccl.words[-1]) == ("hybridep", "alltoall")
    row = {**row, "model": "Qwen3_30B_a3B", "#-GPUs": "8", "PP": "1", "EP": "8", "Precision": "MXFP8"}
    graphed, deep = (expressed({**row, "System": f"DGX-{gpu}", "MBS": "4"}) for gpu in ("B200", "H100"))
    assert isinstance(graphed, Run) and isinstance(deep, Run)
    graphs = graphed.words.index("--cuda-graphs")
    assert graphed.words[graphs + 1 : graphs + 4] == ("attn", "moe_router", "moe_preprocess")
    assert deep.words[-1] == "deepep" and "--cuda-graphs" not in deep.words


def test_dispatchers_are_those_of_the_containers_recipe() -> None:
    row = {**ROW, "TP": "1", "MBS": "1", "Precision": "MXFP8"}
    qwen = {**row, "model": "Qwen3_30B_a3B", "System": "DGX-B200", "#-GPUs": "8", "PP": "1", "VP": "n/a", "EP": "8"}
    first = expressed(qwen)
    assert isinstance(first, Run)
    assert first.words[-1] == "alltoall"
    assert "--cuda-graphs moe_router --ep" in " ".join(first.words)
    deep = {**row, "model": "DeepSeekV3", "System": "DGX-B200", "#-GPUs": "256", "PP": "8", "VP": "2", "EP": "32"}
    second = expressed(deep)
    assert isinstance(second, Run)
    assert "deepep" in second.words and "--overlap-experts" in second.words


HYBRID = {**ROW, "model": "Nemotron_3_Super", "PP": "1", "VP": "n/a", "EP": "64"}


def test_a_hybrid_model_runs_with_the_passes_of_its_recipe_and_the_mix_of_its_layers() -> None:
    run, again = expressed({**HYBRID, "TP": "1"}), expressed({**HYBRID, "TP": "1", "System": "DGX-B200"})
    assert isinstance(run, Run) and isinstance(again, Run)
    assert (run.layers, run.points, run.rounds) == (88, (11, 22), (1, 2))
    assert ("--recompute" in run.words, again.words[-7:-4]) == (False, ("--recompute", "moe_act", "layernorm"))
    assert ("--cuda-graphs" in run.words, "--cuda-graphs" in again.words) == (True, False)


def test_a_hybrid_model_in_nvfp4_has_its_last_layers_in_bfloat16_in_both_runs() -> None:
    run = expressed({**HYBRID, "Precision": "NVFP4"})
    assert isinstance(run, Run) and min(run.points) > 14
    assert run.options[3] == "dp=32:first,tp=2"
    assert "--te" in run.words and "--fused-experts" not in run.words


def test_lightning_is_nano_with_other_layers_behind_it() -> None:
    row = {**HYBRID, "#-GPUs": "8", "TP": "1", "EP": "8", "container": "26.08 NeMo Container"}
    nano, lightning = (expressed({**row, "model": f"Nemotron_3_{name}"}) for name in ("Nano", "5_Lightning"))
    assert isinstance(nano, Run) and isinstance(lightning, Run)
    assert (lightning.words[1], lightning.words[2:]) == ("nemotron-3.5-lightning", nano.words[2:])


def test_a_row_that_is_not_simulated_has_a_reason() -> None:
    reason = "sparse attention: the workload does not have it"
    assert expressed({**ROW, "model": "DeepSeekV4 Flash"}) == reason
    assert expressed({**ROW, "section": "Inference"}) == "unknown section: Inference"
    sharded = {**ROW, "FSDP": "64", "PP": "1", "VP": "n/a"}
    assert expressed(sharded) == "Megatron-FSDP with settings that are not known"


def test_fine_tuning_names_its_kind() -> None:
    row = {**ROW, "section": "LoRA Performance", "#-GPUs": "8", "GBS": "32", "TP": "1", "Sequence Length": "4096"}
    run = expressed(row)
    assert isinstance(run, Run)
    assert "--finetune lora --vpp 5" in " ".join(run.words)
    assert (run.points, run.rounds, run.micro) == ((80,), (4, 8), 16)


def test_under_megatron_fsdp_the_same_part_of_the_layers_is_offloaded_in_both_runs() -> None:
    row = {**ROW, "FSDP": "64", "TP": "1", "PP": "1", "VP": "n/a", "MBS": "2"}
    narrow, wide = (expressed({**row, "System": "DGX-GB300", "Precision": name}) for name in ("FP8", "BF16"))
    assert isinstance(narrow, Run) and isinstance(wide, Run)
    assert (narrow.points, wide.points) == ((4, 8), (8, 16))
    assert narrow.command(8, 1)[-2:] == ("--cpu-offloading-num-layers", "2")
    assert wide.command(16, 1)[-2:] == ("--cpu-offloading-num-layers", "6")
    assert ("--fp8-param-gather" in narrow.words, "--fp8-param-gather" in wide.words) == (True, False)


def test_published_products_are_written_only_on_demand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []
    monkeypatch.setattr(nvidia_products, "products", lambda *_: {})
    monkeypatch.setattr(nvidia_products, "only", lambda *_: tmp_path / "gemm.parquet")
    monkeypatch.setattr(nvidia_products, "attention_factors", lambda *_: {})
    monkeypatch.setattr(nvidia_products, "write", lambda path, *_: written.append(path))
    words = ["nvidia_products", str(tmp_path), "--gpu", "gb300"]
    for further, names in ([], []), (["--write"], ["gb300.parquet"]):
        monkeypatch.setattr("sys.argv", [*words, *further])
        nvidia_products.main()
        assert [path.name for path in written] == names
