"""Weights for ``from_pretrained`` where only a model's config.json is: a model.safetensors of zeros without disk space.

    python samples/huggingface/empty_weights.py meta-llama/Llama-3.1-8B

A simulated run reads large weights as zeros anyway. The file is sparse: its size is that of the model, and the disk
keeps its header only.
"""

from __future__ import annotations

import argparse
import json
import struct
from pathlib import Path

import torch
import transformers

NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64", torch.bool: "BOOL"}


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """What a checkpoint of the model has, on the meta device: tied weights once."""
    config = transformers.AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = getattr(transformers, config.architectures[0])(config).to(config.dtype or torch.float32)
    every, once = (dict(model.named_parameters(remove_duplicate=remove)) for remove in (False, True))
    return {name: t for name, t in model.state_dict().items() if name in once or name not in every}


def write(found: dict[str, torch.Tensor], path: Path) -> None:
    """In the safetensors format: the header's length, the header as JSON, then the bytes of all tensors."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, tensor in found.items():
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(file.tell() + end)


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes model.safetensors next to a model's config.json.")
    parser.add_argument("folder", type=Path, help="with config.json; scripts find it by this relative path, too")
    path = parser.parse_args().folder / "model.safetensors"
    if path.exists():
        parser.error(f"{path} exists")
    write(tensors(path.parent), path)
    size = path.stat()
    print(f"{path}: {size.st_size / 2**30:.2f} GiB of zeros, {size.st_blocks / 2:.0f} KiB on disk")


if __name__ == "__main__":
    main()
