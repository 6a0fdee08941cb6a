"""Benchmarks of prime-rl's trainers, simulated:
python -m validation.published.prime_rl FILE CLONE ROW|all [--out FOLDER] [--jobs N]

FILE has its rows as JSON lines, CLONE is a git clone of prime-rl; ROW is the number of a line from 0, or words of its
label. Each row runs prime-rl's own trainer of that time with the options of its benchmark, on random weights, several
GPUs folded. FOLDER keeps the trainers, what a row gave (journal.jsonl) and the table (table.md); a row that is known is
not simulated again. The trainers need torchtitan, liger-kernel and the Python halves of flash-attn 2 and 3
(docs/published.md). `--predict` prints the simulated values without the published ones.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from phantora.run_process import PHANTORA
from validation.published import prime_rl_models, row_options

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 3600
COMMITS = {"2026-01": "d8f290ef0358a804f1912bd29ea1b37cc56894b4", "2026-06": "d3765e289dbecd8fe5a228309c0746a210bb1b72"}
"""By month of a row: the commit that brought the benchmarks, and the last of the main branch before the rows of June,
whose own is not in it."""
ADAPTERS = 4
"""That a run with LoRA has place for, in the benchmark."""
GPUS = {"NVIDIA RTX A6000": "RTX-A6000", "NVIDIA H100 80GB HBM3": "H100", "NVIDIA H200": "H200", "NVIDIA B200": "B200"}
Values = dict[str, float]


def named(row: Mapping[str, Any], number: int) -> str:
    """Row `number` in a line of a table."""
    tuned = f"lora{row['lora_rank']}" if row["lora_rank"] else "full"
    model = row["model"].partition("/")[2].removesuffix("-Instruct-2507")
    place = f"{row['gpus']}x{GPUS[row['gpu']]}"
    return f"{number} {model} {row['type']} {tuned} {place} {row['seq'] // 1024}K {row['ac']} FA{row['attention'][-1]}"


def trainer(row: Mapping[str, Any], clone: Path, out: Path) -> Path:
    """prime-rl's files at the commit of a row."""
    commit = COMMITS[row["date"][:7]]
    folder = out / f"prime-rl-{commit[:9]}"
    if not folder.exists():
        packed = subprocess.run(
            ["git", "-C", str(clone), "archive", commit, "src", "packages"], capture_output=True, check=False
        )
        if packed.returncode:  # without packages, in January
            packed = subprocess.run(
                ["git", "-C", str(clone), "archive", commit, "src"], capture_output=True, check=True
            )
        folder.mkdir(parents=True)
        subprocess.run(["tar", "x", "-C", str(folder)], input=packed.stdout, check=True)
    return folder


def options(row: Mapping[str, Any], model: Path, result: Path) -> list[str]:
    """Of the trainer, as prime-rl's benchmark gives them; and without weights."""
    batch = str(row["micro_batches"] * row["gpus"])
    words = ["--model.name", str(model), "--model.seq-len", str(row["seq"]), "--model.attn", row["attention"]]
    words += ["--bench.output-json", str(result), "--model.compile", "--dist-timeout-seconds", "3300"]
    words += ["--model.ac"] if row["ac"] == "Recompute" else ["--model.ac-offloading"]
    if row["lora_rank"] is not None:
        words += ["--model.lora.rank", str(row["lora_rank"]), "--max-concurrent-runs", str(ADAPTERS)]
    for name in ("ep", "cp"):
        words += [f"--model.{name}", str(row[name])] if row[name] > 1 else []
    if row["type"] == "rl":
        words += ["--data.fake.batch-size", batch]
    else:
        words += ["--data.type", "fake", "--data.batch-size", batch, "--data.seq-len", str(row["seq"])]
    return [*words, "--model.debug.random-init", "--output-dir", str(result.parent / "outputs")]


