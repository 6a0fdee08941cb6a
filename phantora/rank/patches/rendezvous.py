"""Lets rank 0 serve a TCPStore at an address of the script's own (``init_method="tcp://..."``, another MASTER_PORT).

Ranks have TORCHELASTIC_USE_AGENT_STORE, as under torchrun. With it, torch expects that every store is already served,
which is true of the run's own store only.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from phantora.rank.importhook import on_import
from phantora.rank.patch import Patch, Rank, When

_MODULE = "torch.distributed.rendezvous"
_VARIABLE = "TORCHELASTIC_USE_AGENT_STORE"


def install(rank: Rank) -> None:
    """Leaves the store that the run serves as it is. Without one a launcher's agent serves the stores."""
    served_port = rank.served_port
    if served_port is None:
        return

    def wrap(module: ModuleType) -> None:
        create = module._create_c10d_store

        def create_store(hostname: str, port: int, *args: Any, **kwargs: Any) -> Any:
            if str(port) == served_port:  # first: a look at the environment would be charged as the script's own work
                return create(hostname, port, *args, **kwargs)
            before = os.environ.get(_VARIABLE)
            if before is None:
                return create(hostname, port, *args, **kwargs)
            os.environ[_VARIABLE] = "False"
            try:
                return create(hostname, port, *args, **kwargs)
            finally:
                os.environ[_VARIABLE] = before

        module._create_c10d_store = create_store  # type: ignore[attr-defined]

    on_import((_MODULE,), wrap)


PATCH = Patch("rendezvous", When.IN_RANK, install)
