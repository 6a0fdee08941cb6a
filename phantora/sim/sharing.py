"""GPUs that several processes share: how they take turns.

Measured with a kernel that reads the clock, in two and three processes on one H200 (driver 580.159,
validation/measurements/2026-11-28-h200/shared_gpu.jsonl): it runs for 2.09 ms, then stands still for 2.09 ms and two
changes of 152 us. Each change saves the kernel of one process and resumes that of the other. Where neither has begun
one, a change takes less than 0.5 us.
"""

TIME_SLICE_NS = 2_090_000
CONTEXT_SWITCH_NS = 152_000
