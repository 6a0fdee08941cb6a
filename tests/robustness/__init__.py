"""Programs that try to break a run: fuzzers, faults, hangs, sanitizers, schedules, long runs."""

import os

from phantora.launch.daemon import VARIABLE

os.environ[VARIABLE] = "0"  # they count what a run leaves
