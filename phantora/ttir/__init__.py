"""Work of a Triton kernel's launch, from its IR (TTIR): `parse`, `walk`, `work`.

Process: rank and terminal.
"""
