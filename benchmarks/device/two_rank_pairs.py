"""Setups of two ranks with their CUDA calls and without, in turns, as host_pairs.py has them for one. JSON lines of rank 0.

    python benchmarks/device/two_rank_pairs.py OUT.jsonl ROUNDS CORE CORE CORE CORE

The first two cores are rank 0's, the others rank 1's: with the real libraries and under `phantora trace --null`. The
probe's two processes, of one rank each, have turns on rank 0's cores, a part of its rows in each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from host_pairs import NULL, REAL, ROOT, in_turns, probed, second_step, write
from two_ranks import CASES

from phantora.profile import host_probe
from phantora.profile.turns import Turns, new_turns

BOUND_BY_GPU = ("ddp_wide", "fsdp2_wide", "split_wide")
ASKS_OTHERS = ("pipelined",)  # objects that another rank sends, of which `--null` has none
WORKLOADS = [name for name in CASES if name not in BOUND_BY_GPU + ASKS_OTHERS]
RANKS = 2
PROBE = 2  # roles from here on
PORT = 29531


def rank_main(folder: Path, role: int, rounds: int) -> None:
    rank = torch.distributed.get_rank()
    torch.manual_seed(0)
    steps = [(name, CASES[name]()) for name in WORKLOADS]
    turns = Turns(str(folder / f"turn.{rank}"), role, 2 if rank else 4)
    in_turns(str(folder / f"{role}.{rank}.json"), turns, rounds, [partial(second_step, *step) for step in steps])


def probe_main(folder: Path, role: int, rounds: int) -> None:
    rows = host_probe.all_rows()
    parts = [partial(probed, rows[first :: len(WORKLOADS)]) for first in range(len(WORKLOADS))]
    in_turns(str(folder / f"{role}.0.json"), Turns(str(folder / "turn.0"), role, 4), rounds, parts)


def part(folder: Path, role: int, rounds: int, cores: list[int]) -> None:
    rank = int(os.environ["RANK"])
    os.sched_setaffinity(0, cores[2 * rank : 2 * rank + 2])
    if role >= PROBE:
        probe_main(folder, role, rounds)
    else:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
        rank_main(folder, role, rounds)
    dist.destroy_process_group()


def main() -> None:
    if Path(sys.argv[1]).is_dir():
        return part(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), [int(core) for core in sys.argv[4:]])
    out, rounds, *cores = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(RANKS):
            new_turns(Path(folder) / f"turn.{rank}")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), "OMP_NUM_THREADS": "1"}

        def start(role: int, *launcher: str, **variables: str) -> subprocess.Popen[bytes]:
            arguments = [__file__, folder, str(role), rounds, *cores]
            return subprocess.Popen([sys.executable, *launcher, *arguments], env={**environment, **variables})

        def real(role: int, rank: int, ranks: int) -> subprocess.Popen[bytes]:
            where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(PORT + role), "WORLD_SIZE": str(ranks)}
            return start(role, **where, RANK=str(rank), LOCAL_RANK=str(rank))

        def null(role: int, ranks: int) -> subprocess.Popen[bytes]:
            return start(role, "-m", "phantora", "trace", "--null", "-q", "--cluster", f"1x{ranks}xH100")

        started = [null(NULL, RANKS), null(PROBE + NULL, 1), real(PROBE + REAL, 0, 1), *(real(REAL, rank, RANKS) for rank in range(RANKS))]
        statuses = [process.wait() for process in started]  # all have ended
        if any(statuses):
            sys.exit("two_rank_pairs.py: one of the processes failed")
        found = []
        for role in (REAL, NULL):
            ranks, probe = (json.loads((Path(folder) / f"{of + role}.0.json").read_text()) for of in (0, PROBE))
            found.append({**ranks, "times": ranks["times"] | probe["times"]})
    write(out, *found)


if __name__ == "__main__":
    main()
