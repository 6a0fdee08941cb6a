"""Changes to torch.distributed in a rank of a folded run (docs/scale.md).

NCCL hears from torch only how many ranks a communicator has. The stub must know which, so every process group of
torch.distributed gets the list of its ranks as the ``netName`` of its NCCL configuration (``stub/nccl/fold.c``).
"""

from __future__ import annotations

import copy
import inspect
import json
import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from types import ModuleType
from typing import Any

from phantora.errors import PhantoraError
from phantora.fold.ranges import format_ranks, parse_ranks
from phantora.rank.fold import chunks, device_mesh, gloo, pieces
from phantora.rank.importhook import on_import
from phantora.rank.patch import Patch, Rank, When
from phantora.spec import rank_spec

_MODULE = "torch.distributed.distributed_c10d"
_PREFIX = "phantora:"
_PAD = 256
_PATIENCE = timedelta(days=7)
"""Timeout of torch's watchdog, which reads the real clock: a step of thousands of GPUs takes minutes here. The
simulator finds hangs."""
_SWITCH_S = 0.05
"""Interval at which a thread that wants the interpreter tests whether it is free. The owner may wait for minutes, and
many ranks have such threads (tqdm's monitor): at Python's own 5 ms each takes half a percent of a core."""


# One unique id for a communicator of any size: with more, folded ranks would have to give some of them.
ENVIRONMENT = {"TORCH_NCCL_RANKS_PER_ROOT": str(1 << 30)}
"""More variables of a rank of a folded run."""


def install(_: Rank) -> None:
    """Changes the process groups of a rank of a folded run."""
    if not rank_spec().processes:
        return
    world_size = int(os.environ["WORLD_SIZE"])
    real = frozenset(parse_ranks(rank_spec().processes))
    on_import((_MODULE,), lambda module: _wrap(module, world_size, real))
    sys.setswitchinterval(_SWITCH_S)
    if seen := rank_spec().groups:  # a file that gets all groups
        chunks.install(seen)
    else:
        device_mesh.install(world_size)


def processes() -> frozenset[int] | None:
    """The ranks that are processes; None where all are."""
    text = rank_spec().processes
    return frozenset(parse_ranks(text)) if text else None


def require_experts(ranks: Sequence[int]) -> None:
    """Refuses a group of ranks that share unequally loaded experts if a member is not a process: all wait for the most
    loaded rank, which no process represents. Raises PhantoraError."""
    missing = sorted(set(ranks) - (processes() or set(ranks)))
    if missing:
        raise PhantoraError(
            f"ranks {format_ranks(ranks)} share experts that --moe-routing loads unequally, and rank {missing[0]} is "
            "folded, so its load is unknown; expand the axis of experts (ep=SIZE in --fold, or NAME=SIZE:all), name "
            "all these ranks in --real-ranks, route tokens evenly, or use --fold off"
        )


def _wrap(c10d: ModuleType, world_size: int, processes: frozenset[int]) -> None:
    real: Any = c10d.ProcessGroupNCCL

    class Kind(type(real)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: Any) -> bool:  # of parts of a group, which C++ makes
            return isinstance(instance, real)

    class ProcessGroupNCCL(real, metaclass=Kind):  # type: ignore[misc]
        def __init__(self, store: Any, rank: int, size: int, options: Any = None, **more: Any) -> None:
            options = real.Options() if options is None else options
            if options.config.net_name:  # given to more than one group
                options = copy.deepcopy(options)
            ranks = list(options.global_ranks_in_group) or list(range(world_size))
            options.config.net_name = _PREFIX + format_ranks(ranks)
            options._timeout = _PATIENCE
            if ranks[0] not in processes:
                raise PhantoraError(
                    f"the process group of ranks {format_ranks(ranks)} begins with a folded rank: the axes of --fold "
                    "are not those of the script's process groups; give the axes of all its meshes, or --fold off"
                )
            super().__init__(store, rank, size, options, **more)

    c10d.ProcessGroupNCCL = ProcessGroupNCCL  # type: ignore[attr-defined]
    c10d._set_pg_timeout = lambda timeout, group=None: None  # type: ignore[attr-defined]
    _name_parts(c10d)
    if groups := rank_spec().groups:
        _note_groups(c10d, groups)
    if path := rank_spec().pieces:
        pieces.install(c10d, path)
    if hasattr(c10d, "ProcessGroupGloo"):
        gloo.install(c10d, processes)
    _pad_objects(c10d)
    _refuse_pairs(c10d, processes)


