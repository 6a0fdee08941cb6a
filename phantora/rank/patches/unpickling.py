"""Pickled objects that read as zeros or as nothing are refused by name, with the remedy.

They were too large for what NCCL's stub carries; or nothing is simulated, and then other ranks send nothing.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pickle import UnpicklingError
from types import ModuleType
from typing import Any

from phantora.errors import PhantoraError
from phantora.rank.importhook import on_import
from phantora.rank.patch import Patch, Rank, When

_READERS = {
    "torch.distributed.distributed_c10d": "_tensor_to_object",
    "torch.distributed.optim.zero_redundancy_optimizer": "_broadcast_object",
}
"""Module -> the function in which a rank reads an object that has come."""


def install(_: Rank) -> None:
    """Makes these functions refuse such objects, as soon as their modules are imported."""

    def meet(module: ModuleType) -> None:
        name = _READERS[module.__name__]
        setattr(module, name, _checked(getattr(module, name)))

    on_import(_READERS, meet)


def _checked(read: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(read)
    def reads(*given: Any, **options: Any) -> Any:
        try:
            return read(*given, **options)
        except EOFError as error:
            if not ctypes.CDLL(None).ph_null_mode():
                raise
            raise PhantoraError(
                "a pickled object of another rank did not come: without simulation (--null, and `profile host` with a "
                "script) ranks receive only what they send themselves; run the script with one rank, or profile the "
                "host without it"
            ) from error
        except UnpicklingError as error:
            if "\\x00" not in str(error):
                raise
            raise PhantoraError(
                "a pickled object came as zeros: NCCL carries 64 MiB of pickled objects at most (of an all-gather and "
                "a gather, all members' together), larger ones are not simulated; exchange them through a group of "
                "backend gloo (group=torch.distributed.new_group(backend='gloo'))"
            ) from error

    return reads


PATCH = Patch("unpickling", When.AFTER_TORCH, install)
