"""What the rows of the host's probe are charged in the simulator, for validation/fits/host.py. JSON lines.

phantora trace -m validation.probes.host_probe_charges OUT.jsonl 1
"""

from __future__ import annotations

import functools
import json
import os
import sys

import torch

from phantora.profile import host_probe
from validation.charges import SIMULATED, counts, since

MOST = 20  # calls of a row; the simulator's times do not scatter


def measure(out: str, rows: list[host_probe.Row], rounds: int, turns: None) -> host_probe.Times:
    assert SIMULATED, "only under phantora trace"
    with open(out, "w", encoding="utf-8") as file:
        for turn in range(3):
            for row in rows:
                for _ in range(host_probe.WARM):
                    row.call()
                torch.cuda.synchronize()
                before = counts()
                calls = min(row.count, MOST)
                for _ in range(calls):
                    row.call()
                spent = since(before)
                if turn == 2:
                    reported = {"name": row.name, "kind": row.kind, "calls": calls, **spent}
                    print(json.dumps(reported), file=file)
    return {row.name: ([0.0], [0.0]) for row in rows}


def main() -> None:
    host_probe.measure = functools.partial(measure, sys.argv[1])
    sys.argv[1] = os.devnull  # its own rows have no times here
    host_probe.main()


if __name__ == "__main__":
    main()