def _name_parts(c10d: ModuleType) -> None:
    """Refuses parts of a group, which torch has NCCL split."""
    split = getattr(c10d, "split_group", None)
    if split is None:  # before torch 2.5
        return
    signature = inspect.signature(split)

    def split_group(*arguments: Any, **more: Any) -> Any:
        import torch

        given = signature.bind(*arguments, **more)
        given.apply_defaults()
        asked = given.arguments
        parent = asked["parent_pg"] or c10d._get_default_group()
        mine = next((part for part in asked["split_ranks"] if parent.rank() in part), None)
        if mine is not None:
            options = asked["pg_options"] or parent._get_backend(torch.device("cuda")).options
            asked["pg_options"] = copy.deepcopy(options)
            ranks = [c10d.get_global_rank(parent, rank) for rank in sorted(mine)]
            asked["pg_options"].config.net_name = _PREFIX + format_ranks(ranks)
            if groups := rank_spec().groups:
                note_group(groups, ranks, asked["group_desc"])
        return split(*given.args, **given.kwargs)

    for name in (c10d.__name__, "torch.distributed", "torch.distributed.device_mesh"):
        if getattr(sys.modules.get(name), "split_group", None) is split:
            sys.modules[name].split_group = split_group  # type: ignore[attr-defined]


def _note_groups(c10d: ModuleType, path: str) -> None:
    make = c10d._new_process_group_helper
    signature = inspect.signature(make)

    def noted(*arguments: Any, **more: Any) -> Any:
        given = signature.bind(*arguments, **more).arguments
        note_group(path, given["global_ranks_in_group"], given.get("group_desc"))
        return make(*arguments, **more)

    c10d._new_process_group_helper = noted  # type: ignore[attr-defined]


def note_group(path: str, ranks: Sequence[int], name: str | None) -> None:
    """Appends a process group to a file."""
    with open(path, "a") as file:
        file.write(json.dumps([list(ranks), name or ""]) + "\n")


def _refuse_pairs(c10d: ModuleType, processes: frozenset[int]) -> None:
    """A send or a receive outside of a batch makes a communicator of two ranks, which both must join."""
    group: Any = c10d.ProcessGroup
    batches: dict[str, int] = {}

    def counted(call: Any, change: int) -> Any:
        def count(self: Any, *arguments: Any) -> Any:
            batches[self.group_name] = batches.get(self.group_name, 0) + change
            return call(self, *arguments)

        return count

    def checked(call: Any, what: str) -> Any:
        def check(self: Any, tensors: Any, peer: int, tag: int) -> Any:
            if not batches.get(self.group_name) and self.bound_device_id is None:
                rank = c10d.get_global_rank(self, peer)
                if rank not in processes:
                    raise PhantoraError(
                        f"torch.distributed.{what} rank {rank}, which is folded, makes a communicator of two ranks: "
                        "use batch_isend_irecv, expand the axis (NAME=SIZE:all in --fold), or use --fold off"
                    )
            return call(self, tensors, peer, tag)

        return check

    group._start_coalescing = counted(group._start_coalescing, 1)
    group._end_coalescing = counted(group._end_coalescing, -1)
    group.send = checked(group.send, "send to")
    group.recv = checked(group.recv, "recv from")


def _pad_objects(c10d: ModuleType) -> None:
    """Pickled objects are as long as each other although the integers in them are not: what follows the end of a
    pickle is not read."""
    pickler: Any = c10d._pickler

    class Pickler(pickler):  # type: ignore[misc]
        def __init__(self, file: Any, *arguments: Any, **more: Any) -> None:
            super().__init__(file, *arguments, **more)
            self._file = file

        def dump(self, obj: Any) -> None:
            super().dump(obj)
            self._file.write(b"\0" * (-self._file.tell() % _PAD))

    c10d._pickler = Pickler  # type: ignore[attr-defined]


PATCH = Patch("folded groups", When.IN_RANK, install)
