"""``python -m tests.support.script PID FD DEVICES FILE``: executes a Python file, with torch, as rank 0 of a session,
which is descriptor FD of process PID."""

import ctypes
import os
import sys
from pathlib import Path

from tests.support.on_stubs import library, stubs, torch

if __name__ == "__main__":
    pid, fd, devices, file = sys.argv[1:]
    assert library.ph_connect(os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR), 0, 0, int(devices)) == 0
    program = {"ctypes": ctypes, "os": os, "stubs": stubs, "torch": torch, "library": library}
    exec(compile(Path(file).read_text(), Path(file).name, "exec"), program)
    library.ph_exit(0)  # before the variables of the program end
