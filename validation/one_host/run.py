"""Runs every program of this folder, on the GPUs of this machine or simulated, and keeps their JSON lines.

python validation/one_host/run.py --gpus 8 --out real.jsonl
python validation/one_host/run.py --gpus 8 --simulate H100 --out simulated.jsonl
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
SAMPLES = HERE.parents[1] / "samples"


@dataclass(frozen=True)
class Case:
    """A program and its arguments."""

    name: str
    script: Path
    arguments: tuple[str, ...] = ()


EIGHT_B = ("--layers", "32", "--kv-heads", "8", "--ffn", "14336", "--vocab", "128256")
CASES = (
    Case("collectives", HERE / "collectives.py"),
    Case("fsdp2_batch1", SAMPLES / "llama_fsdp2.py", (*EIGHT_B, "--batch", "1")),
    Case("fsdp2_batch2", SAMPLES / "llama_fsdp2.py", (*EIGHT_B, "--batch", "2", "--ac", "full")),
    Case("hsdp", SAMPLES / "llama_fsdp2.py", ("--layers", "16", "--replicate", "2")),
    Case("ddp", SAMPLES / "llama_ddp.py"),
    Case("tp", SAMPLES / "llama_tp.py", ("--sp", "--batch", "4")),
    Case("pp", SAMPLES / "llama_pp.py", ("--batch", "16", "--microbatches", "16")),
    Case("two_dim", HERE / "two_dim.py"),
    Case("experts", HERE / "experts.py"),
    Case("zero3", SAMPLES / "deepspeed" / "decoder.py"),
)


def command(case: Case, gpus: int, simulate: str | None, out: Path) -> list[str]:
    """The command line of a case."""
    arguments = list(case.arguments)
    if case.name == "experts" and not simulate:
        arguments += ["--trace", str(out.with_suffix(".experts.json.gz"))]
    if simulate:
        from phantora.run_process import PHANTORA  # real runs need no phantora on the machine

        log = str(out.with_suffix(f".{case.name}.arrow"))
        launcher = [*PHANTORA, "trace", "--cluster", f"1x{gpus}x{simulate}", "-o", log]
    else:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(gpus)]
    return [*launcher, str(case.script), *arguments]


def rows_of(text: str) -> list[dict[str, object]]:
    """The JSON objects that stand on lines of their own, after a rank's prefix if there is one."""
    found = []
    for line in text.splitlines():
        if (start := line.find("{")) >= 0 and line.rstrip().endswith("}"):
            try:
                found.append(json.loads(line[start:]))
            except ValueError:
                continue
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, required=True)
    parser.add_argument("--simulate", metavar="GPU", help="simulate this GPU in place of a real run")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", help="names of cases")
    parser.add_argument("--seconds", type=float, default=540, help="start no case after SECONDS")
    args = parser.parse_args()
    begin = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SAMPLES), os.environ.get("PYTHONPATH", "")])}
    with args.out.open("w") as out:
        for case in CASES:
            if args.only and case.name not in args.only:
                continue
            if time.monotonic() - begin > args.seconds:
                print(f"{case.name}: not run, the time is over", file=sys.stderr)
                continue
            line = command(case, args.gpus, args.simulate, args.out)
            started = time.monotonic()
            done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
            print(f"{case.name}: {time.monotonic() - started:.0f} s, status {done.returncode}", file=sys.stderr)
            if done.returncode:
                print(done.stderr[-2000:], file=sys.stderr)
            for row in rows_of(done.stdout):
                out.write(json.dumps({"case": case.name, "gpus": args.gpus, **row}) + "\n")
            out.flush()


if __name__ == "__main__":
    main()
