"""CPU time and memory of a simulated run, next to the same script under stubs that do nothing (`--null`).

python -m benchmarks.overhead [--ranks 4] [--layers 32] [--steps 10] [--repeat 3]

Prints one line per run and the ratio of the best of each. CPU time is user and system of all
processes; memory is the largest sum of proportional set sizes seen (resources.py).
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.resources import measure, phantora_trace

SAMPLE = Path(__file__).resolve().parents[1] / "samples" / "llama_fsdp2.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=2)
    args = parser.parse_args()
    script = [str(SAMPLE), "--layers", str(args.layers), "--steps", str(args.steps), "--warmup", "0"]
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(args.repeat):
            for name, options in (("null", ["--null"]), ("simulated", [])):
                cost = measure(phantora_trace(*options, "--cluster", f"1x{args.ranks}xH100", *script), directory)
                best[name] = min(best.get(name, cost.cpu), cost.cpu)
                print(f"{name:<10} {cost}", flush=True)
    print(f"simulated / null: {best['simulated'] / best['null']:.2f}")


if __name__ == "__main__":
    main()
