"""The connection to a Ray cluster."""

from __future__ import annotations

import socket
from typing import Any

from phantora.errors import PhantoraError

LOCAL = "local"
_STARTS = 3  # of a local cluster: on a busy machine Ray's own processes may start too late for it, the next time sooner
_CONNECT_SECONDS = 5.0
_STORE_BYTES = 100 << 20  # of shared memory for Ray's objects: results are small


def join(address: str, working_dir: str = "") -> Any:
    """Ray, connected to a cluster: `address` as ``ray.init`` takes it (``auto``, ``HOST:PORT``,
    ``ray://HOST:10001``), or ``local`` for a cluster that is begun on this machine. Raises PhantoraError."""
    ray = _ray()
    local = address == LOCAL
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if local:
        options |= {"include_dashboard": False, "object_store_memory": _STORE_BYTES}
    if working_dir:
        options["runtime_env"] = {"working_dir": working_dir}
    if not local:
        _check_reached(address)
    for left in reversed(range(_STARTS if local else 1)):
        try:
            ray.init(None if local else address, **options)
            return ray
        except Exception as error:
            ray.shutdown()
            if left:
                continue
            why = (str(error).splitlines() or [type(error).__name__])[0]
            remedy = (
                "Ray gives its processes 15 s to start: try when this machine is less busy, or leave out --ray"
                if local
                else "start its nodes with `ray start`, and give the head's HOST:PORT"
            )
            raise PhantoraError(f"--ray {address}: no cluster of Ray answers ({why}); {remedy}") from error
    raise AssertionError


def _check_reached(address: str) -> None:
    """Ray itself looks for a cluster for minutes. Raises PhantoraError where nothing listens at HOST:PORT."""
    host, _, port = address.rpartition(":")
    if not port.isdigit() or "/" in host:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except OSError as error:
        raise PhantoraError(
            f"--ray {address}: no cluster of Ray answers ({error}); start its nodes with `ray start`, and give the "
            "head's HOST:PORT"
        ) from error


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise PhantoraError("--ray needs Ray: pip install 'phantora[ray]'") from None
    except Exception as error:  # its own imports fail where what they look for is half installed
        why = f"{type(error).__name__}: {error}"
        raise PhantoraError(
            f"--ray: Ray cannot be imported ({why}); repair or remove the package that it names"
        ) from error
    return ray
