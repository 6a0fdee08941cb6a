"""Calibration files from logs of real runs: ``phantora calibrate`` (docs/howto/calibrate.md).

Process: terminal.
"""

from phantora.calibration.fit import Calibration, calibrate, write
from phantora.calibration.simulated import calibrate_by

__all__ = ["Calibration", "calibrate", "calibrate_by", "write"]
