"""Results of MLPerf Training and golden values of Megatron-LM as runs, and the tables of their errors."""

from pathlib import Path
from typing import Any

from phantora.hardware import load_cluster
from validation.published import golden, upgrade
from validation.published.bridge import Journal
from validation.published.bridge_rows import Run
from validation.published.mlperf import chosen, table
from validation.published.mlperf_memory import memory_run, peak
from validation.published.mlperf_rows import expressed

ROW: dict[str, Any] = {
    "benchmark": "llama31_405b",
    "round": "v5.0",
    "org": "a",
    "gpu": "NVIDIA H100-SXM5-80GB",
    "gpus": 512,
    "hosts": 64,
    "gpus_per_host": 8,
    "global_batch": 1152,
    "micro_batch": 1,
    "parallelism": {"tp": 8, "pp": 8, "cp": 2, "ep": None, "vp": 8},
    "precision": "fp8 delayed",
    "config_env": {"TP_COMM_OVERLAP": "True"},
    "step_time_s": 10.0,
}


def words_of(**changes: Any) -> str:
    run = expressed(ROW | changes)
    assert isinstance(run, Run)
    return " ".join((*run.options, *run.words))


def test_a_result_is_folded_to_its_pipeline_with_the_precision_and_overlap_of_its_configuration() -> None:
    run = expressed(ROW)
    assert isinstance(run, Run)
    assert (run.layers, run.micro, run.rounds, run.points) == (126, 288, (8, 16), (126,))
    assert run.options[1:4] == ("dgx-h100:64", "--fold", "pp=8,dp=4:first,cp=2:first,tp=8:first")
    assert "--precision delayed" in words_of() and "--exposed-tp" not in words_of()
    env = {"TP_COMM_OVERLAP": "False", "FULL_CUDA_GRAPH": "1"}
    assert "--exposed-tp" in words_of(config_env=env) and "--cuda-graphs full_iteration" in words_of(config_env=env)


def test_attention_has_the_format_that_the_configuration_names() -> None:
    eight = {
        "benchmark": "llama31_8b",
        "global_batch": 256,
        "parallelism": {"tp": 1, "pp": 1, "cp": 2, "ep": None, "vp": None},
    }
    narrow = {"FP8_DPA": "1", "NVTE_DPA_FP8_RECIPE": "Float8CurrentScaling"}
    assert "--narrow-attention fp8" in words_of(**eight, precision="nvfp4", config_env=narrow)
    assert "--narrow-attention" not in words_of(**eight, config_env=narrow | {"NVTE_DPA_FP8_RECIPE": "F16"})


def test_buckets_and_cuda_graphs_are_those_of_the_configuration_where_it_names_them() -> None:
    eight = {
        "benchmark": "llama31_8b",
        "round": "v5.1",
        "gpus": 128,
        "hosts": 16,
        "global_batch": 64,
        "parallelism": {"tp": 2, "pp": 1, "cp": 1, "ep": None, "vp": 1},
    }
    assert "--cuda-graphs full_iteration" in words_of(**eight) and "--ddp-bucket-size" not in words_of(**eight)
    named = words_of(**eight, config_env={"MCORE_CUDA_GRAPH": "False", "BUCKET_SIZE": "64"})
    assert "--cuda-graphs" not in named and "--ddp-bucket-size 64" in named


def test_a_peak_of_memory_is_that_of_real_layers_on_a_line_through_two_numbers_of_them() -> None:
    row = {**ROW, "benchmark": "llama2_70b_lora", "gpus": 8, "global_batch": 8, "config_env": {"FP8_ACT": "1"}}
    row["parallelism"] = dict.fromkeys(("tp", "pp", "cp", "vp", "ep"), 1)
    run = memory_run(row)
    assert isinstance(run, Run)
    words = " ".join(run.words)
    assert "--te --fp8-param-gather --cross-entropy apart --narrow-activations" in words
    assert "--cuda-graphs" not in words
    known = {" ".join(run.command(12, 1)): 20.0, " ".join(run.command(16, 1)): 28.0}
    assert peak(run, known) == 20.0 + (80 - 12) * 2.0


def test_experts_of_a_rack_are_on_segments_of_racks_and_other_rows_are_refused() -> None:
    deep = {
        "benchmark": "deepseekv3_671b",
        "gpu": "NVIDIA Blackwell GPU (GB200)",
        "gpus": 512,
        "hosts": 128,
        "global_batch": 15360,
        "gpus_per_host": 4,
        "parallelism": {"tp": 2, "pp": 4, "cp": 1, "ep": 32, "vp": 4},
        "precision": "mxfp8",
    }
    words = words_of(**deep, config_env={"PIPELINE_LAYOUT": "Et*4|(t*4|)*14tmL", "CUDA_GRAPH_SCOPE": "full_iteration"})
    assert "--host-time none" in words and "--cuda-graphs" not in words
    cluster = load_cluster(words.split()[1])
    assert (cluster.hosts, cluster.wiring.nvlink_hosts) == (128, 16)
    assert "no multiple" in str(expressed(ROW | {"global_batch": 1151}))
    assert "not public" in str(expressed(ROW | {"benchmark": "bert"}))


