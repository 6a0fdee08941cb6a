"""Trains a Llama with the Trainer of transformers on random tokens; FSDP, DeepSpeed or DDP by a flag.

torchrun --nproc-per-node 4 samples/huggingface/trainer.py --deepspeed samples/huggingface/zero3.json
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed


class RandomTokens(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, count: int, vocab: int, seq: int) -> None:
        self.tokens = torch.randint(0, vocab, (count, seq), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--deepspeed", help="DeepSpeed's JSON file; DistributedDataParallel without")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--workers", type=int, default=0, help="processes that load data")
    parser.add_argument("--fp16", action="store_true", help="fp16 and a loss scaler in place of bf16")
    parser.add_argument("--checkpointing", action="store_true", help="recompute every layer in the backward pass")
    args = parser.parse_args()

    set_seed(1234)
    # The shape of Llama 3.2 1B.
    config = LlamaConfig(
        vocab_size=128256,
        hidden_size=args.hidden,
        intermediate_size=4 * args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=args.hidden // 64,
        num_key_value_heads=args.hidden // 256,
        tie_word_embeddings=True,
        use_cache=False,
    )
    with tempfile.TemporaryDirectory() as output:
        settings = TrainingArguments(
            output,
            max_steps=args.steps,
            per_device_train_batch_size=args.batch,
            logging_steps=1,
            report_to="none",
            gradient_accumulation_steps=args.accumulate,
            bf16=not args.fp16,
            fp16=args.fp16,
            save_strategy="no",
            gradient_checkpointing=args.checkpointing,
            deepspeed=args.deepspeed,
            include_num_input_tokens_seen="all",
            dataloader_num_workers=args.workers,
            disable_tqdm=True,
        )
        model = LlamaForCausalLM(config)
        count = args.steps * args.batch * args.accumulate * settings.world_size
        Trainer(model, settings, train_dataset=RandomTokens(count, config.vocab_size, args.seq)).train()


if __name__ == "__main__":
    main()
