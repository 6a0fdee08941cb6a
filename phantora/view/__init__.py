"""Pages of a run, a difference or a sweep, and their server on this machine.

Process: terminal.
"""
