"""Processes of a run, and the Python inside them.

Outside: `supervisor` and `command` start and end a run, `forkserver` forks its ranks, `output` shows their output.
Inside: `rank` becomes a rank, `hook` joins from a command, `clock` is Python's virtual time. `patches` changes torch
and libraries, `shims` frameworks, `fold` the groups of folded runs.
"""
