"""Simulates a recorded run again, without its framework."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from phantora.errors import PhantoraError
from phantora.sim.config import SimulatorConfig
from phantora.sim.engine import library as native
from phantora.sim.noise import Noise
from phantora.sim.simulator import Simulator
from phantora.trace.recording import RECORD, Records
from phantora.trace.writer import LogWriter
from phantora.wire import layout
from phantora.wire.layout import opaque
from phantora.wire.session import Session

Powers = Mapping[int, native.PowerState | None]


class _Voice:
    """Feeds one rank's recording to its ring, as far as there is room."""

    def __init__(self, session: Session, rank: int, records: Iterable[Records]) -> None:
        offset = int(session.header["ring_offset"]) + rank * layout.RING_RECORDS * RECORD.itemsize
        self._ring = opaque(np.ndarray((layout.RING_RECORDS,), RECORD, buffer=session.area, offset=offset))
        self.rank = rank
        self._control = session.control[rank : rank + 1]
        self._rest = iter(records)
        self._records = np.empty(0, RECORD)
        self.done = False

    def feed(self) -> None:
        """Fills the ring if at least half of it is empty."""
        head, tail = int(self._control["head"][0]), int(self._control["tail"][0])
        room = layout.RING_RECORDS - (head - tail)
        if self.done or room < layout.RING_RECORDS // 2:
            return
        while room:
            if not len(self._records):
                following = next(self._rest, None)
                if following is None:
                    self.done = True
                    break
                self._records = following
            at = head % layout.RING_RECORDS
            count = min(room, len(self._records), layout.RING_RECORDS - at)
            self._ring[at : at + count] = opaque(self._records[:count])
            self._records = self._records[count:]
            head += count
            room -= count
        self._control["head"] = head


class Replayer(Simulator):
    """A simulator whose ranks are recordings: `records` by rank, `host_scale` is a factor on the recorded host time.
    `power`: from which state the power limiter of each rank's GPU goes on when its first step ends; None: its own.
    `noise`: the run is a sample with it."""

    def __init__(
        self,
        session: Session,
        log: LogWriter,
        config: SimulatorConfig,
        records: Mapping[int, Iterable[Records]],
        host_scale: float = 1,
        power: Powers | None = None,
        noise: Noise | None = None,
    ) -> None:
        super().__init__(session, log, config)
        self._engine.play(host_scale)
        for rank, state in (power or {}).items():
            self._engine.start_power(rank, state)
        if noise is not None:
            self._engine.set_noise(noise.of_engine())
            jitter, here = config.cluster.host.jitter, min(session.world_size, config.cluster.gpus_per_host)
            records = {
                rank: noise.of_host(rank, jitter, here, host_scale).records(own)
                for rank, own in sorted(records.items())
            }
        self._voices = [_Voice(session, rank, records.get(rank, ())) for rank in session.real]

    def _loop(self) -> None:
        while not self._stop.is_set():
            try:
                for voice in self._voices:
                    voice.feed()
            except (ValueError, OSError) as error:
                raise PhantoraError(f"the recording is damaged ({error}); run `phantora trace` again") from error
            reason = self._iterate(0, 0)
            if reason & native.DONE and not reason & native.PRICES and all(voice.done for voice in self._voices):
                return
            # Only ranks whose recording has it are asleep.
            if reason == native.IDLE and not self._end_killed() and not self._engine.release_sleepers([]):
                raise PhantoraError("deadlock of the recorded ranks:\n" + self._engine.diagnose().rstrip("\n"))

    def _end_killed(self) -> bool:
        """Ranks that run on where their recording ends were killed there. True if there was one."""
        voices = [voice for voice in self._voices if voice.done]
        killed = [voice.rank for voice in voices if self._engine.rank_state(voice.rank) == native.RUNS]
        for rank in killed:
            self._engine.rank_died(rank, 0)
        return bool(killed)
