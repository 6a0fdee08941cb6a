"""The tables of docs/reliability.md, from what `faults.py --json` kept.

    python -m tests.robustness.fault_table benchmarks/data/faults.jsonl

A cell: how many moments; the exit status, with how often it came if there were several; the rows that could be read of
the log. What was not as expected is listed below the tables.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.robustness.fault_cases import CASES

COLUMNS = {"fsdp2": "plain FSDP2", "deepspeed": "DeepSpeed", "torchtitan": "TorchTitan"}
LONGEST = 70
"""Characters of a message."""


@dataclass
class Seen:
    """Of one fault and workload, over all seeds."""

    moments: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    rows: list[int] = field(default_factory=list)
    """The least and the most of each seed."""
    messages: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def add(self, line: dict[str, object]) -> None:
        """One line of the file."""
        self.moments += int(str(line["moments"]))
        statuses, wrong = line["statuses"], line["wrong"]
        assert isinstance(statuses, dict)
        assert isinstance(wrong, list)
        self.statuses.update(statuses)
        self.wrong += wrong
        if line["rows"] != "none":
            self.rows += [int(number.replace(",", "")) for number in str(line["rows"]).split(" to ")]
        if line["message"]:
            self.messages[str(line["message"])] += 1

    def cell(self) -> str:
        """Of the table."""
        if not self.moments:
            return "–"
        several = [f"{status} ({count})" for status, count in sorted(self.statuses.items(), key=lambda s: int(s[0]))]
        status = ", ".join(several) if len(several) > 1 else next(iter(self.statuses))
        least, most = min(self.rows, default=None), max(self.rows, default=None)
        rows = "" if most is None else f"; {most:,}" if least == most else f"; {least:,} to {most:,}"
        return f"{self.moments}: {status}{rows}" + (f"; **{len(self.wrong)} not as expected**" if self.wrong else "")


def read(path: Path) -> dict[tuple[str, str], Seen]:
    """By workload and fault."""
    seen: dict[tuple[str, str], Seen] = {}
    for text in path.read_text().splitlines():
        line = json.loads(text)
        seen.setdefault((line["workload"], line["fault"]), Seen()).add(line)
    return seen


def _message(seen: Iterable[Seen]) -> str:
    found = sum((one.messages for one in seen), Counter[str]()).most_common(1)
    if not found:
        return ""
    text = re.sub(r"/\S*/", "", found[0][0].removeprefix("phantora: "))  # the files' names will do
    return text if len(text) <= LONGEST else text[:LONGEST].rsplit(" ", 1)[0] + " ..."


def tables(seen: dict[tuple[str, str], Seen]) -> Iterable[str]:
    """Line by line: of the workloads whose ranks are our own children, then of torchrun."""
    for columns in (COLUMNS, {"torchrun": "under torchrun"}):
        yield f"| fault | one message | {' | '.join(columns.values())} |"
        yield "| --- | --- |" + " --- |" * len(columns)
        for case in CASES:
            found = [seen.get((workload, case.name), Seen()) for workload in columns]
            if any(one.moments for one in found):
                cells = " | ".join(one.cell() for one in found)
                yield f"| {case.name} | {_message(found)} | {cells} |"
        yield ""
    for (workload, fault), one in seen.items():
        for wrong, count in Counter(one.wrong).items():
            reported = " ".join(wrong.split())[:300]
            yield f"- {workload}, {fault} ({count}): {reported}"


if __name__ == "__main__":
    print("\n".join(tables(read(Path(sys.argv[1])))))
