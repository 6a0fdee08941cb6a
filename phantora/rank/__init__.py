"""Python that runs in the user's process, a rank: the mirror of ``stub/rank``.

`main` is a rank from its fork to its exit; `hook` joins from a command. `stub_loader` loads the stub libraries, `clock`
is Python's virtual time. `patches` changes torch and libraries, `shims` frameworks, `fold` the groups of folded runs.
`site`, `bin` and `smi` are for the processes that a rank or a command starts.

Process: rank.
"""
