"""Types of the keywords of ``phantora.run`` and others (docs/options.py writes this file)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypedDict


class RunOptions(TypedDict, total=False):
    """Options of ``phantora trace``."""

    cluster: str
    processes_per_gpu: int
    gpu_memory: float | None
    preload: Sequence[str]
    daemon: bool
    host: str | None
    host_time: str
    host_scale: float
    profile: str
    unsupported: str
    hang_timeout: float
    output: str | os.PathLike[str] | None
    force: bool
    recording: bool
    flows: bool
    samples: int
    missing: str
    seed: int
    data_loading: str
    script_threads: str
    disk: str
    garbage: str
    moe_routing: str
    assume: Sequence[str]
    worst_batch: bool
    remedy: str
    modules: bool
    check: str
    fold: str
    real_ranks: Sequence[int]
    degrade: Sequence[str]
    straggler: Sequence[str]
    background: Sequence[str]
    fault: Sequence[str]
    power_cap: float | None
    nnodes: int | str | None
    nproc_per_node: int | str | None
    ray: str
    working_dir: str
    role: str
    rdzv_id: str
    master_port: int
    log_dir: str
    redirects: str
    tee: str
    local_ranks_filter: str


class FitsOptions(TypedDict, total=False):
    """Options of ``phantora fits``."""

    cluster: str
    processes_per_gpu: int
    gpu_memory: float | None
    preload: Sequence[str]
    daemon: bool
    host: str | None
    host_time: str
    host_scale: float
    profile: str
    unsupported: str
    hang_timeout: float
    seed: int
    data_loading: str
    script_threads: str
    disk: str
    garbage: str
    moe_routing: str
    assume: Sequence[str]
    worst_batch: bool
    remedy: str
    fold: str
    real_ranks: Sequence[int]
    degrade: Sequence[str]
    straggler: Sequence[str]
    background: Sequence[str]
    fault: Sequence[str]
    power_cap: float | None
    ray: str
    working_dir: str


class PlanOptions(TypedDict, total=False):
    """Options of ``phantora plan``."""

    gpu_memory: float | None
    preload: Sequence[str]
    daemon: bool
    host: str | None
    host_time: str
    host_scale: float
    profile: str
    unsupported: str
    hang_timeout: float
    seed: int
    data_loading: str
    script_threads: str
    disk: str
    garbage: str
    moe_routing: str
    assume: Sequence[str]
    remedy: str
    fold: str
    real_ranks: Sequence[int]
    degrade: Sequence[str]
    straggler: Sequence[str]
    background: Sequence[str]
    fault: Sequence[str]
    power_cap: float | None
    ray: str
    working_dir: str


class CompareOptions(TypedDict, total=False):
    """Options of ``phantora compare``."""

    gpu_memory: float | None
    preload: Sequence[str]
    daemon: bool
    host: str | None
    host_time: str
    host_scale: float
    profile: str
    unsupported: str
    hang_timeout: float
    samples: int
    seed: int
    data_loading: str
    script_threads: str
    disk: str
    garbage: str
    moe_routing: str
    assume: Sequence[str]
    remedy: str
    fold: str
    real_ranks: Sequence[int]
    degrade: Sequence[str]
    straggler: Sequence[str]
    background: Sequence[str]
    fault: Sequence[str]
    power_cap: float | None
    ray: str
    working_dir: str


class SweepOptions(TypedDict, total=False):
    """Options of ``phantora sweep``."""

    gpu_memory: float | None
    preload: Sequence[str]
    daemon: bool
    host: str | None
    host_time: str
    host_scale: float
    profile: str
    unsupported: str
    hang_timeout: float
    data_loading: str
    script_threads: str
    disk: str
    garbage: str
    moe_routing: str
    assume: Sequence[str]
    remedy: str
    degrade: Sequence[str]
    straggler: Sequence[str]
    background: Sequence[str]
    fault: Sequence[str]
    power_cap: float | None


class CalibrateOptions(TypedDict, total=False):
    """Options of ``phantora calibrate``."""

    processes_per_gpu: int
    preload: Sequence[str]
    daemon: bool
    profile: str
    unsupported: str
    hang_timeout: float
    seed: int
    data_loading: str
    script_threads: str
    disk: str
    garbage: str
    moe_routing: str
    assume: Sequence[str]
    remedy: str
    fold: str
    real_ranks: Sequence[int]
    nnodes: int | str | None
    nproc_per_node: int | str | None


class ReplayOptions(TypedDict, total=False):
    """Options of ``phantora replay``."""

    force: bool
    recording: bool
    flows: bool
    samples: int
    degrade: Sequence[str]
    straggler: Sequence[str]
    background: Sequence[str]
    fault: Sequence[str]
    power_cap: float | None
