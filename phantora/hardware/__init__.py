"""GPUs, hosts and clusters: data files and their loader."""

from phantora.hardware.clusters import load_cluster, load_host
from phantora.hardware.gpus import device_fields, gpu_names, load_gpu
from phantora.hardware.types import Calibration, Cluster, Gpu, HostProfile, Link

__all__ = [
    "Calibration",
    "Cluster",
    "Gpu",
    "HostProfile",
    "Link",
    "device_fields",
    "gpu_names",
    "load_cluster",
    "load_gpu",
    "load_host",
]
