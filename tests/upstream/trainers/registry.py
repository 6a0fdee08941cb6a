"""The trainers: what is installed, what runs, and what is set that a user would not set on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from phantora.stubs.find import TESTED

_TINY = (("tiny.py", "org"),)
_TRL = (
    *("--model_name_or_path", "org/model", "--output_dir", "out", "--max_steps", "3", "--save_strategy", "no"),
    *("--per_device_train_batch_size", "2", "--logging_steps", "1", "--report_to", "none", "--bf16", "true"),
)
_TO_BUILD = (f"torch=={TESTED}", "setuptools", "wheel", "packaging", "ninja", "psutil")
_SKIPPED = {"FLASH_ATTENTION_SKIP_CUDA_BUILD": "TRUE", "UV_NO_BUILD_ISOLATION": "1"}
"""flash-attn's Python half, for which Phantora has a stand-in."""


@dataclass(frozen=True)
class Trainer:
    """One run of a trainer."""

    name: str
    distribution: str
    requirements: tuple[str, ...]
    command: tuple[str, ...]
    """What follows the options of ``phantora trace``; PROGRAMS is the folder of the programs."""
    set: str
    """For people: configuration, and what a GPU does not need."""
    cluster: str = "1x2xH100"
    prepared: tuple[tuple[str, ...], ...] = _TINY
    """Programs that write models and data, run before in the trainer's environment."""
    before: tuple[tuple[str, ...], ...] = ()
    """Arguments of ``pip install`` for what is there before the requirements are installed."""
    environment: Mapping[str, str] = field(default_factory=dict)
    python: tuple[int, int] = (3, 10)
    """The oldest that it takes."""


