"""Measures operators with stock torch on the GPU of this machine.

Nothing here may load the stubs: measuring happens in a process of its own (:mod:`phantora.profile.worker`).
"""
