"""Constants of the launch path, measured."""

# From the call of cudaLaunchKernel to the start of the kernel on an idle GPU. An add followed by
# cudaDeviceSynchronize takes 10.07 us on the host, the add alone 5.08 us, its launch 2.73 us of
# that and its kernel about 2 us (H200, torch 2.11, host_overhead.py and launch_overhead.cu).
LAUNCH_LATENCY_NS = 4500

# Between the end of a kernel and the start of the next on the same stream when both have long
# been launched: 1.0 us at the 5th percentile of four profiled training steps, in which CUPTI
# adds to the median of 1.4 us (H200, torch 2.11).
KERNEL_GAP_NS = 1000
