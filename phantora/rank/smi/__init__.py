"""``nvidia-smi`` for the simulated host: the values of NVML's stub, in the forms that scripts read.

``phantora/rank/bin`` lies first on the PATH of the ranks and of commands. The forms are those that NVIDIA documents:
the summary, ``-L``, ``--query-gpu`` and ``--query-compute-apps`` with ``--format=csv``. Others are refused by name.
"""
