"""Phantora under several versions of torch and Python, each in a virtual environment of its own.

    python tests/matrix.py --torch 2.9.1 2.11.0 2.14.1 2.15.0 --tier samples
    python tests/matrix.py --torch 2.14.1 --python python3.10 python3.13 --tier stubs --folder /tmp/matrix
    python tests/matrix.py --torch newest --tier short --only-torch
    python tests/matrix.py --lowest --tier unit

PyPI's wheels decide the CUDA version (torch 2.9 and 2.10: 12, later: 13); another one comes by `--pip-arguments`, as
``--index-url https://download.pytorch.org/whl/cu126``. Tiers: `stubs` builds the libraries and runs their tests,
`ranks` those of whole runs, `samples` runs samples on few simulated GPUs and prints step times and memory side by side,
`short` some of the first and one sample. An environment takes about 6 GB and is kept if `--folder` names a place for
it. With `--only-torch` it takes 1 GB: torch's wheel and CUDA's headers are installed, the rest is that of the running
interpreter, and NVIDIA's libraries are left out, since the stubs stand for them. With `--lowest` it takes 0.2 GB: the
running interpreter's packages, but of what Phantora needs next to torch the lowest versions that it lets in. Status 1
if anything failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import requires, version
from pathlib import Path

from phantora.run_process import PHANTORA

ROOT = Path(__file__).resolve().parents[1]
NEWEST = "newest"
"""The newest torch that the package lets in and pip finds; `.ci/run` tries it next to the tested default."""
NEEDED = ("pytest>=8", "pytest-xdist>=3.5", "hypothesis>=6", "torchvision")
TESTS = {
    "unit": (
        "tests/unit",
        "tests/trace",
        "-k",
        "not mlflow_reads_its_runs",  # SciPy, which it imports, wants a newer numpy than the lowest
    ),
    "stubs": (
        "tests/stubs/test_build.py",
        "tests/unit/test_rank_runtime.py",
        "tests/unit/test_workspaces.py",
        "tests/integration/test_mathlibs.py",
        "tests/integration/test_nccl_stub.py",
        "tests/cuda",
    ),
    "ranks": (
        "tests/integration/test_runs.py",
        "tests/integration/test_values.py",
        "tests/integration/test_compile.py",
        "tests/integration/test_launch.py",
    ),
    "short": (
        "tests/stubs/test_build.py",
        "tests/unit/test_rank_runtime.py",
        "tests/cuda/test_devices.py",
        "tests/integration/test_profiler.py",
        "tests/integration/test_repeated_launches.py",
        "tests/integration/test_group_timeouts.py::test_limits_go_by_virtual_time_in_each_torch",
        "-k",
        "not without_a_warning",
    ),
}
# Name, cluster, what is run: all end with a line of JSON. The first is the sample of the short tier.
SAMPLES = (
    ("FSDP2", "1x4xH100", ("samples/llama_fsdp2.py", "--layers", "2", "--steps", "4")),
    ("DDP", "1x2xH100", ("samples/llama_ddp.py", "--layers", "2", "--steps", "4")),
    ("tensor parallel", "1x2xH100", ("samples/llama_tp.py", "--layers", "2", "--steps", "4")),
    ("pipeline", "1x2xH100", ("samples/llama_pp.py", "--layers", "4", "--steps", "4")),
    ("one GPU", "1x1xH100", ("samples/llama_single.py", "--layers", "2", "--steps", "4")),
    ("ResNet-50, DDP", "1x2xH100", ("samples/resnet_ddp.py", "--steps", "3")),
)


@dataclass
class Result:
    """Result of one environment."""

    torch: str
    python: str
    failures: list[str] = field(default_factory=list)
    samples: dict[str, dict[str, float]] = field(default_factory=dict)
    """Values by sample: step_ms, allocated and reserved (GiB)."""
    seconds: float = 0.0


def run(command: Sequence[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def environment(folder: Path, torch: str, python: str, pip_arguments: Sequence[str]) -> Path:
    """The interpreter of the environment with `torch`, made if need be. Raises RuntimeError with pip's last line."""
    made = folder / f"torch-{torch}-{Path(python).name}"
    interpreter = made / "bin" / "python"
    if not (made / "ready").exists():
        for command in (
            [python, "-m", "venv", "--clear", str(made)],
            [str(interpreter), "-m", "pip", "install", "--quiet", f"torch=={torch}", *pip_arguments],
            [str(interpreter), "-m", "pip", "install", "--quiet", f"torch=={torch}", *NEEDED, str(ROOT)],
            [str(interpreter), "-m", "pip", "uninstall", "--quiet", "--yes", "phantora"],  # the checkout's counts
        ):
            _install(command)
        (made / "ready").touch()
    return interpreter


def only_torch(folder: Path, torch: str) -> Path:
    """The interpreter of an environment with `torch` that takes all other packages from the running one."""
    made = folder / f"torch-{torch}-only"
    if not (made / "ready").exists():
        packages = _layer(made)
        _install_alone(made, f"torch=={torch}")
        cuda = re.search(r"^cuda[^=\n]*= '([\d.]+)'", (packages / "torch" / "version.py").read_text(), re.MULTILINE)
        if cuda is None:
            raise RuntimeError(f"torch {torch} is built without CUDA")
        suffix = "-cu12" if cuda[1].startswith("12.") else ""
        _install_alone(made, f"nvidia-cuda-runtime{suffix}=={cuda[1]}.*")
        (made / "ready").touch()
    return _interpreter(made)


