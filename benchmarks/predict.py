"""Predictions to be kept before a real run is made: a step's time on hosts of several speeds. JSON lines.

    python benchmarks/predict.py OUT.jsonl --gpu H100 --gpu H200 --host 1 --host 1.5 --host 2 -- SCRIPT [ARGS]

The script runs once; its recording is replayed for each GPU and host. A step is what lies between the script's last two
calls of `torch.cuda.synchronize`, as the scripts in benchmarks/device time theirs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from phantora.trace.reader import open_log


def last_step(log: Path) -> float:
    """Seconds."""
    ends = []
    for batch in open_log(str(log)).record_batches(("kind", "rank", "name", "end")):
        columns = (batch.column(name).to_pylist() for name in ("kind", "rank", "name", "end"))
        ends += [
            end for kind, rank, name, end in zip(*columns, strict=True)
            if kind == "sync" and rank == 0 and name == "cudaDeviceSynchronize"
        ]  # fmt: skip
    ends.sort()
    return (ends[-1] - ends[-2]) * 1e-9


def phantora(*words: str) -> None:
    command = [sys.executable, "-m", "phantora", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr[-1000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--gpu", action="append", required=True)
    parser.add_argument("--host", action="append", required=True)
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:cut])
    args.command = words[cut + 1 :]
    with tempfile.TemporaryDirectory() as folder:
        log, again = Path(folder) / "run.arrow", Path(folder) / "again.arrow"
        phantora("trace", "-q", "--no-summary", "--cluster", f"1x1x{args.gpu[0]}", "-o", str(log), *args.command)
        for gpu in args.gpu:
            for host in args.host:
                where = ["--cluster", f"1x1x{gpu}", "--host", host, "-o", str(again), "--force"]
                phantora("replay", "-q", "--no-summary", "--no-recording", *where, str(log))
                row = {"command": args.command, "gpu": gpu, "host": host, "step_s": last_step(again)}
                with args.out.open("a") as file:
                    print(json.dumps(row), file=file)


if __name__ == "__main__":
    main()