def test_diffusion_has_the_batch_attention_and_format_of_its_round() -> None:
    unet = {"benchmark": "stable_diffusion", "minibatch_per_replica": 16}
    assert words_of(**unet).endswith("stable-diffusion --micro-batch-size 16 --cudnn-attention")
    assert words_of(**unet, round="v3.1").endswith("--micro-batch-size 16 --text-encoder")
    flux = {"benchmark": "flux1", "micro_batch": 32, "config_env": {"FP8_RECIPE": '"mxfp8"'}}
    alone = {"parallelism": {"tp": None, "pp": None, "cp": None, "ep": None, "vp": None}}
    assert words_of(**flux, **alone).endswith("--host-time none flux --micro-batch-size 32 --precision mxfp8")
    assert "tensor parallelism" in str(expressed(ROW | flux))


def test_the_table_has_both_numbers_and_predictions_only_one(tmp_path: Path) -> None:
    run = expressed(ROW)
    assert isinstance(run, Run)
    journal = Journal(tmp_path / "journal.jsonl")
    journal.known = {" ".join(run.command(126, 8)): 1.0, " ".join(run.command(126, 16)): 1.25}
    lines = list(table([(0, ROW)], journal, predicts=False))
    assert lines[2].endswith("| 10 | 9.75 | -2.5% |") and "| all | 1 | 2.5% | -2.5% | 0 | 1 |" in lines
    journal.parts = {" ".join(run.command(126, 16)): {"attention": 0.5, "idle": 0.5}}
    assert list(table([(0, ROW)], journal, predicts=False))[-1].endswith("| 50% | 0% | 0% | 0% | 0% | 50% |")
    assert list(table([(0, ROW)], journal, predicts=True))[2].endswith("| 9.75 |")
    assert [number for number, _ in chosen([ROW, ROW | {"org": "b"}], ["405b", "b"])] == [0, 1]
    assert [number for number, _ in chosen([ROW, ROW], ["1"])] == [1]


def test_a_golden_test_runs_its_own_arguments_on_random_tokens(tmp_path: Path) -> None:
    row = {
        "test": "gpt/small",
        "platform": "dev_dgx_h100",
        "script": "pretrain_gpt.py",
        "hosts": 1,
        "gpus_per_host": 8,
        "gpu": "H100",
        "args": {
            "--num-layers": "12",
            "--data-path": "x",
            "--ckpt-format": "torch_dist",
            "--bf16": "true",
            "--recompute-modules": "[mlp moe_act]",
            "--tp-comm-overlap-cfg": "tests/overlap.yaml",
            "--train-iters": "50",
        },
        "mem_max_allocated_bytes": 1.0,
        "mem_allocated_bytes": 1.0,
        "env": {},
        "iteration_s": 0.1,
    }
    words = golden.command(row, Path("/lm"), tmp_path)
    assert words[:6] == ["--cluster", "1x8xH100", "--fold", "off", "-m", "validation.workloads.megatron_script"]
    given = "--num-layers 12 --ckpt-format torch_dist --bf16 --recompute-modules mlp moe_act"
    assert words[6:17] == ["/lm/pretrain_gpt.py", *given.split(), "--tp-comm-overlap-cfg", "/lm/tests/overlap.yaml"]
    assert "--data-path" not in words
    text = golden.command(row | {"script": "examples/t5/pretrain_t5.py"}, Path("/lm"), tmp_path)
    assert text[text.index("--data-path") + 1] == str(tmp_path / "text") and "--mock-data" not in text
    assert (tmp_path / "text.idx").stat().st_size == 34 + 12 * 16000 + 8 * 2001
    assert "no memory" in golden.refused(row | {"mem_max_allocated_bytes": None})


def test_the_study_of_two_gpus_reads_both_of_its_scripts() -> None:
    row = {"gpu": "B200", "zero": 3, "seq": 8192, "software": {"torch": "2.13.0"}, "step_time_s": 2.0}
    lines = [
        '{"step": 1, "exec_time_ms": "1900.00", "peak_mem_gib": "16.3"}',
        "# wall step=914.60 ms   peak_mem=99.0 GiB",
    ]
    assert [tuple(filter(None, upgrade.STEP.findall(line)[0])) for line in lines] == [
        ("1900.00", "16.3"),
        ("914.60", "99.0"),
    ]
    known: dict[str, upgrade.Found | str] = {upgrade.named(row, 1): (1.9, 16.3)}
    assert list(upgrade.table([(1, row)], known))[2].endswith("torch 2.13.0 | 2.000 | 1.900 | -5.0% | - | 16.3 |")
