"""CPU time of the thread that saves a distributed checkpoint in the background, on ranks without a GPU.

    for ranks in 1 2 4; do torchrun --nproc-per-node $ranks -m validation.probes.background_saves FOLDER >> saves.jsonl; done

FSDP2's parameters of a small transformer, and AdamW's states, as DTensors. Each row has the time of a call of
``phantora.python_probe.python`` of its process just before, by which hosts are compared, and the saves during which
Python collected garbage are marked: a full collection takes about 0.15 s of the thread.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint import filesystem, state_dict_saver
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from phantora import python_probe

WIDTH, HEADS, WORDS, SAVES, PROBES = 64, 4, 1000, 6, 400


def timed(owner: Any, name: str, spent: dict[str, float]) -> None:
    """Adds the CPU time of calls of ``owner.name`` to `spent`, in ms."""
    call = getattr(owner, name)

    def inner(*args: Any, **kwargs: Any) -> Any:
        before = time.thread_time_ns()
        try:
            return call(*args, **kwargs)
        finally:
            spent[name] = spent.get(name, 0.0) + (time.thread_time_ns() - before) / 1e6

    setattr(owner, name, inner)


def probe_us() -> float:
    """Of a warm call."""
    for _ in range(5):
        python_probe.python()
    before = time.thread_time_ns()
    for _ in range(PROBES):
        python_probe.python()
    return (time.thread_time_ns() - before) / PROBES / 1e3


def main() -> None:
    folder, layers = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 12
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parts = [nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, batch_first=True) for _ in range(layers)]
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH), *parts, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS))
    for part in parts:
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    tensors = 4 * len(list(model.parameters()))  # with two moments and a number of steps each
    spent: dict[str, float] = {}
    collected: list[int] = []
    gc.callbacks.append(lambda phase, info: collected.append(info["generation"]) if phase == "start" else None)
    timed(state_dict_saver, "_save_state_dict", spent)
    timed(filesystem._FileSystemWriter, "write_data", spent)
    for number in range(SAVES):
        model(torch.zeros(2, 16, dtype=torch.long)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        values, states = get_state_dict(model, optimizer)
        probe = probe_us()
        spent.clear()
        collected.clear()
        saved = dcp.async_save({"model": values, "states": states}, checkpoint_id=f"{folder}/{number % 2}")
        saved.result()  # type: ignore[union-attr]
        if number:  # the first imports
            row = {"ranks": dist.get_world_size(), "rank": dist.get_rank(), "probe_us": round(probe, 2)}
            row["tensors"] = tensors
            row |= {"thread_ms": round(spent["_save_state_dict"], 1), "write_ms": round(spent["write_data"], 1)}
            print(json.dumps(row | {"full_collections": collected.count(2)}), flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
