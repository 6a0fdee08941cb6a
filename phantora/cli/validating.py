"""``--validate``: a simulated run compared with a real one, of which there is a trace or a framework's log."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from phantora.errors import PhantoraError
from phantora.units import SHARE

if TYPE_CHECKING:
    from phantora.trace.diff.validation import Validation


def validate_options(option: Callable[..., Any]) -> Callable[[Any], Any]:
    """``--validate`` and ``--validate-within``; `option` makes one."""

    def decorate(function: Any) -> Any:
        within = option(
            "--validate-within",
            default="5%",
            show_default=True,
            metavar="SHARE",
            help="End with status 1 if the step, a rate or the memory differs by more than SHARE.",
        )
        return option(
            "--validate",
            type=click.Path(),
            metavar="REAL",
            help="Compare step, rates and memory with a real run: its profiler's trace, a log of phantora import, "
            "or the text that Megatron-LM, TorchTitan, DeepSpeed, Lightning or Hugging Face's Trainer printed.",
        )(within(function))

    return decorate


class Reality:
    """The real run that a simulated one is compared with."""

    def __init__(self, path: str, within: str) -> None:
        """Raises PhantoraError for a file that is of no real run, before a simulation begins."""
        from phantora.cli.opening import log_of
        from phantora.framework_logs import read_step_log
        from phantora.importers import suffixes
        from phantora.trace.reader import is_log

        self._within = SHARE.of("--validate-within", within)
        self._steps = self._log = None
        if os.path.isfile(path) and not is_log(path) and not path.endswith(suffixes()):
            self._steps = read_step_log(path)
            return
        self._log = log_of(path)
        if not self._log.metadata.real:
            raise PhantoraError(
                f"{path}: --validate needs a real run: a trace, its `phantora import`, or what its framework printed"
            )

    def compare(self, path: str) -> Validation:
        """Compares the simulated run whose log is `path`."""
        from phantora.framework_logs.comparison import validate
        from phantora.trace.analysis.analyze import analyze
        from phantora.trace.diff.between import validation
        from phantora.trace.reader import open_log

        simulated = open_log(path)
        if self._steps is not None:
            return validate(self._steps, analyze(simulated, details=False), self._within)
        assert self._log is not None
        return validation(self._log, simulated, self._within)


def show(found: Validation) -> int:
    """Prints the result on standard error; the exit status."""
    from phantora.cli.terminal import report_console
    from phantora.trace.diff.validation import render

    render(found, report_console(stderr=True))
    sys.stderr.flush()
    return 0 if found.passed else 1
