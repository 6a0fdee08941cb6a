"""``python -m phantora.launch.smi SESSION ARGUMENTS...``, as ``phantora/launch/bin/nvidia-smi`` calls it."""

import os
import sys

from phantora.launch.hook import SESSION
from phantora.launch.smi.main import main

os.environ[SESSION] = sys.argv[1]
sys.exit(main(sys.argv[2:]))
