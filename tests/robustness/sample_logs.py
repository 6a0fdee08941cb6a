"""Do the samples' logs stay the same, bit for bit, through a change that should not change them?

    python -m tests.robustness.sample_logs run BEFORE              # in the tree as it was
    python -m tests.robustness.sample_logs run AFTER               # in the changed one
    python -m tests.robustness.sample_logs compare BEFORE AFTER    # exit status 1 if any row differs

`--only ddp,tp` runs some of the samples. All rows and columns are compared. The metadata are not: they name the command
and the time. Both trees need the same torch and frameworks.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pyarrow as pa

from phantora.run_process import PHANTORA

SAMPLES = Path(__file__).resolve().parents[2] / "samples"
RUNS = {
    "fsdp2": ("1x4xH100", "llama_fsdp2.py", "--layers", "4", "--steps", "3"),
    "fsdp2_hosts": ("2x2xH200", "llama_fsdp2.py", "--layers", "2", "--steps", "2"),
    "ddp": ("1x2xH200", "llama_ddp.py", "--layers", "2", "--steps", "3"),
    "pp": ("1x4xH100", "llama_pp.py"),
    "tp": ("1x2xH100", "llama_tp.py"),
    "single": ("1x1xA100-80GB", "llama_single.py"),
    "resnet": ("1x2xH100", "resnet_ddp.py"),
    "hf": ("1x2xH100", "huggingface/trainer.py"),
    "lightning": ("1x2xH100", "lightning/gpt.py"),
    "megatron": ("1x2xH100", "megatron/pretrain_gpt.py", "--num-layers", "2"),
    "gat": ("1x1xH100", "deepspeed/gat.py"),
    "unet": ("1x1xH100", "deepspeed/unet.py"),
}


def run(folder: Path, names: list[str]) -> int:
    """Runs the samples into `folder`; the number of those that failed."""
    folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in names:
        cluster, script, *arguments = RUNS[name]
        log = str((folder / f"{name}.arrow").resolve())
        command = [*PHANTORA, "trace", "--no-summary", "--force", "--cluster", cluster, "-o", log]
        done = subprocess.run(
            [*command, str(SAMPLES / script), *arguments],
            cwd=SAMPLES.parent,
            capture_output=True,
            text=True,
            check=False,
        )
        failed += done.returncode != 0
        print(f"{name:12} {'ran' if done.returncode == 0 else 'failed: ' + done.stderr[-300:]}", flush=True)
    return failed


def rows(path: Path) -> pa.Table:
    """All rows of a log, texts as texts."""
    table = pa.ipc.open_file(path).read_all()
    for i, column in enumerate(table.schema):
        if pa.types.is_dictionary(column.type):
            table = table.set_column(i, column.name, table.column(i).cast(pa.string()))
    return table.combine_chunks()


def same(a: pa.Array, b: pa.Array) -> bool:
    """Bit for bit: no number is equal to a nan, but its bits are."""
    if pa.types.is_floating(a.type):
        integers = pa.int32() if a.type == pa.float32() else pa.int64()
        return bool(
            a.is_valid().equals(b.is_valid()) and a.fill_null(0).view(integers).equals(b.fill_null(0).view(integers))
        )
    return bool(a.equals(b))


def difference(a: pa.Table, b: pa.Table) -> str:
    """Difference in words; empty if there is none."""
    if a.column_names != b.column_names:
        return f"columns {sorted(set(a.column_names) ^ set(b.column_names))}"
    if len(a) != len(b):
        return f"{len(a)} and {len(b)} rows"
    columns = [name for name in a.column_names if not same(a[name].combine_chunks(), b[name].combine_chunks())]
    return f"columns {', '.join(columns)}" if columns else ""


def compare(before: Path, after: Path) -> int:
    """Prints what each sample's logs differ in; the number of samples that do."""
    different = 0
    for path in sorted(before.glob("*.arrow")):
        other = after / path.name
        a = rows(path)
        found = difference(a, rows(other)) if other.exists() else "was not run again"
        different += found != ""
        print(f"{path.stem:12} {len(a):8} rows  {found or 'equal'}")
    return different


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="action", required=True)
    runs = commands.add_parser("run")
    runs.add_argument("folder", type=Path)
    runs.add_argument("--only", default=",".join(RUNS))
    comparison = commands.add_parser("compare")
    comparison.add_argument("before", type=Path)
    comparison.add_argument("after", type=Path)
    given = parser.parse_args()
    wrong = run(given.folder, given.only.split(",")) if given.action == "run" else compare(given.before, given.after)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
