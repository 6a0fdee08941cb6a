"""Calibration files: a host file whose table ``[gpu]`` has what the same trace shows of the GPUs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from phantora.errors import PhantoraError
from phantora.hardware import toml
from phantora.hardware.hosts import GPU_TABLE, load_host, to_toml
from phantora.hardware.types import Cluster, HostProfile, MeasuredGpu


@dataclass(frozen=True)
class CalibrationFile:
    """A machine as the trace of a real run shows it."""

    host: HostProfile
    gpu: MeasuredGpu | None = None
    """None: the host only."""
    path: str = ""

    def applied(self, cluster: Cluster) -> Cluster:
        """`cluster` with this host, and with this GPU if it is the same product."""
        cluster = replace(cluster, host=self.host)
        if self.gpu is None or self.gpu.product != cluster.gpu.product:
            return cluster
        return replace(cluster, gpu=replace(cluster.gpu, measured=self.gpu))

    def note(self, cluster: Cluster) -> str:
        """One line if only the host counts on `cluster`; else empty."""
        if self.gpu is None or self.gpu.product == cluster.gpu.product:
            return ""
        return f"{self.path} is from {self.gpu.product}: on {cluster.gpu.name} only its host counts"

    def text(self) -> str:
        """The file's text."""
        host = to_toml(self.host)
        return host if self.gpu is None else f"{host}\n{_gpu_text(asdict(self.gpu))}"


def load_calibration(text: str) -> CalibrationFile:
    """The file that `text` names; anything else that :func:`load_host` takes is a host. Raises PhantoraError."""
    host = load_host(text)
    path = Path(text.strip())
    if path.suffix != ".toml":
        return CalibrationFile(host)
    table, place = toml.read(path).get(GPU_TABLE), toml.Place(path) / GPU_TABLE
    if table is None:
        return CalibrationFile(host, path=str(path))
    if not isinstance(table, dict):
        raise PhantoraError(f"{place} must be a table: [{GPU_TABLE}]")
    gpu = toml.build(MeasuredGpu, table, place)
    for number, curve in enumerate(gpu.collectives):
        if not curve.bytes or len(curve.bytes) != len(curve.ns) or list(curve.bytes) != sorted(set(curve.bytes)):
            raise PhantoraError(f"{place / 'collectives' / number}: give ascending bytes, and as many ns")
    if not gpu.products > 0:
        raise PhantoraError(f"{place / 'products'} must be above 0")
    return CalibrationFile(host, replace(gpu, kernels=str(path.parent / gpu.kernels) if gpu.kernels else ""), str(path))


def _gpu_text(table: Mapping[str, Any]) -> str:
    """TOML of :class:`MeasuredGpu`, without what has its default."""
    usual = asdict(MeasuredGpu(""))
    curves = table["collectives"]
    lines = [f"[{GPU_TABLE}]"]
    plain = {key: value for key, value in table.items() if key != "collectives" and value != usual[key]}
    lines += [f"{key} = {_value(value)}" for key, value in plain.items()]
    for curve in curves:
        lines += ["", f"[[{GPU_TABLE}.collectives]]", *(f"{key} = {_value(value)}" for key, value in curve.items())]
    return "\n".join([*lines, ""])


def _value(value: Any) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value)
