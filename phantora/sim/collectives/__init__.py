"""Cost of a collective, or of a send and its receive, on a cluster, and the links that it loads.

`tuner` decides as NCCL does, `timing` gives the time with the links to itself, `patterns` who
sends how much to whom. docs/collectives.md derives the formulas and lists the errors.

Units inside: microseconds, bytes, bytes per microsecond (1 GB/s = 1000).
"""

from phantora.sim.collectives.environment import NcclEnvironment
from phantora.sim.collectives.experts import Rows
from phantora.sim.collectives.model import CollectiveModel, CollectivePrice
from phantora.sim.collectives.names import SEND_RECV_KERNEL, kernel_name
from phantora.sim.collectives.symmetric import signal_name

__all__ = [
    "SEND_RECV_KERNEL",
    "CollectiveModel",
    "CollectivePrice",
    "NcclEnvironment",
    "Rows",
    "kernel_name",
    "signal_name",
]
