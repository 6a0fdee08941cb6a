"""Workloads of libraries that own the step: DeepSpeed's engine, transformers' Trainer, accelerate. For host_pairs.py."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import torch

from validation.workloads.host_runs import Language, Step, Texts, language_loss, one_rank, words


def llama_config(layers: int) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=512, intermediate_size=1408, num_hidden_layers=layers, num_attention_heads=8, num_key_value_heads=4,
        vocab_size=32000, use_cache=False,
    )


def deepspeed_step(stage: int, accumulate: int, fp16: bool, layers: int) -> Step:
    import deepspeed

    one_rank()
    settings = {
        "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": accumulate, "gradient_clipping": 1.0,
        "fp16" if fp16 else "bf16": {"enabled": True}, "zero_optimization": {"stage": stage, "overlap_comm": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}}, "steps_per_print": 100000,
    }
    model = Language(512, layers, 8)
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
    loss_of = language_loss(engine, 1, 256)

    def step() -> None:
        for _ in range(accumulate):
            engine.backward(loss_of())
            engine.step()

    return step


def deepspeed_one() -> Step:
    """Optimizer states sharded; two micro-batches."""
    return deepspeed_step(1, accumulate=2, fp16=False, layers=8)


def deepspeed_two() -> Step:
    """Gradients sharded; float16 and a loss scaler."""
    return deepspeed_step(2, accumulate=1, fp16=True, layers=8)


def deepspeed_three() -> Step:
    """Parameters sharded, with a hook before and after each module."""
    return deepspeed_step(3, accumulate=1, fp16=False, layers=6)


class Labelled(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __init__(self, count: int) -> None:
        self.count, self.texts = count, Texts()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.texts[index], "labels": self.texts[index]}


def hf_trainer() -> Step:
    """An epoch of two steps in transformers' own loop, each logged."""
    from transformers import LlamaForCausalLM, Trainer, TrainingArguments

    class Stepped(Trainer):
        """Trains nothing by itself, and keeps what an epoch is called with."""

        def _run_epoch(self, **arguments: Any) -> None:
            self.epoch_arguments = arguments
            self.control.should_training_stop = True

    one_rank()
    settings = TrainingArguments(
        tempfile.mkdtemp(), num_train_epochs=100000, per_device_train_batch_size=2, logging_steps=1, report_to="none", bf16=True,
        save_strategy="no", disable_tqdm=True, include_num_input_tokens_seen="all",
    )
    trainer = Stepped(LlamaForCausalLM(llama_config(8)), settings, train_dataset=Labelled(4))
    quiet(trainer)
    trainer.train()

    def step() -> None:
        trainer.control.should_training_stop = False
        Trainer._run_epoch(trainer, **trainer.epoch_arguments)

    return step


def quiet(trainer: Any) -> None:
    """Logs go on, their lines are not printed."""
    from transformers import PrinterCallback

    trainer.remove_callback(PrinterCallback)


def accelerated() -> Step:
    """A loop of one's own with accelerate: mixed precision, clipping, a schedule, a loss that is gathered and read."""
    from accelerate import Accelerator
    from transformers import LlamaForCausalLM, get_cosine_schedule_with_warmup

    one_rank()
    accelerator = Accelerator(mixed_precision="bf16")
    plain = LlamaForCausalLM(llama_config(8))
    optimizer = torch.optim.AdamW(plain.parameters(), 1e-4)
    schedule = get_cosine_schedule_with_warmup(optimizer, 10, 100000)
    model, optimizer, schedule = accelerator.prepare(plain, optimizer, schedule)
    ids = words(2, 256)

    def step() -> None:
        loss = model(input_ids=ids, labels=ids).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        accelerator.gather(loss.detach()).item()

    return step


LIBRARIES: dict[str, Callable[[], Step]] = {
    "deepspeed_one": deepspeed_one, "deepspeed_two": deepspeed_two, "deepspeed_three": deepspeed_three,
    "hf_trainer": hf_trainer, "accelerated": accelerated,
}
