"""TRL's trainers: lengths of completions, and the time by phase; SFT and DPO."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from phantora.trace.analysis.analyze import analyze
from phantora.trace.reader import open_log
from tests.support.runs import trace

pytest.importorskip("trl")

SCRIPT = """
import copy
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer
words = [f"w{i}" for i in range(200)]
found = Tokenizer(models.WordLevel({w: i for i, w in enumerate(["<pad>", "<eos>", *words])}, unk_token="<pad>"))
found.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=found, pad_token="<pad>", eos_token="<eos>", padding_side="left")
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=202, hidden_size=128, intermediate_size=256, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1, eos_token_id=1, pad_token_id=0, bos_token_id=1))
data = Dataset.from_dict({"prompt": [" ".join(words[8 * i : 8 * i + 8]) for i in range(20)]})
lengths = []
def reward(completion_ids, **_):
    lengths.extend(map(len, completion_ids))
    return [float(len(ids)) for ids in completion_ids]
arguments = GRPOConfig(
    output_dir="out", per_device_train_batch_size=4, num_generations=4, max_completion_length=16, max_steps=2,
    report_to="none", save_strategy="no", gradient_checkpointing=False)
GRPOTrainer(model=model, reward_funcs=reward, args=arguments, train_dataset=data, processing_class=tokenizer).train()
print("lengths", lengths)
common = dict(
    output_dir="out", per_device_train_batch_size=2, max_steps=1, report_to="none", save_strategy="no", use_cpu=False,
    gradient_checkpointing=False)
pairs = Dataset.from_dict({"prompt": ["w1 w2"] * 4, "chosen": ["w3 w4 w5"] * 4, "rejected": ["w6"] * 4})
texts = Dataset.from_dict({"text": ["w1 w2 w3"] * 4})
for trainer, settings, data in ((DPOTrainer, DPOConfig, pairs), (SFTTrainer, SFTConfig, texts)):
    options = {"ref_model": copy.deepcopy(model)} if trainer is DPOTrainer else {}
    arguments = settings(**common)
    made = trainer(model=model, args=arguments, train_dataset=data, processing_class=tokenizer, **options)
    made.train()
    print(trainer.__name__, int(made.state.num_input_tokens_seen), made.state.global_step)
"""


def test_lengths_are_drawn_and_phases_are_found(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    run = trace(tmp_path, "--cluster", "1x1xH100", "--assume", "length=uniform:2:12", "train.py")
    assert run.status == 0, run.err
    printed = re.search(r"lengths (\[.*\])", run.out)
    assert printed is not None
    lengths = ast.literal_eval(printed[1])
    assert len(lengths) == 8 and len(set(lengths)) > 3 and min(lengths) >= 2 and max(lengths) <= 12
    assert {"DPOTrainer", "SFTTrainer"} <= {line.split()[0] for line in run.out.splitlines() if line.endswith(" 1")}
    (role,) = analyze(open_log(run.log)).phases
    share = {row.phase: row.share for row in role.phases}
    assert {"generate", "score", "train"} <= set(share) and min(share["generate"], share["train"]) > 0.05
