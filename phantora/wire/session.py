"""The shared memory of one run: created by the simulator's process, mapped by every rank.

A ``memfd`` has no name in any file system: it needs no ``/dev/shm``, other users cannot open it
and it vanishes with the last process that has it open, however that process ends.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from phantora.errors import PhantoraError, cause_of
from phantora.wire import layout

_SYS_FUTEX = 202  # x86-64
_FUTEX_WAKE = 1
_PAGE = 4096
_SLOW = 1.5  # times the median other rank's time: then a rank decides for all


def _of_ranks(times: Mapping[int, float]) -> tuple[int, bool]:
    """The rank whose time stands for the run, and whether it is the slowest by far. Otherwise it is the first with a
    time: such times are measured, and the largest of many is one of noise."""
    slowest = max(times, key=lambda rank: times[rank])
    others = [time for rank, time in times.items() if rank != slowest]
    if others and times[slowest] > _SLOW * float(np.median(others)):
        return slowest, True
    return next((rank for rank, time in times.items() if time), slowest), False


def _round_up(size: int) -> int:
    return -(-size // _PAGE) * _PAGE


@dataclass(frozen=True)
class SessionConfig:
    """Number of ranks of a run, and settings of its runtime."""

    world_size: int
    ranks_per_host: int
    _: KW_ONLY
    host_mode: int = 0
    """A value of ``layout.HostMode``."""
    host_scale: float = 1.0
    null_mode: int = 0
    unsupported: int = 0
    """A value of ``layout.Unsupported``."""
    epoch_ns: int = 0
    """Real time at which virtual time begins."""
    real: Sequence[int] | None = None
    """Ranks that are processes; None: all."""
    gpus_per_host: int = 0
    """Where several processes share a GPU; 0: every rank has its own."""
    mps: bool = False
    """Kernels of processes that share a GPU run concurrently."""
    other_devices: Sequence[Mapping[str, Any]] = ()
    """Fields of ``layout.Device`` of further kinds of GPUs."""
    kinds: Sequence[int] = ()
    """Kind of each rank's GPU, if there are several: 0 is `device` of :meth:`Session.create`."""


