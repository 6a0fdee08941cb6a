"""Host files from logs of real runs: ``phantora calibrate`` (docs/howto/calibrate.md)."""

from phantora.calibrate.fit import Calibration, calibrate

__all__ = ["Calibration", "calibrate"]
