"""Measures operators with stock torch on the GPU of this machine.

Nothing here may load the stubs: a separate process measures (:mod:`phantora.profile.worker`).

Process: terminal.
"""
