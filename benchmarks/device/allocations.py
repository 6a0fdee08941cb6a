"""What a training script asks of torch's allocator, event by event, on a real or a simulated GPU.

    torchrun --nproc-per-node 4 benchmarks/device/allocations.py OUT.jsonl.gz SCRIPT [ARGS ...]

Every rank writes OUT.RANK.jsonl.gz: a line per allocation, free, cudaMalloc and cudaFree, in their order, as
[what, bytes, stream, block], where blocks are numbered in the order in which their addresses first appear. A free is
listed when it is asked for and when the allocator may use the block again, which is later for tensors that another stream used.
"""

from __future__ import annotations

import gzip
import json
import os
import runpy
import sys
from pathlib import Path

import torch

EVENTS = 4_000_000  # kept


def write(path: Path) -> None:
    traces = torch.cuda.memory._snapshot()["device_traces"]
    trace = max(traces, key=len)  # this rank's device
    blocks: dict[int, int] = {}
    with gzip.open(path, "wt") as out:
        for event in trace:
            block = blocks.setdefault(event["addr"], len(blocks)) if "addr" in event else -1
            print(json.dumps([event["action"], event.get("size", 0), event.get("stream", 0), block]), file=out)


def main() -> None:
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    out, script = Path(sys.argv[1]), sys.argv[2]
    sys.argv = sys.argv[2:]
    sys.path[0] = str(Path(script).parent)
    torch.cuda.memory._record_memory_history("all", context=None, max_entries=EVENTS)
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        rank = os.environ.get("RANK", "0")
        write(out.with_name(out.name.removesuffix(".jsonl.gz") + f".{rank}.jsonl.gz"))


if __name__ == "__main__":
    main()
