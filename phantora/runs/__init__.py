"""One run, from its :class:`phantora.spec.RunSpec` to its :class:`phantora.result.RunResult`.

``prepare`` checks the spec, ``fold`` decides which ranks run, ``assemble`` builds the simulator, ``local`` runs it on
this machine; ``replay`` simulates a recording again.

Process: terminal.
"""
