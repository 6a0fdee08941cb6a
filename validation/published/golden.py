"""Golden values of Megatron-LM's functional tests, simulated:
python -m validation.published.golden FILE CHECKOUT ROW|all [--out FOLDER] [--jobs N]

FILE has tests as JSON lines, CHECKOUT is Megatron-LM at their commit; ROW is the number of a line from 0, or words of
its label. Each row runs Megatron-LM's own script with the arguments of the test, on random tokens and without
checkpoints, all ranks as processes. It prints bytes of memory and seconds of an iteration, as recorded and as
simulated, or the reason why it does not run. Rows with Transformer Engine need it (docs/frameworks/megatron.md).
FOLDER keeps what a row gave (journal.jsonl) and the table (table.md); a row that is known is not simulated again.

`--host HOST` simulates with that host, and with the passes over the weights that only time depends on. Iterations
of these models are host-bound, so their times tell the factor of a host (phantora/hardware/data/hosts).
"""

from __future__ import annotations

import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from phantora.run_process import PHANTORA
from validation.published import golden_data, row_options

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 1800
ITERATIONS = 3
"""Of a run; memory has its largest value in the second one, when the optimizer has its states."""
MEMORY = ("mem-max-allocated-bytes", "mem-allocated-bytes")
DROPPED = (
    "--save",
    "--load",
    "--data-path",
    "--vocab-file",
    "--merge-file",
    "--tensorboard-dir",
    "--data-cache-path",
    "--async-",
    "--no-ckpt-",
    "--dist-ckpt-",
    "--use-checkpoint",
    "--use-persistent-ckpt",
    "--auto-detect-ckpt",
    "--verify-integrity",
    "--no-mmap-bin-files",
    "--train-iters",
    "--train-samples",
    "--exit-",
    "--eval-",
    "--finetune",
    "--tokenizer-",
    "--tiktoken-",
    "--no-load-",
    "--override-opt",
    "--mock-data",
    "--vocab-size",
    "--rerun-mode",
    "--no-use-tokenizer",
    "--check-weight-hash",
    "--dataloader-type",
    "--num-workers",
    "--start_step",
    "--log-progress",
    "--log-validation",
)
"""Options about data and checkpoints, which no memory peak depends on."""
PASSES = ("--log-params-norm", "--log-num-zeros")
"""Options of further passes over the weights: no memory peak depends on them, but the time of an iteration."""
SCRIPTS = ("pretrain_gpt.py", "pretrain_hybrid.py", "pretrain_vlm.py")
"""Which make random data."""
TEXT = {"examples/bert/pretrain_bert.py": "BertWordPieceLowerCase", "examples/t5/pretrain_t5.py": "BertWordPieceCase"}
"""Which read text, and the tokenizer of each."""
VOCABULARY = 50257
"""Tokens of GPT-2, which tests without a tokenizer of their own have."""
MOCK = {"--mock-data": "", "--tokenizer-type": "NullTokenizer"}
HERE = {"--train-iters": str(ITERATIONS), "--eval-iters": "0", "--eval-interval": "1000", "--tensorboard-dir": "none"}
Values = dict[str, float]


def named(row: Mapping[str, Any], number: int) -> str:
    """Row `number` in a line of a table."""
    return f"{number} {row['test']} {row['platform']}"


def refused(row: Mapping[str, Any]) -> str:
    """Why a row does not run; empty if it does."""
    if row["script"] not in SCRIPTS and row["script"] not in TEXT:
        return f"{row['script']}: it has no random data"
    if "mem_max_allocated_bytes" not in row or row["mem_max_allocated_bytes"] is None:
        return "no memory recorded"
    return ""


def command(row: Mapping[str, Any], checkout: Path, folder: Path, host: str = "") -> list[str]:
    """Of `phantora trace`. A script that reads text finds it in `folder`."""
    dropped = DROPPED if host else (*DROPPED, *PASSES)
    given = {name: value for name, value in row["args"].items() if not name.startswith(dropped)}
    if "--tp-comm-overlap" in given:  # Megatron-LM refuses both, at the commit of the tests too
        given.pop("--deterministic-mode", None)
    given |= HERE | {"--log-memory-to-tensorboard": ""}
    if tokenizer := TEXT.get(row["script"]):
        text, words = golden_data.write(folder, tokenizer)
        given |= {"--data-path": text, "--vocab-file": words, "--tokenizer-type": tokenizer, "--split": "949,50,1"}
    else:
        given |= MOCK | {"--vocab-size": row["args"].get("--vocab-size", str(VOCABULARY))}
    words_given = [word for name, value in given.items() for word in (name, *_values(value, checkout))]
    cluster = f"{row['hosts']}x{row['gpus_per_host']}x{row['gpu']}"
    if row["gpu"] == "A100":
        cluster += "-SXM-80GB"
    script = str(checkout / row["script"])
    hosts = ["--host", host] if host else []
    return [
        "--cluster",
        cluster,
        *hosts,
        "--fold",
        "off",
        "-m",
        "validation.workloads.megatron_script",
        script,
        *words_given,
    ]


