"""Hugging Face's Trainer: its progress bar, ``25%|██▌       | 20/80 [00:25<01:16,  1.27s/it]``.

The bar's rate is smoothed over the last steps. The end of a run prints averages with start-up and evaluations:
``{'train_runtime': '101.6', 'train_samples_per_second': '3.544', ...}``, which are read where no bar was logged.
"""

from __future__ import annotations

import re

from phantora.framework_logs.progress_bar import Bar, bar_of
from phantora.framework_logs.reader import NUMBER, LogReader

_RATE = re.compile(rf"'train_(\w+)_per_second': '?({NUMBER})'?")
_LOSS = re.compile(r"\{'(?:loss|train_runtime)': ")


class HuggingFace(LogReader):
    """Output of ``transformers.Trainer`` and of trainers that derive from it, as TRL's."""

    framework = "Hugging Face Trainer"

    def __init__(self) -> None:
        super().__init__()
        self._bars: dict[int, list[Bar]] = {}
        self._ended: dict[str, float] = {}
        self._trains = False

    def take(self, line: str) -> None:
        """See :class:`LogReader`."""
        bar = bar_of(line)
        if bar is not None and not bar.title:
            own = self._bars.setdefault(bar.whole, [])
            if not own or own[-1].done != bar.done:
                own.append(bar)
        if _LOSS.search(line):
            self._trains = True
        self._ended.update((name, float(value)) for name, value in _RATE.findall(line))

    def finish(self) -> None:
        """The bar with most states is that of the training; others are of evaluations and of loading."""
        if not self._trains:
            return
        bars = max(self._bars.values(), key=len, default=[])
        samples = self._ended.get("samples")
        for bar in bars:
            if bar.done < bar.whole:  # the last rate is the mean of all, with the start
                self.add(bar.done, bar.seconds)
        if not self._steps and self._ended.get("steps"):
            self.add(1, 1 / self._ended["steps"], samples=samples, tokens_per_second=self._ended.get("tokens"))
