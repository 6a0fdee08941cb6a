"""A prediction to be kept before a real run is made: a step's time on hosts of several speeds. Adds a JSON line.

    python -m validation.predict OUT.jsonl --cluster 1x1xH100 [--missing FILE] -- SCRIPT [ARGS]

The script prints its own median step, which counts on the reference host; what it is on others follows from the log's
``host_sensitivity``. `validation/compare/runs.py` reads the line of the host that was measured, between its points.
`--missing` writes what no table knew, for `phantora profile`.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from phantora.hardware import REFERENCE_HOST
from phantora.run_process import PHANTORA
from phantora.trace.analysis.analyze import analyze
from phantora.trace.analysis.hosts import steps_by_host
from phantora.trace.reader import open_log


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--missing", type=Path)
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    args, command = parser.parse_args(words[:cut]), words[cut + 1 :]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "run.arrow"
        run = [*PHANTORA, "trace", "-q", "--cluster", args.cluster, "-o", str(log)]
        run += ["--host", REFERENCE_HOST]
        run += [*(("--missing", str(args.missing)) if args.missing else ()), *command]
        done = subprocess.run(run, capture_output=True, text=True, check=False)
        output = (re.sub(r"^\[rank\d+\]: ", "", line) for line in done.stdout.splitlines())
        lines = [line for line in output if line.startswith("{") and "median_iter_s" in line]
        if done.returncode or not lines:
            sys.exit(f"{' '.join(run)}\n{done.stderr[-1000:]}")
        printed, shown = json.loads(lines[-1]), open_log(log)
        report = analyze(shown, details=False)
        by_host = steps_by_host(shown.trailer, {step.number for step in report.steps if not step.note})
        if not by_host:
            why = shown.trailer.get("host_sensitivity", {}).get("skipped", "host not modelled")
            print(f"only the default host ({why}): fewer iterations would give others", file=sys.stderr)
        times = {factor: ns / report.headline.step_time for factor, ns in by_host.items()}
    median = printed["median_iter_s"]
    row = {
        "run_id": printed["run_id"],
        "cluster": args.cluster,
        "command": command,
        "phantora": shown.metadata.phantora,
        "median_iter_s": median,
        "iter_times": printed["iter_times"],
        "by_host": {str(factor): median * share for factor, share in sorted({**times, 1.0: 1.0}.items())},
        "error_below": report.headline.error,
        "error_above": report.headline.error_above,
        "max_memory_allocated": printed["max_memory_allocated"],
        "max_memory_reserved": printed["max_memory_reserved"],
    }
    with args.out.open("a") as file:
        print(json.dumps(row), file=file)


if __name__ == "__main__":
    main()
