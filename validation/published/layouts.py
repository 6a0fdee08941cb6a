"""Do sweeps choose the layouts that published studies chose?

    python -m validation.published.layouts FOLDER [NAME...]

Runs the sweep of each study, or of those whose names contain NAME, below FOLDER (what is there already is not repeated)
and prints a row of a table: the layout that the study chose, the place that the sweep gives it, how much slower than
the sweep's best it is simulated, and, where the study measured several layouts, how much slower than the best of these.
Ends with status 1 if a chosen layout is simulated more than 3 % slower than the best of all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phantora.run_process import PHANTORA

HERE = Path(__file__).parent
TITAN = HERE.parents[1] / "samples/torchtitan"
NEAR = 0.03


@dataclass(frozen=True)
class Study:
    name: str
    folder: str
    sweep: tuple[str, ...]
    """Words behind `phantora sweep`."""
    chosen: Mapping[str, Any]
    """Values of axes."""
    measured: Mapping[tuple[Any, ...], float] = field(default_factory=dict)
    """Tokens per second by the values of the chosen's axes."""

    def values(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """Values of a row of the sweep, for the chosen's axes."""
        return tuple(row[name] for name in self.chosen)


def megatron(size: str, gpus: int, chosen: Mapping[str, Any], more: tuple[str, ...]) -> Study:
    """A row of Megatron-LM's table of weak scaling, and its neighbours. Needs Transformer Engine."""
    model = f"gpt-{size.lower().replace('.', '_')}"
    words = ("--preset", str(HERE / "layouts_megatron.toml"), "--model", model, "--cluster", f"{gpus // 8}x8xH100")
    return Study(
        f"Megatron-LM's weak scaling, GPT {size}, {gpus} GPUs",
        model,
        (*words, "--set", "overlap=true", "--fold", "ends", "--all", *more),
        chosen,
    )


def titan(
    size: str, gpus: int, more: tuple[str, ...], chosen: Mapping[str, Any], measured: Mapping[tuple[Any, ...], float]
) -> Study:
    """Rows of TorchTitan's tables that differ in their layout, and neighbours."""
    words = ("--preset", str(HERE / "layouts_torchtitan.toml"), "--model", f"llama3-{size}")
    cluster = ("--cluster", str(HERE / f"h100_96gb_{gpus}.toml"))
    return Study(
        f"TorchTitan, Llama 3 {size.upper()}, {gpus} GPUs",
        f"torchtitan-{size}",
        (*words, *cluster, "--all", *more),
        chosen,
        measured,
    )


STUDIES = (
    Study(
        # FSDP of 64 and 128 GPUs, two sequences of 8,192 for each: benchmarks/llama3_h100_202412_torchtitan.md and
        # llama3-8b_h200_202506_trainy-whitefiber.md of pytorch/torchtitan.
        "TorchTitan, Llama 3 8B, 64 GPUs, 128 sequences a step",
        "torchtitan-8b",
        ("--preset", "torchtitan", "--model", "llama3-8b", "--cluster", "8x8xH100"),
        {"tp": 1, "pp": 1, "rounds": 1},
    ),
    Study(
        # docs/b200/b200_release_v1.2_summary.md of MooreThreads/SimuMax; the rates of all GPUs together.
        "SimuMax with Megatron, 12 layers of Llama 3 70B, 8 B200",
        "megatron-b200",
        (str(HERE / "layouts_b200.toml"),),
        {"tp": 2, "pp": 1},
        {(1, 2): 77_741, (2, 1): 90_332, (4, 1): 79_961, (8, 1): 58_327},
    ),
    *(
        megatron(*row)
        for row in (
            ("1.7B", 48, {"tp": 1, "pp": 1}, ()),
            ("7B", 96, {"tp": 2, "pp": 1}, ("--set", "tp=1,2,4")),
            ("16B", 192, {"tp": 4, "pp": 1}, ("--set", "tp=2,4,8", "--set", "smallest=2", "--set", "micro=2")),
        )
    ),
    # benchmarks/ of pytorch/torchtitan, June 2025, in BF16: FSDP 32 x TP 8 alone was measured.
    titan(
        "70b",
        256,
        ("--set", "tp=1,8", "--set", "micro=2,16", "--set", "asynchronous=false,true"),
        {"tp": 8, "asynchronous": True},
        {(8, False): 256 * 597.3, (8, True): 256 * 652.4},
    ),
    # December 2024: both in Float8, with asynchronous tensor parallelism, and in the stepwise loop.
    titan(
        "405b",
        512,
        (
            "--set",
            "pp=1,8",
            "--set",
            "micro=1,4",
            "--set",
            "schedule=1F1B,Interleaved1F1B",
            "--set",
            "stepwise=false,true",
            "--rule",
            "pp == 1 or micro == 1",
        ),
        {"tp": 8, "pp": 8, "schedule": "Interleaved1F1B", "stepwise": True},
        {(8, 8, "1F1B", False): 512 * 100, (8, 8, "Interleaved1F1B", True): 512 * 128},
    ),
)


def label(values: Mapping[str, Any], names: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={values[name]}" for name in names)


def row_of(study: Study, folder: Path) -> tuple[str, float]:
    """The row of the table, and by how much the chosen layout is slower than the best."""
    found = json.loads((folder / "sweep.json").read_text())
    ran = [row for row in found if row["rank"]]
    best = ran[0]
    chosen = next(row for row in ran if study.values(row) == tuple(study.chosen.values()))
    among = [row for row in ran if study.values(row) in study.measured]
    lost = f"{(1 + chosen['behind']) / (1 + among[0]['behind']) - 1:.1%}" if among else "-"
    cells = [
        study.name,
        f"{len(ran)}",
        label(study.chosen, study.chosen),
        label(best, study.chosen),
        f"{chosen['rank']}",
        f"{chosen['behind']:.1%}",
        lost,
    ]
    return f"| {' | '.join(cells)} |", chosen["behind"]


def main() -> int:
    base = Path(sys.argv[1])
    print(
        "| study | layouts | chosen | best of the sweep | place of the chosen | behind the best | behind the best "
        "of the measured |\n| --- | --- | --- | --- | --- | --- | --- |"
    )
    far = 0
    named = sys.argv[2:] or [""]
    for study in (one for one in STUDIES if any(name in one.name for name in named)):
        folder = base / study.folder
        words = [*PHANTORA, "sweep", *study.sweep, "-o", str(folder), "-q"]
        paths = [str(TITAN), *filter(None, [os.environ.get("PYTHONPATH")])]
        given = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, cwd=HERE.parents[1], env=given)
        row, behind = row_of(study, folder)
        print(row, flush=True)
        far += behind > NEAR
    return 1 if far else 0


if __name__ == "__main__":
    sys.exit(main())
