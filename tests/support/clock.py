"""A rank's clock without a rank."""

from __future__ import annotations

from phantora.rank.clock import Poll, Runtime


class Clock:
    """Costs per GiB are 1 ns a byte, others nothing."""

    def __init__(self) -> None:
        self.time = 0
        self.held = 0

    def advance(self, ns: int) -> None:
        self.time += max(ns, 0)

    def hold(self, size: int, pinned: bool) -> None:
        self.held += size

    def runtime(self) -> Runtime:
        move = self.advance
        return Runtime(
            connected=lambda: True,
            null_mode=lambda: False,
            moves_clock=lambda: True,
            now=lambda: self.time,
            advance=move,
            sleep=move,
            bytes_ns=lambda _, size: size,
            times_ns=lambda _, times: 0,
            contend=lambda *stretches: None,
            apart_begin=lambda charged: None,
            apart_end=lambda: 0,
            apart_from=lambda at, length: None,
            rivals=lambda ns, millionths: None,
            poll=lambda ns, clocks, threads: Poll(False, 0, (0, 0)),
            delayed=lambda threads: (0, 0),
            asking=lambda: False,
            hold=self.hold,
            data=lambda *times: None,
            loader=lambda batch, used, workers, starts: None,
            follows=lambda: 0,
            latest=lambda: self.time,
            reach=lambda time: None,
        )
