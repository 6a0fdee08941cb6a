"""Further simulations of a run from its recording, with the prices of the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from phantora.outputs import unnamed
from phantora.runs.assemble import Recorded, Simulation
from phantora.runs.setup import Setup
from phantora.spec import TABLES
from phantora.trace.reader import Log, open_log

if TYPE_CHECKING:
    from phantora.sim.replay import Powers


class Replays:
    """Simulates parts of a recording again, with the prices of the run."""

    def __init__(self, simulation: Simulation, setup: Setup, *, all_rows: bool) -> None:
        output = replace(setup.spec.output, recording=False, flows=False)
        self._setup = replace(setup, spec=replace(setup.spec, output=output, profile=TABLES))
        assert simulation.again is not None
        self._again = simulation.again
        self.all_rows = all_rows  # a whole run as the step has the extent of all its rows

    @contextmanager
    def run(self, recorded: Recorded) -> Iterator[tuple[Log, Powers]]:
        """The log of the replay, which is gone afterwards, and where the limiters stand at its end. Raises
        PhantoraError where the records do not fit together."""
        from phantora.sim.replay import Replayer

        with unnamed("phantora-again") as path:  # a folder would stay where the run is killed
            again = self._again(path, self._setup, replace(recorded, brief=not self.all_rows))
            assert isinstance(again.simulator, Replayer)
            try:
                again.simulator.run()
            finally:
                again.close({})
            powers = {rank: again.simulator.powers[rank] for rank in recorded.records}
            yield open_log(path), powers
