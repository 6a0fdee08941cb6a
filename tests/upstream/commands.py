"""TorchTitan's integration tests: a flavor of its lists is one command or several, which must end without an error."""

from __future__ import annotations

import importlib
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

CONFIGURATION = "tests/integration_tests/base_config.toml"
GENERATION = "test_generate"  # its second command is another script, as in TorchTitan's own runner


@dataclass(frozen=True)
class Flavor:
    """A test on `gpus` GPUs. `commands`: for each, what stands behind the options of `phantora trace`. What they write
    lies in `dump`."""

    name: str
    gpus: int
    disabled: bool
    commands: tuple[tuple[str, ...], ...]
    dump: Path


def flavors(sources: Path, name: str, folder: Path) -> list[Flavor]:
    """Flavors of the list `name` (`features`, `models` or `h100`) of a checkout, which write below `folder`."""
    os.environ["RUNNER_TEMP"] = str(folder)  # where some look for what others have written
    sys.path.insert(0, str(sources))
    module = importlib.import_module(f"tests.integration_tests.{name}")
    build = next(getattr(module, word) for word in dir(module) if word.startswith("build_"))
    found = []
    for test in build():
        dump = folder / "artifacts-to-be-uploaded" / test.test_name
        start = ("-m", "torchtitan.train", "--job.config_file", CONFIGURATION, "--job.dump_folder", str(dump))
        commands = [(*start, *shlex.split(" ".join(words))) for words in test.override_args]
        if test.test_name == GENERATION:
            commands[1] = (
                "-m",
                "scripts.generate.test_generate",
                f"--config={CONFIGURATION}",
                f"--checkpoint={dump}/checkpoint/step-10",
                "--prompt=What is the meaning of life?",
                "--out",
            )
        found.append(Flavor(test.test_name, test.ngpu, test.disabled, tuple(commands), dump))
    return found


def run_flavor(
    flavor: Flavor, out: Path, trace: Callable[[int], list[str]], run: Callable[[list[str], Path], int | None]
) -> None:
    """Adds its outcome to `out`. `trace`: the start of a command on a number of GPUs. `run(command, log)`: what it ends
    with, None if it takes too long."""
    begun = time.monotonic()
    outcome, text = ("skipped", "disabled in the list") if flavor.disabled else ("passed", "")
    log = out.parent / out.stem / f"{flavor.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    for arguments in () if flavor.disabled else flavor.commands:
        status = run([*trace(flavor.gpus), *arguments], log)
        if status != 0:
            outcome, text = "hung" if status is None else "failed", log.read_text(errors="replace")[-20000:]
            break
    shutil.rmtree(flavor.dump, ignore_errors=True)
    row = {"test": flavor.name, "outcome": outcome, "text": text, "seconds": round(time.monotonic() - begun)}
    with out.open("a") as rows:
        rows.write(json.dumps(row) + "\n")
