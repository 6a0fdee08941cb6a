"""A rank whose script starts its ranks itself (``torch.multiprocessing.spawn``) ends there: the run begins again with
the script as a command (``phantora.runs.local``).

A script that torchrun can start, too, chooses by its arguments, so its text does not show which way it takes.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
from typing import Any

from phantora.errors import Reason
from phantora.rank import failures
from phantora.rank.importhook import on_import
from phantora.rank.patch import Patch, Rank, When
from phantora.spec import rank_spec


def _meet(module: Any) -> None:
    original = module.start_processes

    @functools.wraps(original)
    def start_processes(fn: Any, args: Any = (), nprocs: int = 1, *more: Any, **named: Any) -> Any:
        if rank_spec().per_gpu and nprocs == int(os.environ["LOCAL_WORLD_SIZE"]) and not _is_rank():
            failures.note_here("it starts its ranks itself", Reason.STARTS_RANKS)
            sys.stdout.flush()
            os._exit(1)
        return original(fn, args, nprocs, *more, **named)

    module.start_processes = sys.modules["torch.multiprocessing"].start_processes = start_processes  # type: ignore[attr-defined]


def _is_rank() -> bool:
    """True if this process works as a rank, on its GPU or in a group, or was started by one."""
    import torch

    child = multiprocessing.parent_process() is not None
    return child or torch.cuda.is_initialized() or torch.distributed.is_initialized()  # type: ignore[no-untyped-call]


def install(rank: Rank) -> None:
    """Watches ``torch.multiprocessing``."""
    on_import(("torch.multiprocessing.spawn",), _meet)


PATCH = Patch("own_ranks", When.AFTER_TORCH, install)
