"""TRL: the phases of its trainers become annotations of the log."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from phantora.rank.routing import Routing
from phantora.rank.shims import Shim


def _mark_phases(module: ModuleType, _: Routing) -> None:
    """Each ``ProfilingContext`` is a ``record_function`` too; what else a step of a Trainer does is training."""
    from torch.autograd.profiler import record_function

    context, trainer = module.ProfilingContext, module.Trainer
    enter, leave, step = context.__enter__, context.__exit__, trainer.training_step

    @functools.wraps(enter)
    def marked_enter(self: Any) -> Any:
        self._phantora_mark = record_function(f"trl: {self.name}")
        self._phantora_mark.__enter__()
        return enter(self)

    @functools.wraps(leave)
    def marked_exit(self: Any, *what: Any) -> Any:
        try:
            return leave(self, *what)
        finally:
            self._phantora_mark.__exit__(None, None, None)

    @functools.wraps(step)
    def marked_step(self: Any, *args: Any, **options: Any) -> Any:
        with record_function("trl: training_step"):
            return step(self, *args, **options)

    context.__enter__, context.__exit__, trainer.training_step = marked_enter, marked_exit, marked_step


PHASES = Shim(
    "trl",
    (),
    "trl.extras.profiling",
    guarded="ProfilingContext.__enter__",
    apply=_mark_phases,
    does="marks its phases",
    routes=False,
)
