"""``python -m phantora.rank.smi RANKS ARGUMENTS...``, as ``phantora/rank/bin/nvidia-smi`` calls it; RANKS is the
:class:`RankSpec` of the process that asks."""

import os
import sys
from dataclasses import replace

from phantora.rank.smi.main import main
from phantora.spec import VARIABLE, RankSpec

os.environ[VARIABLE] = replace(RankSpec.from_json(sys.argv[1]), joined=True).to_json()
sys.exit(main(sys.argv[2:]))
