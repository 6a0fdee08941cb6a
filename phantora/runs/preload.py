"""Imports and reads what a run and the reading of its log use, for a process that forks runs (``launch/zygote.py``)."""

from contextlib import suppress

from numpy import ma

from phantora import stubs
from phantora.cost import families, workspaces
from phantora.errors import PhantoraError
from phantora.hardware import load_cluster
from phantora.runs import local, memory, sensitivity
from phantora.sim import replay, variables
from phantora.stubs.cache import cache_key
from phantora.stubs.find import find_torch
from phantora.trace import writer
from phantora.trace.analysis import analyze
from phantora.trace.export import perfetto, registry
from phantora.version import version
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
    load_cluster("1x1xH100")
    cache_key(find_torch())
version()
