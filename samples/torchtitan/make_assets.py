"""Writes what TorchTitan reads in addition to its configuration: a tokenizer of bytes and a random text, under assets/.

python make_assets.py [DIRECTORY]
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from datasets import load_dataset

DOCUMENTS, WORDS = 1500, 300


def byte_names() -> list[str]:
    """The printable character that stands for each byte in a byte-level vocabulary (GPT-2's)."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


def tokenizer() -> dict[str, object]:
    special = [
        {
            "id": 256 + i,
            "content": text,
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for i, text in enumerate(("<|begin_of_text|>", "<|end_of_text|>"))
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    vocabulary = {name: byte for byte, name in enumerate(byte_names())}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [],
        },
    }


def main(directory: Path) -> None:
    (directory / "tokenizer").mkdir(parents=True, exist_ok=True)
    (directory / "text").mkdir(exist_ok=True)
    (directory / "tokenizer/tokenizer.json").write_text(json.dumps(tokenizer()))
    marks = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
    (directory / "tokenizer/tokenizer_config.json").write_text(json.dumps(marks))
    chosen = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    with open(directory / "text/data.json", "w") as file:
        for _ in range(DOCUMENTS):
            words = ("".join(chosen.choices(letters, k=chosen.randint(2, 9))) for _ in range(WORDS))
            file.write(json.dumps({"text": " ".join(words)}) + "\n")
    load_dataset(str(directory / "text"), split="train")  # fills its cache, or the first run's host would do that


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "assets"))