@dataclass(kw_only=True)
class Session:
    """One mapped area. `header` and `control` are NumPy views of live memory."""

    fd: int
    world_size: int
    size: int
    area: mmap.mmap
    header: np.ndarray[Any, np.dtype[np.void]]
    control: np.ndarray[Any, np.dtype[np.void]]
    real: tuple[int, ...]
    """Ranks that are processes: all, unless the run is folded."""

    @property
    def path(self) -> str:
        """Path with which a process that did not inherit the descriptor opens it (same user only)."""
        return f"/proc/{os.getpid()}/fd/{self.fd}"

    def data(self) -> tuple[tuple[int, int, int], int | None]:
        """Times of the data that the program of a rank loads, ns: ``data_cpu`` and so on. It is the rank that waits
        longest for a batch, as :func:`_of_ranks`, and is named if it does so by far, or others load none."""
        names = ("data_cpu", "data_counted", "data_apart")
        found = {rank: tuple(int(self.control[name][rank]) for name in names) for rank in self.real}
        needed = {
            rank: (cpu if counted < 0 else apart + cpu - counted) / apart
            for rank, (cpu, counted, apart) in found.items()
            if apart
        }
        if not needed:
            return (0, -1, 0), None
        rank, slow = _of_ranks(needed)
        cpu, counted, apart = found[rank]
        return (cpu, counted, apart), rank if slow or len(needed) < len(found) else None

    def loader(self) -> dict[str, int]:
        """``data_batch`` and so on of the DataLoader that decides; empty without batches. ``rank`` if it is the
        slowest by far."""
        names = ("batch", "used", "workers", "starts")
        found = {rank: {name: int(self.control[f"data_{name}"][rank]) for name in names} for rank in self.real}
        made = {rank: own["batch"] / max(1, own["workers"]) for rank, own in found.items()}
        if not any(made.values()):
            return {}
        rank, slow = _of_ranks(made)
        return found[rank] | ({"rank": rank} if slow else {})

    def uncounted(self) -> int:
        """ns of this machine's CPU that no model has, for a ms of the clock, of a rank as :func:`_of_ranks`."""
        own = {rank: int(self.control["cpu_uncounted"][rank]) for rank in self.real}
        return own[_of_ranks(own)[0]]

    def host_memory(self) -> tuple[int, int]:
        """Most bytes of a host's memory that its ranks had, and the pinned ones among them. Ranks that are no
        processes have the mean of the host's others."""
        ranks, hosts = int(self.header["ranks_per_host"]), defaultdict[int, list[int]](list)
        for rank in self.real:
            hosts[rank // ranks].append(rank)
        found = [(0, 0)]
        for members in hosts.values():
            share = min(ranks, self.world_size) / len(members)
            sums = (round(share * int(self.control[name][members].sum())) for name in ("host_memory", "host_pinned"))
            found.append(tuple(sums))  # type: ignore[arg-type]
        return max(found)

    @property
    def address(self) -> int:
        """Address of the shared memory in this process."""
        return int(self.header.ctypes.data)

    @classmethod
    def create(
        cls,
        config: SessionConfig,
        device: Mapping[str, Any],
        api_ns: Mapping[str, int],
        workspaces: np.ndarray[Any, np.dtype[np.void]] | None = None,
    ) -> Session:
        """Makes the area for the ranks of `config`.

        `device` contains the fields of ``layout.Device``; `api_ns` costs in ns by member name of ``layout.Api``;
        `workspaces` is what :func:`phantora.wire.workspaces.pack` made. Raises PhantoraError when the machine has no
        memory left for it.
        """
        world_size, real = config.world_size, config.real
        control_offset = _round_up(layout.dtype(layout.Header).itemsize)
        ring_offset = control_offset + _round_up(world_size * layout.dtype(layout.Control).itemsize)
        ring_bytes = layout.RING_RECORDS * layout.dtype(layout.Record).itemsize
        reply_offset = ring_offset + world_size * ring_bytes
        reply_bytes = layout.REPLY_SLOTS * layout.dtype(layout.Reply).itemsize
        workspace_offset = reply_offset + _round_up(world_size * reply_bytes)
        if workspaces is None:
            workspaces = np.empty(0, layout.dtype(layout.Workspace))
        size = workspace_offset + _round_up(workspaces.nbytes)
        session = cls._mapped(size, world_size, control_offset, tuple(range(world_size) if real is None else real))
        area, header, control = session.area, session.header, session.control
        header["version"] = layout.WIRE_VERSION
        header["layout"] = layout.checksum()
        header["world_size"] = world_size
        header["ranks_per_host"] = config.ranks_per_host
        header["gpus_per_host"] = config.gpus_per_host
        header["mps"] = config.mps
        header["sim_pid"] = os.getpid()
        header["host_mode"] = config.host_mode
        header["host_scale"] = config.host_scale
        header["null_mode"] = config.null_mode
        header["unsupported"] = config.unsupported
        header["epoch_ns"] = config.epoch_ns
        header["size"] = size
        header["control_offset"] = control_offset
        header["ring_offset"] = ring_offset
        header["reply_offset"] = reply_offset
        header["workspace_offset"] = workspace_offset
        header["workspace_count"] = len(workspaces)
        area[workspace_offset : workspace_offset + workspaces.nbytes] = workspaces.tobytes()
        unknown = set(api_ns) - set(layout.Api.names())
        if unknown:
            raise PhantoraError(f"the host profile prices unknown calls: {', '.join(sorted(unknown))}")
        for index, name in enumerate(layout.Api.names()):
            header["api_ns"][index] = api_ns.get(name, 0)
        for kind, fields in enumerate((device, *config.other_devices)):
            for name, value in fields.items():
                header["devices"][name][kind] = value
        if config.kinds:
            control["gpu_kind"] = config.kinds
        if real is not None:
            control["folded"] = 1
            control["folded"][list(real)] = 0
            header["folded"] = world_size - len(real)
        header["magic"] = layout.MAGIC
        return session

    def shared_start(self) -> bytes:
        """What a session on another node begins with (:meth:`like`): all but rings and replies."""
        rings, workspaces = int(self.header["ring_offset"]), int(self.header["workspace_offset"])
        return bytes(self.area[:rings]) + bytes(self.area[workspaces : self.size])

    @classmethod
    def like(cls, start: bytes, real: Sequence[int]) -> Session:
        """The area on a node of whose ranks `real` are processes, from :meth:`shared_start`. Raises PhantoraError when
        the machine has no memory left for it."""
        first = np.frombuffer(start, layout.dtype(layout.Header), 1)[0]
        world_size, rings, workspaces = (int(first[name]) for name in ("world_size", "ring_offset", "workspace_offset"))
        session = cls._mapped(int(first["size"]), world_size, int(first["control_offset"]), tuple(real))
        session.area[:rings] = start[:rings]
        session.area[workspaces:] = start[rings:]
        session.header["sim_pid"] = os.getpid()
        session.header["sim_state"] = layout.SimState.RUNNING
        return session

    @classmethod
    def _mapped(cls, size: int, world_size: int, control_offset: int, real: tuple[int, ...]) -> Session:
        fd = os.memfd_create("phantora", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, size)
            area = mmap.mmap(fd, size)
        except OSError as error:
            os.close(fd)
            raise PhantoraError(
                f"no memory for the shared area of {world_size} ranks ({size >> 20} MiB): {cause_of(error)}; "
                "free memory or simulate fewer ranks"
            ) from error
        return cls(
            fd=fd,
            world_size=world_size,
            size=size,
            area=area,
            header=np.ndarray((), layout.dtype(layout.Header), buffer=area),
            control=np.ndarray((world_size,), layout.dtype(layout.Control), buffer=area, offset=control_offset),
            real=real,
        )

    def close_place(self, rank: int) -> bool:
        """The run no longer waits for a process to become `rank`; False if one has. One that comes later may still."""
        if int(self.control["pid"][rank]):
            return False
        self.control["pid"][rank] = -1
        self.control["processes"][rank] += 1
        return True

    def ring(self) -> None:
        """Wakes the simulator."""
        self._ring("doorbell")

    def _ring(self, bell: str) -> None:
        self.header[bell] = (int(self.header[bell]) + 1) % (1 << 32)  # numpy 1 casts no sum to 32 bits by itself
        fields = layout.dtype(layout.Header).fields
        assert fields is not None
        self._wake([int(fields[bell][1])])

    def _wake(self, offsets: list[int]) -> None:
        libc = ctypes.CDLL(None)
        for offset in offsets:
            libc.syscall(_SYS_FUTEX, ctypes.c_void_p(self.address + offset), _FUTEX_WAKE, 1 << 30, None, None, 0)

    def abort(self) -> None:
        """Tells every rank to end at its next call, and wakes those that wait."""
        self.header["sim_state"] = layout.SimState.ABORTED
        reply = layout.dtype(layout.Reply).itemsize
        slots = layout.REPLY_SLOTS
        places = [rank * slots + slot for rank in self.real for slot in range(slots)]
        futexes = [int(self.header["reply_offset"]) + place * reply for place in places]
        control = layout.dtype(layout.Control)
        tail = control.fields["tail_futex"][1] if control.fields else 0
        futexes += [int(self.header["control_offset"]) + r * control.itemsize + tail for r in self.real]
        self._wake(futexes)
        self._ring("relay_bell")

    def close(self) -> None:
        """Closes the descriptor; the mapping goes when the last view of it does."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
