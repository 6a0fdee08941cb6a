"""The memory of the machine that runs the ranks: a note, then the end of the run, before the kernel ends a process."""

from __future__ import annotations

from collections.abc import Iterator

from phantora.launch.machine_memory import MachineMemory
from phantora.units import GIB


def watched(left: Iterator[float], taken: Iterator[float]) -> MachineMemory:
    """Of a machine of 32 GiB; the first of `left` is at the start."""
    return MachineMemory(lambda: (32 * GIB, int(next(left) * GIB)), lambda _: int(next(taken) * GIB))


def test_ranks_that_take_the_machine_are_noted_once_and_then_ended() -> None:
    memory = watched(iter((30, 20, 14, 12, 5, 1.2)), iter((12, 14, 20, 27)))
    assert memory.look(lambda: [1]) == ("", False)
    text, ends = memory.look(lambda: [1])
    assert not ends and text.startswith("the ranks take 12.0 GiB of this machine's memory, 14.0 GiB is left: CPU")
    assert text.endswith('build the model under torch.device("cuda"); the run ends at 1.3 GiB left')
    assert memory.look(lambda: [1]) == ("", False) and memory.look(lambda: [1]) == ("", False)
    text, ends = memory.look(lambda: [1])
    assert ends and text.startswith("this machine is almost out of memory: the ranks take 27.0 GiB")


def test_other_programs_that_take_the_machine_are_none_of_the_run() -> None:
    memory = watched(iter((30, 10, 1)), iter((0.5, 0.6)))
    assert memory.look(lambda: [1]) == ("", False) and memory.look(lambda: [1]) == ("", False)
