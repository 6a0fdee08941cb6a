"""Dumps of NCCL's flight recorder, one file per rank (``TORCH_FR_BUFFER_SIZE``, ``TORCH_FR_DUMP_TEMP_FILE``)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from phantora.dumps.frames import Frame, frames_of, own_line
from phantora.dumps.plain_pickle import load
from phantora.errors import PhantoraError

SCHEDULED, STARTED, COMPLETED = "scheduled", "started", "completed"
_NUMBER = re.compile(r"(\d+)(?!.*\d)")
_PEER = re.compile(r"(\d+)(->|<-)(\d+)")


@dataclass(frozen=True, kw_only=True)
class Call:
    """A collective, a send or a receive of one rank."""

    record: int
    """Number among all calls of the rank."""
    group: str
    """Name of the process group."""
    sequence: int
    """Number among the group's collectives, or among its sends and receives."""
    name: str
    """``all_reduce``, ``send 0->1``."""
    point_to_point: bool
    input_sizes: tuple[tuple[int, ...], ...]
    output_sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    state: str
    """``scheduled``, ``started`` or ``completed``."""
    created_ns: int
    """Time of the call on the rank's clock."""
    timeout_ms: int
    frames: tuple[Frame, ...]
    """Innermost first."""

    @property
    def completed(self) -> bool:
        """True if NCCL's kernel has ended."""
        return self.state == COMPLETED

    @property
    def operation(self) -> str:
        """The name without its peers: ``send``."""
        return self.name.partition(" ")[0]

    @property
    def peers(self) -> tuple[int, int] | None:
        """Sender and receiver, as ranks of the group, of a send or a receive."""
        match = _PEER.search(self.name)
        if match is None:
            return None
        one, arrow, other = int(match[1]), match[2], int(match[3])
        return (one, other) if arrow == "->" else (other, one)

    @property
    def what(self) -> str:
        """``all_reduce of 1024 float``."""
        sizes = self.input_sizes or self.output_sizes
        shape = " + ".join("x".join(map(str, size)) or "1" for size in sizes[:2]) + (" ..." if len(sizes) > 2 else "")
        dtype = self.dtypes[0].lower() if self.dtypes else ""
        return f"{self.operation} of {shape} {dtype}".rstrip()

    @cached_property
    def place(self) -> str:
        """The innermost line of the user's own code, ``train.py:41``; "" without a stack."""
        return str(own_line(self.frames) or "")


@dataclass(frozen=True, kw_only=True)
class Dump:
    """The dump of one rank."""

    rank: int
    path: str
    version: str
    groups: Mapping[str, tuple[int, ...]]
    """Members of each process group, as global ranks."""
    descriptions: Mapping[str, str]
    calls: tuple[Call, ...]
    """In the order of their calls; the recorder keeps the last ones only."""

    @cached_property
    def blocked(self) -> Call | None:
        """The first call that has not completed: what the rank's GPU waits for."""
        return next((call for call in self.calls if not call.completed), None)


def is_dump(path: str) -> bool:
    """True if `path` has the name of a dump: ``nccl_trace_rank_3``, ``comm_lib_trace_rank_3``."""
    return "trace_rank_" in Path(path).name


def read_dumps(paths: Sequence[str]) -> list[Dump]:
    """The dumps, by rank. The rank is the last number of a file's name.

    Raises PhantoraError for files that are no dumps and for two of one rank.
    """
    found: dict[int, Dump] = {}
    for path in paths:
        dump = read_dump(path)
        if dump.rank in found:
            raise PhantoraError(f"{path} and {found[dump.rank].path} are both of rank {dump.rank}, by their names")
        found[dump.rank] = dump
    return [found[rank] for rank in sorted(found)]


def read_dump(path: str) -> Dump:
    """The dump in the file at `path`. Raises PhantoraError."""
    match = _NUMBER.search(Path(path).name)
    if match is None:
        raise PhantoraError(f"{path}: the name of a dump ends with its rank, as nccl_trace_rank_3 does")
    value = load(path)
    try:
        return _dump(int(match[1]), path, value)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise PhantoraError(
            f"{path} is no dump of NCCL's flight recorder: {type(error).__name__} {error}; a job writes one when a "
            "collective times out, with TORCH_FR_BUFFER_SIZE=2000 in its environment"
        ) from error


def _dump(rank: int, path: str, value: Any) -> Dump:
    config = value["pg_config"]
    groups = {str(name): _ranks(one["ranks"]) for name, one in config.items()}
    descriptions = {str(name): str(one.get("desc", "")) for name, one in config.items()}
    calls = tuple(sorted((_call(entry) for entry in value.get("entries", ())), key=lambda call: call.record))
    return Dump(
        rank=rank, path=path, version=str(value["version"]), groups=groups, descriptions=descriptions, calls=calls
    )


def _ranks(text: Any) -> tuple[int, ...]:
    """Reads ``[0, 1]``."""
    return tuple(int(number) for number in re.findall(r"\d+", str(text)))


def _call(entry: Any) -> Call:
    pairwise = bool(entry.get("is_p2p", False))
    return Call(
        record=int(entry["record_id"]),
        group=str(entry["process_group"][0]),
        sequence=int(entry["p2p_seq_id" if pairwise else "collective_seq_id"]),
        name=str(entry["profiling_name"]).removeprefix("nccl:"),
        point_to_point=pairwise,
        input_sizes=_sizes(entry.get("input_sizes", ())),
        output_sizes=_sizes(entry.get("output_sizes", ())),
        dtypes=tuple(map(str, entry.get("input_dtypes", ()))),
        state=str(entry["state"]),
        created_ns=int(entry.get("time_created_ns") or 0),
        timeout_ms=int(entry.get("timeout_ms") or 0),
        frames=frames_of(entry.get("frames") or ()),
    )


def _sizes(value: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(extent) for extent in size) for size in value)