def lowest(folder: Path) -> Path:
    """The interpreter of an environment with the lowest dependencies, which takes all other packages from the running
    one."""
    made = folder / "lowest"
    if not (made / "ready").exists():
        _layer(made)
        bounds = (re.fullmatch(r"([\w.-]+)>=([\d.]+)", one) for one in requires("phantora") or ())
        _install_alone(made, *(f"{bound[1]}=={bound[2]}" for bound in bounds if bound is not None))
        (made / "ready").touch()
    return _interpreter(made)


def _layer(made: Path) -> Path:
    """Makes an environment whose own packages stand before those of the running one; the folder of its own."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(made)], check=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(made)}))
    (packages / "running.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return packages


def _interpreter(made: Path) -> Path:
    return made / "bin" / "python"


def _install_alone(made: Path, *packages: str) -> None:
    """Installs packages without what they need."""
    pip = ("-m", "pip", "--python", str(_interpreter(made)), "install", "--quiet", "--no-deps", "--no-compile")
    _install([sys.executable, *pip, *packages])


def _install(command: Sequence[str]) -> None:
    done = run(command)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")


def tests(interpreter: Path, result: Result, files: Sequence[str]) -> None:
    done = run([str(interpreter), "-m", "pytest", "-q", *files], PYTHONPATH=str(ROOT))
    result.failures += re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if done.returncode:
        print("\n".join(line for line in done.stdout.splitlines() if line.startswith("E ")), flush=True)
    if done.returncode and not result.failures:
        result.failures.append((done.stdout + done.stderr).strip().splitlines()[-1])


def samples(interpreter: Path, result: Result, chosen: Sequence[tuple[str, str, tuple[str, ...]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, cluster, command in chosen:
            trace = (*PHANTORA[1:], "trace", "--cluster", cluster, "--no-summary", "-o", f"{folder}/run.arrow")
            done = run([str(interpreter), *trace, *command], PYTHONPATH=str(ROOT))
            lines = [re.sub(r"^\[rank\d+\]: ", "", line) for line in done.stdout.splitlines()]
            reports = [json.loads(line) for line in lines if line.startswith("{")]
            if done.returncode or not reports:
                result.failures.append(f"{name}: {(done.stderr.strip().splitlines() or ['no report'])[-1]}")
                continue
            last = reports[-1]
            result.samples[name] = {
                "step_ms": last["median_step_s"] * 1e3,
                "allocated": last["max_memory_allocated"] / 2**30,
                "reserved": last["max_memory_reserved"] / 2**30,
            }


def table(results: Sequence[Result]) -> list[str]:
    """Markdown: samples by row, environments by column."""
    kept = [result for result in results if result.samples]
    if not kept:
        return []
    lines = ["| | " + " | ".join(f"torch {r.torch}, {Path(r.python).name}" for r in kept) + " |"]
    lines.append("| --- |" + " ---: |" * len(kept))
    for name, cluster, _ in SAMPLES:
        if not any(name in result.samples for result in kept):
            continue
        cells = []
        for result in kept:
            found = result.samples.get(name)
            text = "{step_ms:.1f} ms, {allocated:.2f} / {reserved:.2f} GiB".format(**found) if found else "failed"
            cells.append(text)
        lines.append(f"| {name}, {cluster} | " + " | ".join(cells) + " |")
    return lines


def newest() -> str:
    """Its version; pip may be kept from later ones by constraints. Raises RuntimeError."""
    bound = next(one for one in requires("phantora") or () if re.match(r"torch\b[^;]*$", one))
    ask = ("install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet", "--report", "-", bound)
    done = run([sys.executable, "-m", "pip", *ask])
    if done.returncode:
        raise RuntimeError(f"pip finds no {bound}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
    return str(json.loads(done.stdout)["install"][0]["metadata"]["version"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", nargs="+", default=["2.9.1", "2.11.0", NEWEST], help="versions, or: newest")
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="interpreters")
    parser.add_argument("--tier", nargs="+", choices=(*TESTS, "samples"), default=["stubs", "samples"])
    parser.add_argument("--only-torch", action="store_true", help="take all but torch from the running environment")
    parser.add_argument("--lowest", action="store_true", help="the running torch with the lowest other dependencies")
    parser.add_argument("--folder", type=Path, help="where the environments are kept")
    parser.add_argument("--pip-arguments", default="", help="for installing torch, in one word")
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory(prefix="phantora-matrix-") as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        versions = (newest() if torch == NEWEST else torch for torch in options.torch)
        for torch in (version("torch"),) if options.lowest else versions:
            for python in options.python:
                result = Result(torch, python)
                results.append(result)
                began = time.monotonic()
                try:
                    if options.lowest:
                        interpreter = lowest(folder)
                    elif options.only_torch:
                        interpreter = only_torch(folder, torch)
                    else:
                        interpreter = environment(folder, torch, python, shlex.split(options.pip_arguments))
                except RuntimeError as error:
                    result.failures.append(str(error))
                else:
                    for tier in options.tier:
                        if tier in TESTS:
                            tests(interpreter, result, TESTS[tier])
                        if tier in ("samples", "short"):
                            samples(interpreter, result, SAMPLES if tier == "samples" else SAMPLES[:1])
                result.seconds = time.monotonic() - began
                failed = f"{len(result.failures)} failures" if result.failures else "all passed"
                print(f"torch {torch}, {python}: {failed}, {result.seconds:.0f} s", flush=True)
                for failure in result.failures:
                    print(f"  {failure}", flush=True)
    print("\n".join(table(results)))
    return any(result.failures for result in results)


if __name__ == "__main__":
    sys.exit(main())
