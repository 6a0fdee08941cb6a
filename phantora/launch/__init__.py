"""Processes of a run, outside of its ranks: they are started, watched, shown and ended here.

`plan` has the processes, `environment` their variables. `supervisor` and `command` start and end a run, `forkserver`
forks its ranks, `output` shows their output. Python inside a rank is in `phantora/rank`.

Process: terminal and fork server.
"""
