"""Imports what a run and the reading of its log use, for a process that forks runs (``launch/zygote.py``)."""

from phantora import stubs
from phantora.cost import families, workspaces
from phantora.runs import local, memory, sensitivity
from phantora.sim import replay, variables
from phantora.trace import writer
from phantora.trace.analysis import analyze
from phantora.trace.export import perfetto, registry
from phantora.wire import workspaces as layout

MODULES = (
    analyze,
    families,
    layout,
    local,
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
