"""Hosts: a built-in name, a file, or a multiplier of ``default``."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from phantora.errors import PhantoraError, known_names
from phantora.hardware import toml
from phantora.hardware.gpus import DATA
from phantora.hardware.types import HostProfile
from phantora.wire.layout import Api

DEFAULT_HOST = "default"
REFERENCE_HOST = "emerald-rapids-fast"
"""The host that `HostProfile.factor` refers to: each of its costs is measured or fitted."""
HOST_FORMS = "a built-in name or NAME:FACTOR, a .toml file, or a multiplier of default (1.5 = 50 % slower)"
# Between which multiples of a host's factor scripts lie, of one that was measured next to them too (docs/accuracy.md,
# Error bars).
GIVEN_SPREAD = (0.7, 1.5)
FACTORS = (0.1, 20.0)
SHORTEST_PACE_NS = 1e5
MOST_CORES = 4096
GPU_TABLE = "gpu"
"""The part of a calibration file that is not the host (``hardware/calibration.py``)."""


def host_names() -> list[str]:
    """Built-in hosts, sorted."""
    return sorted(path.stem for path in (DATA / "hosts").glob("*.toml"))


def load_host(text: str) -> HostProfile:
    """The host that `text` describes: a built-in name, a ``.toml`` path, or a multiplier of a built-in host
    (``emerald-rapids-fast:1.5``; ``1.5`` alone multiplies ``default``).

    Raises PhantoraError for an unknown name or a wrong file, naming its line.
    """
    text = text.strip()
    name, _, multiplier = text.rpartition(":")
    factor = _number(multiplier)
    if factor is not None:
        if not FACTORS[0] <= factor <= FACTORS[1]:
            raise PhantoraError(f"host {text}: a multiplier lies between {FACTORS[0]:g} and {FACTORS[1]:g}")
        return _times(load_host(name or DEFAULT_HOST), factor, text)
    if text.endswith(".toml"):
        return _from_file(Path(text))
    path = DATA / "hosts" / f"{text.lower()}.toml"
    if not path.exists():
        raise PhantoraError(f"unknown host {text!r}; {known_names(text, host_names())}; else give {HOST_FORMS}")
    return _from_file(path)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _times(host: HostProfile, factor: float, name: str) -> HostProfile:
    sources = (f"{host.name} times {factor:g}",)
    return replace(host.slower(factor), name=name, spread=GIVEN_SPREAD, cpu="", sources=sources)


@cache
def _from_file(path: Path) -> HostProfile:
    """A file gives ``api_ns`` for every call, or ``base`` (a built-in host) and ``factor`` (over the reference host),
    and then only the costs that do not follow from them."""
    table, place = toml.read(path), toml.Place(path)
    table.pop(GPU_TABLE, None)
    base = table.pop("base", None)
    if base is not None:
        if not isinstance(base, str) or base.lower() not in host_names():
            raise PhantoraError(f"{place / 'base'} must be one of {', '.join(host_names())}, not {base!r}")
        if base == DEFAULT_HOST and table.get("measured") is True:
            base = REFERENCE_HOST  # `phantora profile host` up to 0.2 gave the reference host this name
        table["api_ns"] = _based(load_host(base), table, place)
        table.setdefault("cores_per_gpu", load_host(base).cores_per_gpu)
        if table.get("measured") is not True:
            table.setdefault("rank_spread", load_host(base).rank_spread)
    elif table.get("measured") is True and isinstance(table.get("api_ns"), dict):
        # An earlier version knew fewer calls: the others cost `factor` times what the reference host takes.
        table["api_ns"] = _based(load_host(REFERENCE_HOST), table, place)
    profile = toml.build(HostProfile, table, place)
    wanted = set(Api.names())
    missing, unknown = sorted(wanted - set(profile.api_ns)), sorted(set(profile.api_ns) - wanted)
    if missing or unknown:
        what = f"api_ns.{missing[0]} is missing" if missing else f"api_ns.{unknown[0]} is not a known call"
        raise PhantoraError(f"{path}: {what}; give each of {', '.join(Api.names())}, or base and factor")
    if not FACTORS[0] <= profile.factor <= FACTORS[1]:  # one without a base
        raise PhantoraError(f"{place / 'factor'} must be a number between {FACTORS[0]:g} and {FACTORS[1]:g}")
    if not 0 <= profile.rank_spread < 1:
        raise PhantoraError(f"{place / 'rank_spread'} must be a number from 0 to below 1")
    if not 1 <= profile.cores_per_gpu <= MOST_CORES:
        raise PhantoraError(f"{place / 'cores_per_gpu'} must be a number from 1 to {MOST_CORES:,}")
    for key, value in asdict(profile.jitter).items():
        least = SHORTEST_PACE_NS if key == "lasts_ns" else 0
        if not least <= value < 1e12:
            raise PhantoraError(f"{place / 'jitter' / key} must be a number from {least:g} to below 1e12")
    low, high = profile.spread
    if not 0 < low <= 1 <= high:
        raise PhantoraError(f"{place / 'spread'} must be [LOW, HIGH] with LOW at most 1 and HIGH at least 1")
    return profile


def _based(base: HostProfile, table: dict[str, Any], place: toml.Place) -> dict[str, Any]:
    factor, own = table.get("factor", 1.0), table.get("api_ns", {})
    if not isinstance(factor, (int, float)) or isinstance(factor, bool) or not FACTORS[0] <= factor <= FACTORS[1]:
        raise PhantoraError(f"{place / 'factor'} must be a number between {FACTORS[0]:g} and {FACTORS[1]:g}")
    if not isinstance(own, dict):
        raise PhantoraError(f"{place / 'api_ns'} must be a table: [api_ns]")
    return {**base.slower(factor / base.factor).api_ns, **own}


def to_toml(host: HostProfile) -> str:
    """The text of a host file: what differs from the reference host's costs times the factor, by more than rounding."""
    usual = load_host(REFERENCE_HOST).slower(host.factor).api_ns
    own = {name: ns for name, ns in host.api_ns.items() if abs(ns - usual[name]) > max(1, ns // 1000)}
    lines = [
        f"name = {json.dumps(host.name)}",
        f"cpu = {json.dumps(host.cpu)}",
        f"sources = {json.dumps(list(host.sources))}",
        f"base = {json.dumps(REFERENCE_HOST)}",
        f"factor = {host.factor}",
        f"spread = [{host.spread[0]}, {host.spread[1]}]",
        f"measured = {str(host.measured).lower()}",
        f"rank_spread = {host.rank_spread}",
        f"cores_per_gpu = {host.cores_per_gpu}",
        "",
        "[api_ns]",
        *(f"{name} = {ns}" for name, ns in own.items()),
        "",
        "[jitter]",
        *(f"{key} = {value}" for key, value in asdict(host.jitter).items()),
        "",
        "[probe_ns]",
        *(f"{json.dumps(name)} = {ns}" for name, ns in host.probe_ns.items()),
        "",
    ]
    return "\n".join(lines)
