"""Lightning: its progress bar, ``Epoch 0:  55%|█████▍    | 350/640 [00:09<00:07, 37.56it/s, v_num=0]``.

The rate is the mean since the epoch's begin: the time until a state is its iterations over its rate. A step time is the
difference of two states that are far enough apart for the digits of the rate.
"""

from __future__ import annotations

import re

from phantora.framework_logs.progress_bar import Bar, bar_of
from phantora.framework_logs.reader import NUMBER, LogReader

_EPOCH = re.compile(r"Epoch (\d+)\b")
_RICH = re.compile(rf"Epoch (\d+)/\S+\s+\S*[━╸╺]\S*[ ━╸╺]*\s(\d+)/(\d+) \S+ • \S+ ({NUMBER})it/s")
_PRECISE = 50.0  # times its uncertainty: a difference that counts as precise


class Lightning(LogReader):
    """Output of ``lightning.pytorch.callbacks``, both of tqdm and of rich."""

    framework = "Lightning"

    def __init__(self) -> None:
        super().__init__()
        self._epoch = -1
        self._start: tuple[int, float] | None = None
        self._last: Bar | None = None
        self._before = 0  # iterations of earlier epochs

    def take(self, line: str) -> None:
        """See :class:`LogReader`."""
        if rich := _RICH.search(line):
            if float(rich[4]):
                self._begin(int(rich[1]))
                self.add(self._before + int(rich[2]), 1 / float(rich[4]))
                self._last = Bar(title="", done=int(rich[2]), whole=int(rich[3]), seconds=1 / float(rich[4]), digit=0.0)
            return
        bar, epoch = bar_of(line), _EPOCH.search(line)
        if bar is None or epoch is None or not bar.title.startswith("Epoch") or not bar.done:
            return
        self._begin(int(epoch[1]))
        self._last = bar
        until = bar.done * bar.seconds
        if self._start is None:
            self._start = bar.done, until
            return
        steps, seconds = bar.done - self._start[0], until - self._start[1]
        if steps > 0 and seconds >= _PRECISE * until * bar.digit:
            self.add(self._before + bar.done, seconds / steps)
            self._start = bar.done, until

    def _begin(self, epoch: int) -> None:
        """Begins an epoch, if it is not that of the line before."""
        if epoch != self._epoch:
            self._before = self._before + self._last.done if self._last is not None and epoch > self._epoch else 0
            self._epoch, self._start = epoch, None

    def finish(self) -> None:
        """Takes the mean of a run that is too short for differences."""
        if not self._steps and self._last is not None:
            self.add(self._before + self._last.done, self._last.seconds)
