"""Calibration files from logs of real runs: ``phantora calibrate`` (docs/howto/calibrate.md)."""

from phantora.calibration.fit import Calibration, calibrate, write

__all__ = ["Calibration", "calibrate", "write"]
