"""The study of 8 H200 and 8 B200 with DeepSpeed, simulated:
python -m validation.published.upgrade FILE SCRIPTS ROW|all [--out FOLDER] [--jobs N]

FILE has its rows as JSON lines, SCRIPTS is the folder of its scripts (stas00/ml-engineering, insights); ROW is the
number of a line from 0, or words of its label. Each row runs its script, folded to one rank, with zeros as weights
and cuDNN's attention in place of FlashAttention. It prints seconds of a step and reserved memory, as published and as
simulated, or the reason why it does not run. Rows with fused kernels need liger-kernel. FOLDER keeps what a row gave
(journal.jsonl).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from phantora.run_process import PHANTORA
from validation.published import row_options

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 1800
MODEL = "meta-llama/Llama-3.1-8B"
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 262144,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
"""Of the model; longer positions than its own, which no kernel depends on."""
THREADS = "16"
"""OMP_NUM_THREADS of a rank. DeepSpeed's launcher sets none; these are what the host model then has."""
STEP = re.compile(
    r'"exec_time_ms": "([0-9.]+)".*"peak_mem_gib": "([0-9.]+)"|wall step=([0-9.]+) ms +peak_mem=([0-9.]+)'
)
Found = tuple[float, float]
"""Seconds of a step and GiB of reserved memory."""


def named(row: Mapping[str, Any], number: int) -> str:
    """Row `number` in a line of a table."""
    return f"{number} {row['gpu']} ZeRO-{row['zero']} {row['seq'] // 1024}K torch {row['software']['torch']}"


def simulated(row: Mapping[str, Any], scripts: Path, weights: Path) -> Found | str:
    """The last step, or why there is none."""
    switches = {"OFFLOAD_OPTIMIZER": row["offload_optimizer"], "GRAD_CHECKPOINT": row["activation_checkpointing"]}
    switches["USE_LIGER"] = row["liger"]
    sizes = {"SEQ_LEN": row["seq"], "ZERO_STAGE": row["zero"], "STEPS": 2, "WARMUP_STEPS": 1, "TIME_STEPS": 2}
    numbers = sizes | {"PROFILE_STEPS": 1} | {name: int(bool(value)) for name, value in switches.items()}
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    given = {**os.environ, **{name: str(value) for name, value in numbers.items()}, "PYTHONPATH": paths}
    given["OMP_NUM_THREADS"] = THREADS
    with tempfile.TemporaryDirectory() as folder:
        words = ["--cluster", f"1x8x{row['gpu']}", "--fold", "dp=8:first", "-m", "validation.workloads.upgrade_script"]
        command = [
            *PHANTORA,
            "trace",
            "--no-summary",
            "-o",
            f"{folder}/run.arrow",
            *words,
            str(scripts / row["script"]),
        ]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
                cwd=folder,
                env=given | {"DATA_FAST": str(weights)},
            )
        except subprocess.TimeoutExpired:
            return f"more than {LIMIT_S} s"
    found = STEP.findall(done.stdout + done.stderr)
    if not found:  # one script prints the step, then fails where no kernel has "flash" in its name
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        return next((line for line in lines if line.startswith("FAILED")), lines[-1])[:150]
    milliseconds, memory = (text for text in found[-1] if text)
    return float(milliseconds) / 1e3, float(memory)


def write_weights(folder: Path) -> None:
    """The model's configuration and a sparse file of zeros."""
    model = folder / MODEL
    model.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_text(json.dumps(CONFIG))
    if not (model / "model.safetensors").exists():
        maker = ROOT / "samples/huggingface/empty_weights.py"
        subprocess.run([sys.executable, str(maker), str(model)], check=True, capture_output=True)


def table(rows: list[tuple[int, dict[str, Any]]], known: Mapping[str, Found | str]) -> Iterator[str]:
    """Lines of the results."""
    yield "| row | published s | simulated s | error | published GiB | simulated GiB |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for number, row in rows:
        found = known.get(named(row, number), "not simulated yet")
        if isinstance(found, str):
            yield f"| {named(row, number)} | {found} |"
            continue
        seconds, memory = found
        published = row["step_time_s"]
        yield (
            f"| {named(row, number)} | {published:.3f} | {seconds:.3f} | {seconds / published - 1.0:+.1%} "
            f"| {row.get('max_memory_reserved_gib') or '-'} | {memory:.1f} |"
        )


def main() -> None:
    parser = row_options.parser(__file__, __doc__, "scripts", "folder of the study's scripts")
    args = parser.parse_args()
    rows = row_options.chosen(args.file, args.rows, named)
    missing = [str(args.scripts / row["script"]) for _, row in rows if not (args.scripts / row["script"]).is_file()]
    if not rows or missing:
        parser.error(f"no such script: {missing[0]}" if missing else f"no row has all of: {' '.join(args.rows)}")
    args.out.mkdir(parents=True, exist_ok=True)
    journal = args.out / "journal.jsonl"
    lines = journal.read_text().splitlines() if journal.exists() else []
    known: dict[str, Found | str] = {entry["row"]: tuple(entry["found"]) for entry in map(json.loads, lines)}
    write_weights(args.out)
    wanted = [(n, row) for n, row in rows if named(row, n) not in known]
    with ThreadPoolExecutor(args.jobs) as pool:
        results = pool.map(lambda each: simulated(each[1], args.scripts.resolve(), args.out.resolve()), wanted)
        for (number, row), found in zip(wanted, results, strict=True):
            known[named(row, number)] = found
            if not isinstance(found, str):
                with journal.open("a") as out:
                    out.write(json.dumps({"row": named(row, number), "found": found}) + "\n")
    print(*table(rows, known), sep="\n")


if __name__ == "__main__":
    main()
