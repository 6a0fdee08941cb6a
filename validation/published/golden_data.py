"""Text of random tokens in Megatron-LM's format, for its scripts that make no data of their own."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

DOCUMENTS, SENTENCES, TOKENS = 2000, 8, 96
"""Documents, sentences of each, and tokens of a sentence."""
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
HUB = "hub"
"""The folder that ``HF_HOME`` names."""


@dataclass(frozen=True)
class Vocabulary:
    """Of a model of Hugging Face, whose tokenizer Megatron-LM loads by name."""

    model: str
    words: int


VOCABULARIES = {
    "BertWordPieceLowerCase": Vocabulary("bert-large-uncased", 30522),
    "BertWordPieceCase": Vocabulary("bert-large-cased", 28996),
}
"""By Megatron-LM's name of the tokenizer."""


def write(folder: Path, tokenizer: str) -> tuple[str, str]:
    """Writes text and vocabulary into `folder`; returns ``--data-path`` and ``--vocab-file``.

    A sentence is a sequence of its own, since Megatron-LM drops documents with longer ones than 512 tokens.
    """
    vocabulary = VOCABULARIES[tokenizer]
    words = _hub(folder / HUB, vocabulary)
    lengths = np.full(DOCUMENTS * SENTENCES, TOKENS, np.int32)
    tokens = np.random.default_rng(0).integers(len(SPECIAL), vocabulary.words, int(lengths.sum()), np.uint16)
    starts = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)[:-1])) * tokens.itemsize
    documents = np.arange(DOCUMENTS + 1, dtype=np.int64) * SENTENCES
    text = folder / "text"
    text.with_suffix(".bin").write_bytes(tokens.tobytes())
    # Magic, version, code of uint16, sequences, entries of the documents (class _IndexWriter of Megatron-Core).
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(lengths), len(documents))
    text.with_suffix(".idx").write_bytes(head + lengths.tobytes() + starts.tobytes() + documents.tobytes())
    return str(text), str(words)


def _hub(folder: Path, vocabulary: Vocabulary) -> Path:
    """Makes a cache of Hugging Face's hub with the model's tokenizer; returns the file of its words."""
    model = folder / f"hub/models--{vocabulary.model}"
    snapshot = model / "snapshots/0"
    snapshot.mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs/main").write_text("0")
    (snapshot / "config.json").write_text(json.dumps({"model_type": "bert", "vocab_size": vocabulary.words}))
    (snapshot / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    names = [*SPECIAL, *(f"w{number}" for number in range(vocabulary.words - len(SPECIAL)))]
    words = snapshot / "vocab.txt"
    words.write_text("\n".join(names) + "\n")
    return words
