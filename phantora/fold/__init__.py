"""Folded runs: a few ranks run as processes and represent all others (docs/scale.md).

`mesh` is the geometry, `syntax` the text of ``--fold``, `discovery` finds the axes, `pipelines` groups the processes
of a pipeline. `phantora/runs/fold.py` decides which ranks are processes. The ranks' side is
`phantora/rank/fold` and `stub/nccl/fold.c`. The engine's side is `phantora/sim/engine/fold`.

Process: terminal and rank.
"""
