"""Files that torch writes when a real job hangs or runs out of memory, and their causes.

:mod:`flight_recorder` and :mod:`hang` are about dumps of NCCL's flight recorder, :mod:`memory_snapshot` and
:mod:`out_of_memory` about snapshots of the CUDA allocator. Both are pickles, which :mod:`plain_pickle` reads without
making an object of a class.

Process: terminal.
"""