def _values(value: str, checkout: Path) -> list[str]:
    """Words of an option's value; none of a switch. Brackets hold a list, and REPEAT is the number of a run."""
    if value.startswith("tests/"):
        return [str(checkout / value)]
    if value in ("true", ""):
        return []
    if value.startswith("[") and value.endswith("]"):
        return value[1:-1].replace(",", " ").split()
    return shlex.split(value.replace("${REPEAT}", "1"))


class Journal:
    """What each row gave: nothing is simulated twice."""

    def __init__(self, file: Path, host: str = "") -> None:
        self.file, self.host = file, host
        lines = file.read_text().splitlines() if file.exists() else []
        self.known: dict[str, Values | str] = {entry["row"]: entry["values"] for entry in map(json.loads, lines)}

    def fill(self, rows: list[tuple[int, dict[str, Any]]], checkout: Path, jobs: int) -> None:
        """Simulates what is missing of `rows`, `jobs` rows at a time."""
        missing = [(self.key(row), row) for _, row in rows if not refused(row) and self.key(row) not in self.known]
        with ThreadPoolExecutor(jobs) as pool:
            printed = self.file.parent
            pending = {pool.submit(simulated, row, checkout, printed, self.host): key for key, row in missing}
            for done in as_completed(pending):
                self.known[pending[done]] = found = done.result()
                print(f"{pending[done]}: {found}", file=sys.stderr, flush=True)
                if not isinstance(found, str):
                    with self.file.open("a") as out:
                        out.write(json.dumps({"row": pending[done], "values": found}) + "\n")

    def key(self, row: Mapping[str, Any]) -> str:
        """Of a row with the journal's host."""
        return " ".join(filter(None, (_key(row), self.host)))


def _key(row: Mapping[str, Any]) -> str:
    return f"{row['test']} {row['platform']}"


def simulated(row: Mapping[str, Any], checkout: Path, printed: Path, host: str = "") -> Values | str:
    """Scalars of the last iteration, or why there are none; then the folder `printed` has what the run printed."""
    paths = (str(checkout), str(ROOT), os.environ.get("PYTHONPATH", ""))
    environment = {**os.environ, **row["env"], "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with tempfile.TemporaryDirectory() as folder:
        environment |= {"HF_HOME": f"{folder}/{golden_data.HUB}", "HF_HUB_OFFLINE": "1"}
        words = [
            *PHANTORA,
            "trace",
            "--no-summary",
            "-o",
            f"{folder}/run.arrow",
            *command(row, checkout, Path(folder), host),
        ]
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=folder, env=environment
            )
        except subprocess.TimeoutExpired:
            return f"more than {LIMIT_S} s"
    lines = (done.stdout + done.stderr).splitlines()
    found: Values = {}
    for line in lines:
        _, at, rest = line.partition('{"scalar"')
        if at:
            entry = json.loads(at + rest)
            found[entry["scalar"]] = entry["value"]
    if done.returncode or not found:
        (printed / f"{_key(row).replace('/', '-')}.txt").write_text("\n".join(lines))
        last = next((line for line in reversed(lines) if line.strip()), "no output")
        return next((line for line in lines if line.startswith("FAILED")), last)[:150]
    return found


def table(rows: list[tuple[int, dict[str, Any]]], journal: Journal) -> Iterator[str]:
    """Lines of the results, of their errors, and of what does not run."""
    yield "| test | most bytes recorded | simulated | error | bytes behind a step: error | s recorded | simulated |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    errors: list[float] = []
    reasons: Counter[str] = Counter()
    for number, row in rows:
        found = refused(row) or journal.known.get(journal.key(row), "not simulated yet")
        if isinstance(found, str):
            reasons[found] += 1
            yield f"| {named(row, number)} | {found} |"
            continue
        recorded = [row["mem_max_allocated_bytes"], row["mem_allocated_bytes"]]
        off = [found[name] / value - 1.0 for name, value in zip(MEMORY, recorded, strict=True)]
        errors.append(abs(off[0]))
        yield (
            f"| {named(row, number)} | {recorded[0]:,.0f} | {found[MEMORY[0]]:,.0f} | {off[0]:+.2%} | {off[1]:+.2%} "
            f"| {row.get('iteration_s') or 0:.3f} | {found['iteration-time']:.3f} |"
        )
    if errors:
        close = sum(error <= 0.005 for error in errors)
        yield f"\n{len(errors)} rows: median error {statistics.median(errors):.2%}, {close} within 0.5 %"
    yield from (f"- left out, {count}: {reason}" for reason, count in reasons.most_common())


def main() -> None:
    parser = row_options.parser(__file__, __doc__, "checkout", "folder of Megatron-LM")
    parser.add_argument("--known", action="store_true", help="simulate nothing: only what FOLDER has")
    parser.add_argument("--host", default="", help="of the simulated ranks; by default that of the GPU")
    args = parser.parse_args()
    for needed in (args.file, args.checkout / SCRIPTS[0]):
        if not needed.is_file():
            parser.error(f"no such file: {needed}")
    rows = row_options.chosen(args.file, args.rows, named)
    if not rows:
        parser.error(f"no row has all of: {' '.join(args.rows)}")
    args.out.mkdir(parents=True, exist_ok=True)
    journal = Journal(args.out / "journal.jsonl", args.host)
    if not args.known:
        journal.fill(rows, args.checkout.resolve(), args.jobs)
    lines = list(table(rows, journal))
    print(*lines, sep="\n")
    (args.out / "table.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
