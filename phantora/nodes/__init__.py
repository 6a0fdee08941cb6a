"""The ranks of one run on several machines: an agent on each starts its ranks and relays their shared memory.

The simulator stays one process, next to the terminal. An agent (``agent.py``) has the fork server of its ranks and a
memory of the same layout as the simulator's. Two connections lead to the terminal: one for messages
(``channel.py``), one for the relay of the memory (``sim/engine/relay``). ``driver.py`` stands for all agents where the
supervisor expects a fork server. ``on_ray.py`` places agents on a Ray cluster.

Process: terminal and agent.
"""
