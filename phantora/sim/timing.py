"""Constants of the launch path, measured."""

# From the call of cudaLaunchKernel to the start of the kernel on an idle GPU. An add followed by
# cudaDeviceSynchronize takes 10.07 us on the host, the add alone 5.08 us, its launch 2.73 us of
# that and its kernel about 2 us (H200, torch 2.11, host_overhead.py and launch_overhead.cu).
LAUNCH_LATENCY_NS = 4500
