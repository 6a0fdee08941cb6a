"""The Trainer of transformers and Lightning: what they print is virtual time, and the log's."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from phantora.trace.analysis.steps import find_steps
from phantora.trace.reader import open_log
from tests.support.communication import flops, messages
from tests.support.runs import SAMPLES, Run, trace

TINY = ("--layers", "2", "--hidden", "256", "--seq", "256", "--steps", "3")


def trainer(directory: Path, *arguments: str, host_time: str = "modelled") -> Run:
    options = ("--hang-timeout", "120", "--host-time", host_time, "--cluster", "1x2xH100")
    return trace(directory, *options, str(SAMPLES / "huggingface/trainer.py"), *TINY, *arguments)


def seconds_of(run: Run) -> list[float]:
    """Each step, by the log."""
    return [(step.end - step.start) / 1e9 for step in find_steps(open_log(run.log)).of_rank[0]]


def check_trainer(run: Run, batch: int, steps: int = 3) -> None:
    final = re.findall(r"\[rank0\]: ({'train_runtime'.*})", run.out)[-1]
    numbers = {key: float(value) for key, value in re.findall(r"'(\w+)': '([^']+)'", final)}
    assert numbers["train_samples_per_second"] == pytest.approx(steps * batch / numbers["train_runtime"], rel=0.01)
    assert numbers["train_steps_per_second"] == pytest.approx(steps / numbers["train_runtime"], rel=0.01)
    assert run.step_lines().steps[-1].seconds == pytest.approx(1 / numbers["train_steps_per_second"])
    moments = [float(value) for value in re.findall(r"\[rank0\]: {'loss'.*'train_runtime': '([^']+)'", run.out)]
    assert len(moments) == steps
    # Four digits are printed, and the first step, which contains all first uses, has most of them.
    assert moments[-1] - moments[-2] == pytest.approx(seconds_of(run)[-1], abs=2e-3)
    assert moments[-1] <= sum(seconds_of(run))


def test_trainer_ddp_fp16(tmp_path: Path) -> None:
    """Trainer with a loss scaler, accumulation and worker processes that load data."""
    run = trainer(tmp_path, "--fp16", "--accumulate", "2", "--workers", "1", "--batch", "2")
    check_trainer(run, batch=2 * 2 * 2)


def test_trainer_deepspeed_offload(tmp_path: Path) -> None:
    """ZeRO-3 with the optimizer on the host."""
    settings = json.loads((SAMPLES / "huggingface/zero3.json").read_text())
    settings["zero_optimization"]["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    settings["optimizer"] = {"type": "AdamW", "params": {"lr": "auto"}}
    (tmp_path / "offload.json").write_text(json.dumps(settings))
    run = trainer(tmp_path, "--deepspeed", "offload.json", "--checkpointing", host_time="none")
    check_trainer(run, batch=4 * 2)
    hidden, layers, seq, vocab = 256, 2, 256, 128256
    layer = 2 * hidden**2 + 2 * hidden * 64 + 3 * hidden * 4 * hidden
    parameters = vocab * hidden + layers * layer
    reduced = {m: n for m, n in messages(run.log, 0).items() if m.kind == "ReduceScatter"}
    assert {m.group for m in reduced} == {2}
    assert sum(m.bytes * n for m, n in reduced.items()) == pytest.approx(3 * 2 * parameters, rel=0.01)
    repeated = layer - 4 * hidden**2  # all but the last product of a layer
    of_layer = (6 * layer + 2 * repeated) * seq + 18 * seq**2 * hidden  # attention as in test_deepspeed
    assert flops(run.log, 0) == pytest.approx(3 * 4 * (layers * of_layer + 6 * vocab * hidden * seq), rel=0.01)


def test_lightning(tmp_path: Path) -> None:
    run = trace(
        tmp_path,
        "--hang-timeout",
        "120",
        "--cluster",
        "1x2xH100",
        str(SAMPLES / "lightning/gpt.py"),
        "--layers",
        "2",
        "--width",
        "256",
        "--seq",
        "256",
        "--steps",
        "3",
    )
    row = re.search(r"run_training_batch\s*\|\s*(\S+)\s*\|\s*(\d+)\s*\|\s*(\S+)", run.out + run.err)
    assert row is not None and int(row[2]) == 3
    assert float(row[3]) == pytest.approx(3 * float(row[1]), rel=0.01)
    steps = seconds_of(run)
    assert sum(steps[1:]) < float(row[3]) < sum(steps)
    read = run.step_lines()
    assert read.framework == "Lightning" and read.steps[-1].last == 3
    finished = re.findall(r"\[rank0\]: .*step_ms: ([\d.]+)", run.out + run.err)
    assert 0.75 * steps[-1] < float(finished[-1]) / 1e3 < 1.01 * steps[-1]  # less what lies between batches


@pytest.mark.parametrize("tied", [False, True])
def test_weights_of_zeros_load_as_a_checkpoint(tmp_path: Path, tied: bool) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=1024,
        hidden_size=512,
        intermediate_size=512,
        num_hidden_layers=1,
        num_attention_heads=4,
        tie_word_embeddings=tied,
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
    )
    config.save_pretrained(tmp_path)
    subprocess.run([sys.executable, SAMPLES / "huggingface/empty_weights.py", tmp_path], check=True)
    model, found = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(found.values()), "no weight is missing or unexpected"
    assert not any(weight.any() for weight in model.parameters() if weight.ndim > 1)
    file = (tmp_path / "model.safetensors").stat()
    assert file.st_blocks * 512 < 65536 < sum(weight.nbytes for weight in model.parameters()) < file.st_size
