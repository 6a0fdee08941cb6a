"""Time slices of processes that share a GPU (docs/shared-gpus.md).

Measured with a kernel that reads the clock, in two and three processes on one H200 (driver 580.159,
validation/measurements/2026-11-28-h200/shared_gpu.jsonl): it runs for 2.09 ms, then pauses for 2.09 ms and two context
switches of 152 us. A switch saves the kernel of one process and resumes that of the other. A switch between whole
kernels takes less than 0.5 us.
"""

TIME_SLICE_NS = 2_090_000
CONTEXT_SWITCH_NS = 152_000
