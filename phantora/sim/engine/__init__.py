"""Virtual time: the C++ engine (streams, events, waits, collectives, links, power) and its Python interface.

`library` is the interface; every other file is C++, built by :mod:`phantora.stubs.build`.

Process: simulator.
"""

from phantora.sim.engine.library import Engine

__all__ = ["Engine"]
