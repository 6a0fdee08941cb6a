"""Many runs of one script: which layout is fastest, cheapest, and fits (docs/sweeps.md).

Process: terminal.
"""
