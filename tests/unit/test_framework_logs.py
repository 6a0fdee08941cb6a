"""Step lines of training frameworks: what is read of them, drift, outliers, and the comparison with a simulated run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from phantora.cli.main import cli
from phantora.errors import PhantoraError
from phantora.framework_logs import StepLog, read_step_log
from phantora.framework_logs.statistics import steady
from tests.support.command_line import runner
from tests.support.fakelog import small_run

GIB = 2**30
MEGATRON = (
    " [2026-10-06 03:27:{n:02}.120000] iteration {step:8}/     100 | consumed samples:         5120 | elapsed time per "
    "iteration (ms): {ms:.1f} | throughput per GPU (TFLOP/s/GPU): 101.0 | learning rate: 1.500000E-06 | global batch "
    "size:   512 | lm loss: 9.763827E+00 | number of nan iterations:   0 |"
)
MEMORY = (
    "[Rank {rank}] (after 10 iterations) memory (MB) | allocated: 100.00 | max allocated: {peak} | reserved: 1.0 | "
    "max reserved: 4096.00"
)
TITAN = (
    "[titan] 2026-03-01 10:00:{s:02},{ms:03} - root - INFO - \x1b[31mstep: {step:2}  \x1b[32mloss:  7.9  "
    "\x1b[38;2;180;60;0mgrad_norm:  1.2  \x1b[39mmemory: {gib}GiB(50.00%)  \x1b[34mtps: {tps:,}  \x1b[36mtflops: 9.80  "
    "\x1b[35mmfu: 1.0%\x1b[0m"
)
DEEPSPEED = (
    "[2026-11-07 01:55:23,714] [INFO] [timer.py:264:stop] epoch=0/micro_step={step}/global_step={step}, "
    "RunningAvgSamplesPerSec=25.0, CurrSamplesPerSec={rate}, MemAllocated=4.32GB, MaxMemAllocated=38.5GB"
)


def read(folder: Path, text: str) -> StepLog:
    (folder / "log.txt").write_text(text)
    return read_step_log(str(folder / "log.txt"))


def megatron(times: list[float]) -> str:
    lines = ["  seq_length ...................................... 4096"]
    lines += [MEGATRON.format(n=n % 60, step=n, ms=ms) for n, ms in enumerate(times, 1)]
    lines += [MEMORY.format(rank=0, peak=2048.0), MEMORY.format(rank=8, peak=3072.0)]
    return "\n".join(lines)


def test_megatron(tmp_path: Path) -> None:
    log = read(tmp_path, megatron([9000.0, 500.0, 512.0, 500.0]))
    assert (log.framework, log.allocated, log.reserved, log.per_gpu) == ("Megatron-LM", 3 * GIB, 4 * GIB, False)
    found = steady(log)
    assert found.seconds == 0.5 and found.samples_per_second == 1024 and found.tokens_per_second == 1024 * 4096


def test_torchtitan(tmp_path: Path) -> None:
    lines = [TITAN.format(step=step, s=step, ms=500, gib=20 + step / 10, tps=8000 + step) for step in (1, 10, 20, 30)]
    lines.insert(2, TITAN.format(step=10, s=11, ms=0, gib=70, tps=9).replace("step:", "validate step:"))
    log = read(tmp_path, "\n".join(lines))
    assert [step.seconds for step in log.steps] == [1.0, 1.0, 1.0] and log.per_gpu
    assert log.reserved == round(23 * GIB) and steady(log).tokens_per_second == 8025


def test_deepspeed(tmp_path: Path) -> None:
    batch = "[2026-11-07 01:54:00,000] [INFO] [config.py:1001:print]   train_batch_size ............. 64\n"
    text = batch + "\n".join(DEEPSPEED.format(step=10 * n, rate=rate) for n, rate in enumerate((32, 64, 64), 1))
    log = read(tmp_path, text)
    assert [step.seconds for step in log.steps] == [2.0, 1.0, 1.0] and log.allocated == round(38.5 * GIB)
    assert steady(log).samples_per_second == 64


def test_hugging_face(tmp_path: Path) -> None:
    bars = [
        f" {n}%|██▌       | {n}/80 [00:{n:02}<01:16,  {rate}]" for n, rate in enumerate(("9.00s/it", "2.00it/s"), 1)
    ]
    text = "\r".join(
        [*bars, " 50%|██ | 5/10 [00:01<00:01, 30.0it/s]", "100%|██████████| 80/80 [01:41<00:00,  1.27s/it]"]
    )
    loss = "\n{'loss': '83.94', 'grad_norm': '2726', 'learning_rate': '0', 'epoch': '0.5'}\n"
    log = read(tmp_path, text + loss)
    assert [(step.last, step.seconds) for step in log.steps] == [(1, 9.0), (2, 0.5)]
    ended = "{'train_runtime': 101.6, 'train_samples_per_second': 3.2, 'train_steps_per_second': 0.8, 'epoch': 40.0}"
    alone = read(tmp_path, ended).steps
    assert [(step.seconds, step.samples_per_second) for step in alone] == [(1.25, 3.2)]
    with pytest.raises(PhantoraError, match="no step lines of Megatron-LM, TorchTitan"):
        read(tmp_path, text)  # a bar alone may be that of anything


def test_lightning(tmp_path: Path) -> None:
    def bar(epoch: int, done: int, seconds: float) -> str:
        return f"Epoch {epoch}:  55%|█████▍    | {done}/100 [00:09<00:07, {done / seconds:.2f}it/s, v_num=0, loss=1.0]"

    # 10 s until the first state, then 0.1 s a step
    states = [(1, 10.0), (50, 14.9), (99, 19.8)]
    log = read(tmp_path, "\r".join(bar(epoch, *state) for epoch in (0, 1) for state in states))
    assert [step.last for step in log.steps] == [50, 99, 149, 198]
    assert [step.seconds for step in log.steps] == pytest.approx([0.1] * 4, rel=0.05)
    rich = "Epoch 1/9 ━━━━━━━━━━━━━╸━━━ 64/100 0:00:05 • 0:00:03 8.00it/s v_num: 0.000"
    assert read(tmp_path, rich).steps[0].seconds == 0.125


def test_drift_and_outliers_are_named(tmp_path: Path) -> None:
    even = [9000.0] + [500.0 + n % 3 for n in range(60)]
    assert steady(read(tmp_path, megatron(even))).findings() == []
    saved = [time + 1000 * (n in (20, 40, 60)) for n, time in enumerate(even, 1)]
    assert steady(read(tmp_path, megatron(saved))).findings() == [
        ("OUTLIERS", "up to step 20, 40, 60, every 20 steps: 3.000 s longer in all")
    ]
    slower = [time + n for n, time in enumerate(even)]
    assert steady(read(tmp_path, megatron(slower))).findings() == [
        ("DRIFT", "the steps get 7.2% longer, from 515.50 ms to 552.50 ms")
    ]
    again = read(tmp_path, megatron(even[:20]) + "\n" + megatron(even[:10]))
    assert len(again.steps) == 10  # of a job that was started again


def validated(folder: Path, log: str, *more: str) -> Any:
    words = ["analyze", log, "--validate", str(folder / "log.txt"), *more]
    return runner().invoke(cli, words, standalone_mode=False)


def test_a_simulated_run_is_compared_with_the_lines(tmp_path: Path) -> None:
    log = str(small_run(steps=3).write(tmp_path / "run.arrow"))
    report = json.loads(runner().invoke(cli, ["analyze", log, "--json"]).stdout)
    step_ms = report["headline"]["step_time_ns"] / 1e6
    (tmp_path / "log.txt").write_text("\n".join(MEGATRON.format(n=n, step=n, ms=9.0) for n in (1, 2, 3)))
    found = json.loads(validated(tmp_path, log, "--json", "--validate-within", "1000%").stdout)["validation"]
    assert found["passed"] and found["quantities"][0]["real"] == 9e6
    assert found["quantities"][0]["simulated"] == pytest.approx(1e6 * step_ms)
    refused = validated(tmp_path, log)
    error = 100 * (step_ms / 9.0 - 1)
    verdict = f"Megatron-LM, 3 lines: the simulated step is {abs(error):.1f}% shorter than the real one: step beyond 5%"
    assert refused.return_value == 1 and verdict in refused.stderr


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x00\x01" * 50, "is no text"),
        (b"", "no step lines"),
        (b"\xff" * (3 << 20), "no step lines"),
        (b"iteration 1/ 2 | elapsed time per iteration (ms): 0.0 |", "no step lines"),
    ],
)
def test_files_that_are_no_logs_end_in_one_line(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "log.txt").write_bytes(data)
    with pytest.raises(PhantoraError, match=said):
        read_step_log(str(tmp_path / "log.txt"))
