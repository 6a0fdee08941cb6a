"""Prints predicted and real values of `run.py`'s rows, and the median and largest error by case.

python validation/one_host/compare.py simulated.jsonl real.jsonl
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

Key = tuple[object, ...]
LEAST_BYTES = 4 << 20
"""Least size of a collective that counts in the errors: smaller ones are latency."""


def values(path: Path) -> dict[Key, float]:
    """Each value of a file by case, operation, size and what it is; repeated rows keep the last one."""
    found: dict[Key, float] = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        case, gpus = row["case"], row["gpus"]
        if row.get("name") == "collective":
            found[case, gpus, row["op"], row["bytes"], "us"] = row["us"]
        elif row.get("name") == "communicator":
            found[case, gpus, "communicator", row["ranks"], "bytes"] = row["bytes"]
        else:
            for key in ("median_step_s", "max_memory_allocated"):
                if key in row:
                    found[case, gpus, "", 0, key] = row[key]
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("simulated", type=Path)
    parser.add_argument("real", type=Path)
    args = parser.parse_args()
    simulated, real = values(args.simulated), values(args.real)
    errors: dict[Key, list[float]] = {}
    for key in sorted(simulated.keys() & real.keys(), key=str):
        if not real[key]:
            continue
        error = simulated[key] / real[key] - 1
        case, gpus, op, size, what = key
        print(f"{case:14} {gpus} {op:16} {size:>11} {what:22} {simulated[key]:14.6g} {real[key]:14.6g} {error:+7.1%}")
        if what != "us" or int(str(size)) >= LEAST_BYTES:
            errors.setdefault((case, what, op if case == "collectives" else ""), []).append(abs(error))
    print("\nabsolute errors, collectives from 4 MiB on")
    for group, found in errors.items():
        print(f"{' '.join(map(str, group)):44} median {statistics.median(found):6.1%}  most {max(found):6.1%}")
    for name, files in (("simulated", simulated.keys() - real.keys()), ("real", real.keys() - simulated.keys())):
        if files:
            print(f"{len(files)} rows are in the {name} file only")


if __name__ == "__main__":
    main()
