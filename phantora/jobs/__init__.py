"""Duration and cost of a training job: failures, checkpoints, restarts, stragglers and spare hosts.

Process: terminal.
"""
