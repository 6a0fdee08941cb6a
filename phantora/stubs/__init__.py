"""The stub libraries of ``stub/``: builds, cache, and loading into a process.

Process: terminal and fork server.
"""

from phantora.stubs.build import Coverage, StubSet
from phantora.stubs.cache import ensure
from phantora.stubs.doctor import Report, doctor
from phantora.stubs.find import Torch, find_torch
from phantora.stubs.load import load

__all__ = ["Coverage", "Report", "StubSet", "Torch", "doctor", "ensure", "find_torch", "load"]
