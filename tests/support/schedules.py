"""Random interleavings of what the ranks of a recorded run said: the engine must make the same log of each."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from phantora.hardware import Cluster, load_cluster
from phantora.runs.assemble import create_session
from phantora.runs.setup import Setup
from phantora.sim.config import SimulatorConfig
from phantora.sim.engine import library as native
from phantora.sim.replay import Replayer
from phantora.spec import RunSpec
from phantora.trace.reader import open_log
from phantora.trace.recording import RECORD, Records, decode
from phantora.trace.schema import RunMetadata, Tables
from phantora.trace.writer import LogWriter
from phantora.wire import layout
from phantora.wire.session import Session


@dataclass(frozen=True)
class Recording:
    """Records of every rank, with their places."""

    cluster: Cluster
    said: dict[int, Records]

    @classmethod
    def of(cls, log: Path) -> Recording:
        """Recording of a run of `phantora trace`."""
        opened = open_log(log)
        said: dict[int, list[Records]] = {}
        for chunk in opened.recording():
            said.setdefault(chunk.rank, []).append(decode(chunk))
        return cls(load_cluster(opened.metadata.cluster), {rank: np.concatenate(parts) for rank, parts in said.items()})

    @property
    def records(self) -> int:
        """Number of records of all ranks."""
        return sum(map(len, self.said.values()))


class _Voice:
    """One rank's records, as far as they have been given to the engine."""

    def __init__(self, session: Session, rank: int, records: Records) -> None:
        offset = int(session.header["ring_offset"]) + rank * layout.RING_RECORDS * RECORD.itemsize
        self._ring: Records = np.ndarray((layout.RING_RECORDS,), RECORD, buffer=session.area, offset=offset)
        self._control = session.control[rank : rank + 1]
        self._records = records
        self._given = 0

    @property
    def done(self) -> bool:
        return self._given == len(self._records)

    @property
    def full(self) -> bool:
        """Could the engine not be given more?"""
        return self.done or self._room() == 0

    def _room(self) -> int:
        return layout.RING_RECORDS - int(self._control["head"][0] - self._control["tail"][0])

    def give(self, count: int) -> None:
        """Up to that many more."""
        count = min(count, self._room(), len(self._records) - self._given)
        places = np.arange(self._given, self._given + count) % layout.RING_RECORDS
        self._ring[places] = self._records[self._given : self._given + count]
        self._given += count
        self._control["head"] = self._given


class Shuffled(Replayer):
    """Gives the engine pieces of random sizes of the ranks in random order, and takes its rows at random moments."""

    def __init__(
        self,
        session: Session,
        log: LogWriter,
        config: SimulatorConfig,
        said: dict[int, Records],
        chooser: random.Random,
    ) -> None:
        super().__init__(session, log, config, {})
        self._said = [_Voice(session, rank, records) for rank, records in said.items()]
        self._chooser = chooser

    def _loop(self) -> None:
        chooser = self._chooser
        # Some schedules go record by record, others let one rank run far ahead.
        most = chooser.choice((3, 30, 300, layout.RING_RECORDS))
        weights = [chooser.random() ** 3 + 0.001 for _ in self._said]
        while True:
            ready = [index for index, voice in enumerate(self._said) if not voice.full]
            if ready:
                chosen = chooser.choices(ready, [weights[index] for index in ready])[0]
                self._said[chosen].give(chooser.randint(1, most))
                if chooser.random() < 0.3:
                    continue
            reason = self._iterate(0, 0)
            if reason & native.DONE and not reason & native.PRICES and all(voice.done for voice in self._said):
                return
            if chooser.random() < 0.1:
                self._drain()
            if reason == native.IDLE and all(voice.full for voice in self._said):
                assert self._engine.release_sleepers([]), self._engine.diagnose()


def log_of(recording: Recording, seed: int, engine: Path, cost: Any, path: Path) -> str:
    """Digest of the log that the schedule of this seed gives."""
    cluster = recording.cluster
    session = create_session(
        Setup(spec=RunSpec(""), cluster=cluster, hosts=cluster.hosts, ranks_per_host=cluster.gpus_per_host), None
    )
    try:
        with LogWriter(path, RunMetadata(world_size=session.world_size), Tables()) as log:
            config = SimulatorConfig(engine=engine, cluster=cluster, cost=cost, record=False)
            Shuffled(session, log, config, recording.said, random.Random(seed)).run()
    finally:
        session.close()
    return hashlib.sha256(path.read_bytes()).hexdigest()


def different(digests: Sequence[str]) -> list[int]:
    """Positions of digests that differ from the first."""
    return [index for index, digest in enumerate(digests) if digest != digests[0]]
