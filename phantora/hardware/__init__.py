"""GPUs, hosts and clusters: data files and their loader."""

from phantora.hardware.builders import build
from phantora.hardware.clusters import load_cluster, load_host, over_pcie, system_names
from phantora.hardware.gpus import device_fields, gpu_names, load_gpu
from phantora.hardware.topology import Flow, NetworkLink, Topology
from phantora.hardware.types import Calibration, Cluster, Fabric, Gpu, HostProfile, Link, Wiring

__all__ = [
    "Calibration",
    "Cluster",
    "Fabric",
    "Flow",
    "Gpu",
    "HostProfile",
    "Link",
    "NetworkLink",
    "Topology",
    "Wiring",
    "build",
    "device_fields",
    "gpu_names",
    "load_cluster",
    "load_gpu",
    "load_host",
    "over_pcie",
    "system_names",
]
