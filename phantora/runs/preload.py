"""Imports and reads what a run and the reading of its log use, for a process that forks runs (``launch/zygote.py``)."""

from contextlib import suppress

from numpy import ma

from phantora import stubs
from phantora.cost import families, workspaces
from phantora.errors import PhantoraError
from phantora.hardware.gpus import gpu_names
from phantora.runs import local, memory, sensitivity
from phantora.sim import replay, variables
from phantora.stubs.cache import installed
from phantora.stubs.find import find_torch
from phantora.trace import writer
from phantora.trace.analysis import analyze
from phantora.trace.export import perfetto, registry
from phantora.wire import workspaces as layout

MODULES = (
    analyze,
    families,
    layout,
    local,
    ma,  # pyarrow imports it for an array with nulls
    memory,
    perfetto,
    registry,
    replay,
    sensitivity,
    stubs,
    variables,
    workspaces,
    writer,
)

families.families()
with suppress(PhantoraError):  # runs report it
    gpu_names()
    installed(find_torch())
