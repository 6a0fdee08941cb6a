"""GPUs, hosts and clusters: data files and their loader.

Process: terminal and simulator.
"""

from phantora.hardware.builders import build
from phantora.hardware.calibration import CalibrationFile, load_calibration
from phantora.hardware.clusters import load_cluster, over_pcie, system_names
from phantora.hardware.gpus import device_fields, gpu_names, limited, load_gpu
from phantora.hardware.hosts import DEFAULT_HOST, REFERENCE_HOST, host_names, load_host
from phantora.hardware.topology import Flow, NetworkLink, Topology
from phantora.hardware.types import (
    Calibration,
    Cluster,
    Fabric,
    Gpu,
    HostProfile,
    Link,
    MeasuredCollective,
    MeasuredGpu,
    Wiring,
)

__all__ = [
    "DEFAULT_HOST",
    "REFERENCE_HOST",
    "Calibration",
    "CalibrationFile",
    "Cluster",
    "Fabric",
    "Flow",
    "Gpu",
    "HostProfile",
    "Link",
    "MeasuredCollective",
    "MeasuredGpu",
    "NetworkLink",
    "Topology",
    "Wiring",
    "build",
    "device_fields",
    "gpu_names",
    "host_names",
    "limited",
    "load_calibration",
    "load_cluster",
    "load_gpu",
    "load_host",
    "over_pcie",
    "system_names",
]
