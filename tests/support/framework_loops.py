"""Loops that frameworks run, one per rank, each a job of its own with one GPU.

As in loops.py every loop measures its own step in virtual time. Run by tests/frameworks/test_loops.py.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from tests.support.loops import WIDTH, Result, batch, flops_of, network, now, synced, typical

STEPS = 7


def alone() -> None:
    """This rank is a job of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1", GROUP_RANK="0", MASTER_PORT=str(port))
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"


def init() -> None:
    alone()
    torch.distributed.init_process_group("nccl")


def trained(model: nn.Module) -> Result:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    x = batch()

    def step() -> None:
        model(x).float().pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return synced(step), step


def ddp() -> Result:
    init()
    return trained(nn.parallel.DistributedDataParallel(network(), device_ids=[torch.cuda.current_device()]))


def fsdp() -> Result:
    from torch.distributed.fsdp import FullyShardedDataParallel

    init()
    return trained(FullyShardedDataParallel(network(), use_orig_params=True))


def fsdp2() -> Result:
    from torch.distributed.fsdp import fully_shard

    init()
    model = network()
    for block in model.children():
        fully_shard(block)
    fully_shard(model)
    return trained(model)


def deepspeed() -> Result:
    init()
    import deepspeed

    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 1},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    }
    model = network()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
    x = batch()

    def step() -> None:
        engine.backward(engine(x).float().pow(2).mean())
        engine.step()

    return synced(step), step


class Rows(Dataset[Any]):
    """Batches for the trainers."""

    def __len__(self) -> int:
        return 8 * (STEPS + 1)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.ones(512, WIDTH)}


class Net(nn.Module):
    """As transformers' Trainer wants a model: it returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = network()

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.layers(x.bfloat16().flatten(0, 1)).float().pow(2).mean()}


def model_step(model: nn.Module) -> Callable[[], object]:
    x = {"x": torch.ones(8, 512, WIDTH, device="cuda")}
    return lambda: model(**x)["loss"].backward()


def huggingface() -> Result:
    alone()
    from transformers import Trainer, TrainerCallback, TrainingArguments

    moments: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            moments.append(now())

    model = Net()
    arguments = TrainingArguments(
        tempfile.mkdtemp(),
        max_steps=STEPS,
        per_device_train_batch_size=8,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        optim="adamw_torch_fused",
        disable_tqdm=True,
    )
    Trainer(model, arguments, train_dataset=Rows(), callbacks=[Clock()]).train()
    return differences(moments), model_step(model)


def lightning() -> Result:
    alone()
    import lightning as L
    from lightning.pytorch.plugins.environments import LightningEnvironment

    moments: list[float] = []

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, rows: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            return self.net(**rows)["loss"]

        def on_train_batch_end(self, *_: Any) -> None:
            moments.append(now())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)

    module = Module()
    trainer = L.Trainer(
        max_steps=STEPS,
        devices=[int(os.environ["LOCAL_RANK"])],
        accelerator="gpu",
        logger=False,
        barebones=True,
        enable_checkpointing=False,
        plugins=[LightningEnvironment()],
    )
    os.environ["LOCAL_RANK"] = "0"
    trainer.fit(module, torch.utils.data.DataLoader(Rows(), 8))
    return differences(moments), model_step(module.net.cuda())


def differences(moments: list[float]) -> float:
    return typical(b - a for a, b in pairwise(moments[1:]))


LOOPS: tuple[Callable[[], Result], ...] = (ddp, fsdp, fsdp2, deepspeed, huggingface, lightning)


def main(chosen: list[str]) -> None:
    torch.set_num_threads(1)
    names = chosen or [loop.__name__ for loop in LOOPS]
    loop = {loop.__name__: loop for loop in LOOPS}[names[int(os.environ["RANK"])]]
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    began = time.perf_counter()
    seconds, step = loop()
    torch.cuda.synchronize()
    reported = {"loop": loop.__name__, "seconds": seconds, "flops": flops_of(step), "all": time.perf_counter() - began}
    print(json.dumps(reported), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
