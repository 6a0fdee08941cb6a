"""Configurations of trainers that read a file: ``python configurations.py NAME`` writes the file NAME (JSON, which is
YAML too)."""

import base64
import json
import sys
from pathlib import Path
from typing import Any

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "llamafactory.yaml": {
        "model_name_or_path": "org/model",
        "stage": "sft",
        "do_train": True,
        "finetuning_type": "lora",
        "dataset": "rows",
        "dataset_dir": ".",
        "template": "llama3",
        "cutoff_len": 512,
        "output_dir": "out",
        "per_device_train_batch_size": 2,
        "max_steps": 3,
        "bf16": True,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 1,
    },
    "axolotl.json": {
        "base_model": "org/model",
        "adapter": "lora",
        "lora_r": 8,
        "lora_alpha": 16,
        "lora_target_linear": True,
        "datasets": [{"path": "org/alpaca.json", "ds_type": "json", "type": "alpaca"}],
        "dataset_processes": 1,
        "sequence_len": 512,
        "micro_batch_size": 2,
        "gradient_accumulation_steps": 1,
        "max_steps": 3,
        "num_epochs": 1,
        "learning_rate": 1e-4,
        "optimizer": "adamw_torch",
        "lr_scheduler": "cosine",
        "bf16": True,
        "output_dir": "out",
        "save_strategy": "no",
        "special_tokens": {"pad_token": "<pad>"},
    },
    "torchtune.yaml": {
        "output_dir": "out",
        "tokenizer": {
            "_component_": "torchtune.models.llama3.llama3_tokenizer",
            "path": "bytes.model",
            "special_tokens_path": "special.json",
            "max_seq_len": 512,
        },
        "dataset": {
            "_component_": "torchtune.datasets.alpaca_dataset",
            "source": "json",
            "data_files": "org/alpaca.json",
        },
        "seed": None,
        "shuffle": True,
        "model": {
            "_component_": "torchtune.models.llama3.llama3",
            "vocab_size": 512,
            "num_layers": 2,
            "num_heads": 4,
            "num_kv_heads": 2,
            "embed_dim": 256,
            "intermediate_dim": 512,
            "max_seq_len": 2048,
        },
        "checkpointer": {
            "_component_": "torchtune.training.FullModelHFCheckpointer",
            "checkpoint_dir": "org/model",
            "checkpoint_files": ["model.safetensors"],
            "recipe_checkpoint": None,
            "output_dir": "out",
            "model_type": "LLAMA3",
        },
        "resume_from_checkpoint": False,
        "batch_size": 2,
        "epochs": 1,
        "max_steps_per_epoch": 3,
        "gradient_accumulation_steps": 1,
        "optimizer": {"_component_": "torch.optim.AdamW", "fused": True, "lr": 2e-5},
        "loss": {"_component_": "torchtune.modules.loss.CEWithChunkedOutputLoss"},
        "device": "cuda",
        "dtype": "bf16",
        "enable_activation_checkpointing": False,
        "enable_activation_offloading": False,
        "compile": False,
        "optimizer_in_bwd": False,
        "clip_grad_norm": None,
        "metric_logger": {"_component_": "torchtune.training.metric_logging.DiskLogger", "log_dir": "out"},
        "log_every_n_steps": 1,
        "log_peak_memory_stats": True,
    },
    "nemo_automodel.yaml": {
        "recipe": "TrainFinetuneRecipeForNextTokenPrediction",
        "step_scheduler": {
            "global_batch_size": 4,
            "local_batch_size": 2,
            "max_steps": 3,
            "num_epochs": 1,
            "ckpt_every_steps": 100,
        },
        "dist_env": {"backend": "nccl", "timeout_minutes": 5},
        "model": {
            "_target_": "nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained",
            "pretrained_model_name_or_path": "org/model",
        },
        "checkpoint": {"enabled": False},
        "distributed": {"strategy": "fsdp2"},
        "loss_fn": {"_target_": "nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy"},
        "dataset": {
            "_target_": "nemo_automodel.components.datasets.llm.mock.build_unpacked_dataset",
            "num_sentences": 64,
        },
        "dataloader": {
            "_target_": "torchdata.stateful_dataloader.StatefulDataLoader",
            "collate_fn": "nemo_automodel.components.datasets.utils.default_collater",
        },
        "optimizer": {"_target_": "torch.optim.AdamW", "lr": 1e-5},
    },
}


def bytes_of_torchtune() -> None:
    """Its tokenizer: all bytes, and the special tokens behind them in place of 128,000 and later."""
    from torchtune.models.llama3._tokenizer import SPECIAL_TOKENS

    lines = (f"{base64.b64encode(bytes([byte])).decode()} {byte}\n" for byte in range(256))
    Path("bytes.model").write_text("".join(lines))
    tokens = [{"content": name, "id": 256 + number} for number, name in enumerate(SPECIAL_TOKENS)]
    Path("special.json").write_text(json.dumps({"added_tokens": tokens}))


def main() -> None:
    name = sys.argv[1]
    Path(name).write_text(json.dumps(CONFIGURATIONS[name], indent=2))
    Path("dataset_info.json").write_text(json.dumps({"rows": {"file_name": "org/alpaca.json"}}))  # LLaMA-Factory's
    if name == "torchtune.yaml":
        bytes_of_torchtune()


if __name__ == "__main__":
    main()
