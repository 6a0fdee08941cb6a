"""The simulated run that a real one is compared with."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from phantora.calibration.fit import Calibration, calibrate
from phantora.errors import PhantoraError
from phantora.hardware import DEFAULT_HOST
from phantora.result import first_line
from phantora.run_process import run_in_process
from phantora.spec import OutputSpec, RunSpec
from phantora.trace.reader import Log, open_log


def calibrate_by(real: Log, run: RunSpec, name: str) -> Calibration:
    """The calibration of the machine of `real`, by a simulation of `run` on the default host. Raises PhantoraError."""
    with tempfile.TemporaryDirectory(prefix="phantora-calibrate-") as folder:
        log = Path(folder) / "simulated.arrow"
        output = OutputSpec(str(log), recording=False)
        result = run_in_process(replace(run, host=DEFAULT_HOST, output=output, ranks=replace(run.ranks, quiet=True)))
        if result.status:
            raise PhantoraError(f"{run.target} failed under simulation: {first_line(result.message)[:300]}")
        return calibrate(real, open_log(log), name)
