"""What-if options: slow links, slow GPUs, other users of the network, faults. Parsed here, for every command."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from phantora.errors import PhantoraError
from phantora.units import RATE, SHARE, TIME

ROUND_TRIP_S = 10e-6
"""Between two NICs of a cluster."""
PACKET_BYTES = 4096
"""Largest payload of a packet of RDMA."""
_DISK = re.compile(r"(?:(h[^.>]+)\.)?disk")
"""All disks, or those of hosts."""


@dataclass(frozen=True)
class Degrade:
    """Links whose names match the glob `links` carry `factor` of their bandwidth, from `time_ns` on, or from when rank
    0's GPU has done `optimizer_steps` steps (0: the time counts). Steps of the loop are found when a run is over."""

    links: str
    factor: float
    time_ns: int = 0
    optimizer_steps: int = 0


@dataclass(frozen=True)
class Straggler:
    """Kernels of `rank` take `factor` times as long."""

    rank: int
    factor: float


@dataclass(frozen=True)
class Background:
    """Traffic that is not ours, without end: up to `rate` bytes/s from GPU `src` to GPU `dst`."""

    src: int
    dst: int
    rate: float


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something that is slow for a time: links whose names match the glob `links`, the disks of the hosts that match
    `disks`, or the GPU of `rank`."""

    text: str
    """As the option names it: ``rank=3:1.5``."""
    start_ns: int
    end_ns: int
    links: str = ""
    disks: str = ""
    factor: float = 1.0
    """Share of the bandwidth of links or disks that is left."""
    loss: float = 0.0
    """Share of their packets that are lost."""
    rank: int | None = None
    slower: float = 1.0
    """Factor on the durations of kernels."""

    def active(self, time: int) -> bool:
        """True at `time` (ns)."""
        return self.start_ns <= time < self.end_ns

    def share_of(self, bandwidth: float) -> float:
        """Share of a link's `bandwidth` (bytes/s) that is left.

        A NIC that loses a packet sends again all that it has sent since: of W packets in flight go-back-N delivers
        (1 - p) / (1 - p + p W) (Bertsekas and Gallager, Data Networks, 1992, section 2.4)."""
        window = max(1.0, bandwidth * ROUND_TRIP_S / PACKET_BYTES)
        return self.factor * (1 - self.loss) / (1 - self.loss + self.loss * window)


@dataclass(frozen=True)
class WhatIf:
    """Changes to a cluster that a run is simulated with. Its fields are JSON types and lists of such."""

    degrade: tuple[Degrade, ...] = ()
    straggler: tuple[Straggler, ...] = ()
    background: tuple[Background, ...] = ()
    fault: tuple[Fault, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.degrade or self.straggler or self.background or self.fault)


def parse_what_if(
    degrade: Sequence[str] = (),
    straggler: Sequence[str] = (),
    background: Sequence[str] = (),
    fault: Sequence[str] = (),
) -> WhatIf:
    """The texts of the options --degrade, --straggler, --background and --fault. Raises PhantoraError."""
    return WhatIf(
        tuple(map(_degrade, degrade)),
        tuple(map(_straggler, straggler)),
        tuple(map(_background, background)),
        tuple(map(_fault, fault)),
    )


def _degrade(text: str) -> Degrade:
    links, equals, value = text.rpartition("=")
    amount, at, moment = value.partition("@")
    factor = _number(amount)
    if not equals or not links or factor is None or not 0 < factor <= 1 or bool(at) != bool(moment):
        raise PhantoraError(
            f"--degrade {text}: write LINK=FACTOR, LINK=FACTOR@TIME or LINK=FACTOR@optimizerN; LINK is a name or a "
            "glob (`phantora cluster show` lists them), FACTOR above 0 and at most 1, for example "
            "'h0.nic0>*=0.5@optimizer2'. A link that carries nothing hangs the job: give it a small factor"
        )
    if not moment:
        return Degrade(links, factor)
    if match := re.fullmatch(r"optimizer([1-9]\d*)", moment):
        return Degrade(links, factor, optimizer_steps=int(match[1]))
    return Degrade(links, factor, time_ns=_time(moment, f"--degrade {text}"))


def _straggler(text: str) -> Straggler:
    match = re.fullmatch(r"rank=(\d+):([^:]+)", text)
    factor = _number(match[2]) if match else None
    if not match or factor is None or factor <= 0:
        raise PhantoraError(
            f"--straggler {text}: write rank=RANK:FACTOR, as rank=3:1.2 for kernels that take 1.2 times as long"
        )
    return Straggler(int(match[1]), factor)


def _background(text: str) -> Background:
    match = re.fullmatch(r"(\d+)->(\d+)=(.+)", text)
    rate = RATE.read(match[3]) if match else None
    if not match or not rate:
        raise PhantoraError(
            f"--background {text}: write SRC->DST=RATE with two GPUs of the cluster, counted host by host, and a "
            "rate such as 10GB/s or 80Gb/s; quote it for the shell: '0->8=10GB/s'"
        )
    return Background(int(match[1]), int(match[2]), rate)


def _fault(text: str) -> Fault:
    start, _, rest = text.partition(",")
    lasts, _, what = rest.partition(",")
    begin, length = TIME.read(start), TIME.read(lasts)
    name, _, amount = what.rpartition("=")
    given: dict[str, Any] = {}
    if name == "rank":
        rank, _, times = amount.partition(":")
        slower = _number(times)
        given = {"rank": int(rank), "slower": slower} if rank.isdigit() and slower and slower > 0 else {}
    elif name and amount.startswith("loss:"):
        loss = SHARE.read(amount.removeprefix("loss:"))
        given = {"links": name, "loss": loss} if loss is not None and 0 < loss < 1 else {}
    elif name:
        factor = _number(amount)
        disk = _DISK.fullmatch(name)
        of = {"disks": disk[1] or "*"} if disk else {"links": name}
        given = {**of, "factor": factor} if factor is not None and 0 < factor <= 1 else {}
    if begin is None or not length or not given:
        raise PhantoraError(
            f"--fault {text}: write TIME,DURATION,WHAT, where WHAT is rank=RANK:FACTOR (kernels take FACTOR times as "
            "long), LINK=FACTOR (links of this name or glob keep FACTOR of their bandwidth), LINK=loss:SHARE (they "
            "lose packets) or disk=FACTOR (disks keep FACTOR of their rate; h0.disk: that of host 0), for example "
            "250ms,100ms,rank=3:1.5 or '2s,500ms,h0.nic0>*=loss:0.1%'"
        )
    return Fault(text=what, start_ns=round(begin), end_ns=round(begin + length), **given)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _time(text: str, where: str) -> int:
    if (value := TIME.read(text)) is None:
        raise PhantoraError(
            f"{where}: {text!r} is no time; write a time of the run such as 250ms, or optimizerN for when rank 0's GPU "
            "has done N optimizer steps"
        )
    return round(value)
