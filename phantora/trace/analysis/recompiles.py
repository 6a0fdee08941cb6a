"""What torch.compile compiled again: which function, which guard failed, how often, and the host's time for it.

The rows are of ``phantora/rank/patches/tuning.py``. The time is that of the host model, as of all Python code of a
rank: Dynamo, AOTAutograd and Inductor are Python. Compilers of kernels are not in it. Inductor's cache counts as it
was: a second run compiles in less time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import zip_longest

from phantora.trace.analysis.report import Recompiled
from phantora.trace.analysis.units import duration
from phantora.trace.reader import Log
from phantora.wire.names import COMPILED, COMPILING

_SIZE = "size mismatch"
_REMEDY = "mark the dimension dynamic (torch._dynamo.mark_dynamic) or pad to a few sizes"


def recompiles(log: Log, ranks: Sequence[int]) -> list[Recompiled]:
    """Functions that were compiled again, by the rank that did it longest; the longest first."""
    words = log.words("name")
    wanted = [number for number, word in enumerate(words) if word == COMPILING or word.startswith(COMPILED)]
    rows: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    columns = ("rank", "start", "end", "name")
    known = set(wanted)
    for batch in log.batches(columns, kinds=("annotation",), ranks=ranks) if wanted else ():
        for rank, start, end, name in zip(*(batch[c].tolist() for c in columns), strict=True):
            if name in known:
                rows[rank].append((end, start, words[name]))
    found = [_of_rank(sorted(own)) for own in rows.values()]
    return max(found, key=lambda own: sum(one.time for one in own), default=[])


def _of_rank(rows: Sequence[tuple[int, int, str]]) -> list[Recompiled]:
    """Rows in the order of their end: a span, behind it what it was. One without belongs to what came before."""
    found: dict[str, Recompiled] = {}
    current: Recompiled | None = None
    for (end, start, name), following in zip_longest(rows, rows[1:]):
        if name != COMPILING:
            continue
        if following is not None and following[2] != COMPILING:
            function, _, reason = following[2].removeprefix(COMPILED).partition(": ")
            current = None
            if reason:
                current = found.setdefault(function, Recompiled(function, 0, 0.0, []))
                current.count += 1
                if reason not in current.reasons:
                    current.reasons.append(reason)
        if current is not None:
            current.time += end - start
    return sorted(found.values(), key=lambda one: -one.time)


def sentence(one: Recompiled) -> str:
    """``step at train.py:6, 3 times in 1.60 s: tensor 'x' size mismatch at index 0. expected 8, actual 16``."""
    times = f"{one.count} times" if one.count > 1 else "once"
    more = f", and {len(one.reasons) - 1} more guards" if len(one.reasons) > 1 else ""
    return f"{one.function}, {times} in {duration(one.time)} of the host: {one.reasons[0]}{more}"


def remedy(one: Recompiled) -> str:
    """A change that avoids it; "" if none is known."""
    return f"; {_REMEDY}" if any(_SIZE in reason for reason in one.reasons) else ""