def simulated(row: Mapping[str, Any], clone: Path, out: Path, number: int) -> Values | str:
    """What the trainer writes about its steps behind the first; or why there is nothing."""
    source = trainer(row, clone, out)
    further = sorted(str(path / "src") for path in (source / "packages").glob("*"))
    paths = os.pathsep.join(filter(None, (str(source / "src"), *further, str(ROOT), os.environ.get("PYTHONPATH", ""))))
    environment = {**os.environ, "PYTHONPATH": paths, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    environment |= {"HF_HUB_OFFLINE": "1"}
    script = str(source / f"src/prime_rl/trainer/{row['type']}/train.py")
    log = out / f"row{number}.arrow"
    words = [*PHANTORA, "trace", "--no-daemon", "-o", str(log), "--cluster", f"1x{row['gpus']}x{GPUS[row['gpu']]}"]
    words += ["--fold", f"dp={row['gpus']}:first"] if row["gpus"] > 1 else []
    words += ["--moe-routing", "framework"]  # experts are balanced by the workload
    with tempfile.TemporaryDirectory() as folder:
        model = prime_rl_models.write(Path(folder) / "model", row["model"])
        result = Path(folder) / "result.json"
        command = [*words, "-m", "validation.workloads.prime_rl_script", script, *options(row, model, result)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=folder, env=environment
            )
        except subprocess.TimeoutExpired:
            return f"more than {LIMIT_S} s"
        printed = done.stdout + done.stderr
        (out / f"row{number}.txt").write_text(printed)
        if done.returncode or not result.exists():
            lines = [line for line in printed.splitlines() if line.strip()]
            return next((line for line in lines if line.startswith("FAILED")), lines[-1])[:150]
        found = json.loads(result.read_text())
    return {
        "step_s": found["step_time"]["mean"],
        "tokens_per_s": found["throughput"]["mean"],
        "mfu_pct": found["mfu"]["mean"],
        "memory_gib": found["peak_memory"]["gib"],
    }


class Journal:
    """What each row gave: nothing is simulated twice."""

    def __init__(self, file: Path) -> None:
        self.file = file
        lines = file.read_text().splitlines() if file.exists() else []
        self.known: dict[str, Values | str] = {entry["row"]: entry["values"] for entry in map(json.loads, lines)}

    def fill(self, rows: list[tuple[int, dict[str, Any]]], clone: Path, jobs: int) -> None:
        """Simulates what is missing of `rows`, `jobs` rows at a time."""
        missing = [(number, row) for number, row in rows if named(row, number) not in self.known]
        for _, row in missing:
            trainer(row, clone, self.file.parent)
        with ThreadPoolExecutor(jobs) as pool:
            results = pool.map(lambda each: simulated(each[1], clone, self.file.parent, each[0]), missing)
            for (number, row), found in zip(missing, results, strict=True):
                self.known[named(row, number)] = found
                print(f"{named(row, number)}: {found}", file=sys.stderr, flush=True)
                if not isinstance(found, str):
                    with self.file.open("a") as out:
                        out.write(json.dumps({"row": named(row, number), "values": found}) + "\n")


def predictions(rows: list[tuple[int, dict[str, Any]]], journal: Journal) -> Iterator[str]:
    """Lines of the simulated values alone."""
    yield "| row | step s | tokens/s | MFU % | GiB |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for number, row in rows:
        found = journal.known.get(named(row, number), "not simulated yet")
        if isinstance(found, str):
            yield f"| {named(row, number)} | {found} |"
        else:
            rest = f"{found['tokens_per_s']:,.0f} | {found['mfu_pct']:.1f} | {found['memory_gib']:.1f}"
            yield f"| {named(row, number)} | {found['step_s']:.2f} | {rest} |"


def table(rows: list[tuple[int, dict[str, Any]]], journal: Journal) -> Iterator[str]:
    """Lines of the results and of their errors, and of what does not run."""
    yield "| row | step s published | simulated | error | tokens/s | simulated | MFU % | simulated | GiB | simulated |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    errors: list[float] = []
    for number, row in rows:
        found = journal.known.get(named(row, number), "not simulated yet")
        if isinstance(found, str):
            yield f"| {named(row, number)} | {found} |"
            continue
        errors.append(found["step_s"] / row["step_time_s"] - 1.0)
        yield (
            f"| {named(row, number)} | {row['step_time_s']:.2f} | {found['step_s']:.2f} | {errors[-1]:+.1%} "
            f"| {row['tokens_per_s']:,.0f} | {found['tokens_per_s']:,.0f} | {row['mfu_pct']:.1f} "
            f"| {found['mfu_pct']:.1f} | {row['peak_memory_gib']:.1f} | {found['memory_gib']:.1f} |"
        )
    if errors:
        widths = list(map(abs, errors))
        close = sum(width <= 0.12 for width in widths)
        yield (
            f"\n{len(errors)} rows: step: median error {statistics.median(widths):.1%}, mean "
            f"{statistics.mean(errors):+.1%}, {close} within 12 %"
        )


def main() -> None:
    parser = row_options.parser(__file__, __doc__, "clone", "git clone of prime-rl")
    parser.add_argument("--known", action="store_true", help="simulate nothing: only what FOLDER has")
    parser.add_argument("--predict", action="store_true", help="print no published value")
    args = parser.parse_args()
    rows = row_options.chosen(args.file, args.rows, named)
    if not rows:
        parser.error(f"no row has all of: {' '.join(args.rows)}")
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    journal = Journal(out / "journal.jsonl")
    if not args.known:
        journal.fill(rows, args.clone.resolve(), args.jobs)
    lines = list((predictions if args.predict else table)(rows, journal))
    print(*lines, sep="\n")
    if not args.predict:
        (out / "table.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
