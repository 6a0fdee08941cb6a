"""The simulator of a run: the loop around the engine (`simulator`), prices for it (`pricing`), hang reports (`hang`).

`engine` is virtual time in C++, `collectives` the cost of communication. `replay` feeds a recording to the engine.

Process: simulator.
"""
