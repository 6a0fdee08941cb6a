"""A Llama of two layers with a tokenizer of bytes, and rows of data, in folders that have the hub's names.

python tiny.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ("<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>")
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
ROWS = 64
QUESTION, ANSWER, WORSE = "How large is a model of two layers?", "It has few parameters. " * 8, "It is large. " * 8


def model(folder: Path) -> None:
    words = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokens = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, []))
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokens, pad_token="<pad>", bos_token="<s>", eos_token="</s>", model_max_length=2048
    )
    tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIAL[3:])})
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=512,
            hidden_size=256,
            intermediate_size=512,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=2048,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        )
    ).save_pretrained(folder)


def rows(path: Path, **columns: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text((json.dumps(columns) + "\n") * ROWS)


def said(role: str, content: str) -> list[dict[str, str]]:
    return [{"role": role, "content": content}]


def main() -> None:
    folder = Path(sys.argv[1])
    model(folder / "model")
    asked = said("user", QUESTION)
    rows(folder / "chat" / "train.jsonl", messages=asked + said("assistant", ANSWER))
    pq.write_table(pa.table({"messages": [asked + said("assistant", ANSWER)] * ROWS}), folder / "chat.parquet")
    rows(folder / "prompts" / "train.jsonl", prompt=asked)
    rows(folder / "alpaca.json", instruction=QUESTION, input="", output=ANSWER)
    rows(
        folder / "pairs" / "train.jsonl",
        prompt=asked,
        chosen=said("assistant", ANSWER),
        rejected=said("assistant", WORSE),
    )


if __name__ == "__main__":
    main()