TRAINERS = (
    Trainer(
        "TRL SFT",
        "trl",
        ("trl", "peft"),
        ("-m", "trl.scripts.sft", *_TRL, "--dataset_name", "org/chat", "--use_peft"),
        "DDP, LoRA of PEFT",
    ),
    Trainer("TRL DPO", "trl", ("trl", "peft"), ("-m", "trl.scripts.dpo", *_TRL, "--dataset_name", "org/pairs"), "DDP"),
    Trainer(
        "TRL GRPO",
        "trl",
        ("trl",),
        (
            *("-m", "trl.scripts.grpo", *_TRL, "--dataset_name", "org/prompts", "--max_completion_length", "32"),
            *("--num_generations", "4", "--reward_funcs", "think_format_reward"),
        ),
        "DDP, generation by transformers",
    ),
    Trainer(
        "PEFT", "peft", ("peft", "accelerate"), ("PROGRAMS/with_accelerate.py", "--lora"), "LoRA, DDP of accelerate"
    ),
    Trainer(
        "accelerate", "accelerate", ("accelerate", "transformers"), ("PROGRAMS/with_accelerate.py",), "FSDP2, bf16"
    ),
    Trainer("Lightning", "lightning", ("lightning",), ("PROGRAMS/with_lightning.py",), "FSDP, bf16-mixed", prepared=()),
    Trainer(
        "LLaMA-Factory",
        "llamafactory",
        ("llamafactory>=0.9.5", f"torchaudio=={TESTED}"),
        ("--", "llamafactory-cli", "train", "llamafactory.yaml"),
        "LoRA, DDP by torchrun",
        prepared=(*_TINY, ("configurations.py", "llamafactory.yaml")),
        environment={"FORCE_TORCHRUN": "1", "NPROC_PER_NODE": "2"},
    ),
    Trainer(
        "axolotl",
        "axolotl",
        ("axolotl",),
        ("--", "axolotl", "train", "axolotl.json"),
        "LoRA, DDP by accelerate",
        prepared=(*_TINY, ("configurations.py", "axolotl.json")),
        environment={"AXOLOTL_DO_NOT_TRACK": "1"},
    ),
    Trainer(
        "unsloth",
        "unsloth",
        ("unsloth",),
        ("PROGRAMS/with_unsloth.py",),
        "LoRA, one GPU",
        cluster="1x1xH100",
        environment={"UNSLOTH_DISABLE_STATISTICS": "1"},
    ),
    Trainer(
        "ms-swift",
        "ms-swift",
        ("ms-swift",),
        (
            *("-m", "swift.cli.sft", "--model", "org/model", "--model_type", "llama", "--template", "llama3_2"),
            *("--dataset", "org/chat/train.jsonl", "--max_steps", "3", "--output_dir", "out", "--logging_steps", "1"),
            *("--per_device_train_batch_size", "2", "--save_strategy", "no"),
        ),
        "LoRA, DDP",
    ),
    Trainer(
        "torchtune",
        "torchtune",
        ("torchtune", "torchao==0.14.1", "transformers"),
        ("--", "tune", "run", "--nproc_per_node", "2", "full_finetune_distributed", "--config", "torchtune.yaml"),
        "FSDP2, torchao 0.14.1",
        prepared=(*_TINY, ("configurations.py", "torchtune.yaml")),
    ),
    Trainer(
        "verl",
        "verl",
        ("verl", "trl<0.20", "flash-attn", "fastapi", "uvicorn"),
        (
            *("-m", "verl.trainer.sft_trainer", "data.train_files=org/chat.parquet", "data.train_batch_size=4"),
            *("data.micro_batch_size_per_gpu=2", "data.use_dynamic_bsz=False", "data.num_workers=0"),
            *("data.ignore_input_ids_mismatch=True", "model.path=org/model", "trainer.n_gpus_per_node=2"),
            *("trainer.total_training_steps=3", "trainer.logger=[console]"),
        ),
        "sft_trainer, FSDP; flash-attn without its compiled half",
        before=(_TO_BUILD,),
        environment=_SKIPPED,
    ),
    Trainer(
        "OpenRLHF",
        "openrlhf",
        ("openrlhf",),
        (
            *("-m", "openrlhf.cli.train_sft", "--model.model_name_or_path", "org/model", "--data.dataset", "org/chat"),
            *("--data.max_samples", "16", "--data.input_key", "messages", "--data.apply_chat_template"),
            *("--data.max_len", "512", "--train.batch_size", "4", "--train.micro_batch_size", "2"),
            *("--train.max_epochs", "1", "--ckpt.output_dir", "out"),
        ),
        "DeepSpeed; flash-attn without its compiled half",
        before=(_TO_BUILD,),
        environment=_SKIPPED,
    ),
    Trainer(
        "diffusers",
        "diffusers",
        ("diffusers", "accelerate"),
        ("PROGRAMS/with_diffusers.py",),
        "UNet, DDP of accelerate",
        prepared=(),
    ),
    Trainer(
        "ultralytics",
        "ultralytics",
        ("ultralytics",),
        ("PROGRAMS/with_ultralytics.py",),
        "YOLO11n from its configuration, one GPU; `amp=False`: its check of AMP loads weights",
        cluster="1x1xH100",
        prepared=(),
    ),
    Trainer(
        "open_clip",
        "open_clip_torch",
        ("open_clip_torch[training]",),
        (
            *("-m", "open_clip_train.main", "--dataset-type", "synthetic", "--train-num-samples", "32", "--model"),
            *("RN50", "--batch-size", "8", "--epochs", "1", "--workers", "0", "--precision", "amp_bf16"),
        ),
        "RN50, synthetic data, DDP",
        prepared=(),
    ),
    Trainer(
        "sentence-transformers",
        "sentence-transformers",
        ("sentence-transformers[train]",),
        ("PROGRAMS/with_sentence_transformers.py",),
        "DDP, multiple negatives",
    ),
    Trainer(
        "NeMo Automodel",
        "nemo-automodel",
        ("nemo-automodel",),
        ("-m", "nemo_automodel.cli.app", "nemo_automodel.yaml"),
        "FSDP2",
        prepared=(*_TINY, ("configurations.py", "nemo_automodel.yaml")),
    ),
    Trainer(
        "lerobot",
        "lerobot",
        ("lerobot[dataset,training]",),
        (
            *("-m", "lerobot.scripts.lerobot_train", "--dataset.repo_id=org/robot", "--dataset.root=robot"),
            *("--policy.type=act", "--policy.device=cuda", "--policy.push_to_hub=false", "--steps=3"),
            *("--policy.pretrained_backbone_weights=null", "--batch_size=4", "--num_workers=0", "--wandb.enable=false"),
            *("--save_checkpoint=false", "--output_dir=out"),
        ),
        "ACT on states without pictures, one GPU",
        cluster="1x1xH100",
        prepared=(("robot.py",),),
        python=(3, 12),
    ),
)
