"""Imports all that a run and the reading of its log need, for a process that forks runs (launch/zygote.py)."""

from importlib import import_module

from phantora.cost.families import families

for _name in (
    "phantora.cli.trace",
    "phantora.cost.workspaces",
    "phantora.runs.local",
    "phantora.runs.process",
    "phantora.sim.replay",
    "phantora.stubs",
    "phantora.sweeps.result",
    "phantora.trace.analysis.analyze",
    "phantora.trace.export.perfetto",
    "phantora.trace.export.registry",
    "phantora.trace.writer",
):
    import_module(_name)
families()
