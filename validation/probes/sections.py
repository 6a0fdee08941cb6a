"""The command line of a probe whose cases come in sections: each case once, for a simulation, or all of them measured."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

Case = tuple[str, Callable[[], Any]]


@dataclass(frozen=True)
class Probe:
    """`description`: the help. `file`: the name of the file of measurements, whose first line is `about`."""

    description: str | None
    file: str
    about: Mapping[str, Any]
    sections: Mapping[str, Callable[[], Iterator[Case]]]
    mark: Callable[[str], AbstractContextManager[Any]]
    """Names a case in a simulation."""
    measured: Callable[[Callable[[], Any], torch.Tensor], dict[str, Any]]
    """Fields of a case's line: of a call that ran before, and a tensor that is larger than L2."""
    seconds: float = 60.0

    def cases_of(self, name: str) -> Iterator[Case]:
        """Cases of a section until one cannot be made."""
        cases = self.sections[name]()
        while True:
            try:
                yield next(cases)
            except StopIteration:
                return
            except Exception as error:
                _report(name, error)
                return

    def once(self, sections: list[str]) -> None:
        """Runs each case twice, the second time under its mark."""
        for section in sections:
            for label, call in self.cases_of(section):
                try:
                    call()
                    with self.mark(label):
                        call()
                        torch.cuda.synchronize()
                except Exception as error:
                    _report(label, error)

    def measure(self, out: Path, sections: list[str], until: float) -> None:
        """Writes a line for each case, until the time is `until`."""
        flush = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
        out.mkdir(parents=True, exist_ok=True)
        with (out / self.file).open("w") as file:
            about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
            print(json.dumps({**self.about, **about}), file=file)
            for section in sections:
                for label, call in self.cases_of(section):
                    if time.time() > until:
                        print(f"{label}: out of time", file=sys.stderr)
                        return
                    try:
                        call()
                        call()
                        torch.cuda.synchronize()
                        row = {"section": section, "case": label, **self.measured(call, flush)}
                        print(json.dumps(row), file=file, flush=True)
                    except Exception as error:
                        _report(label, error)

    def main(self) -> None:
        """Runs the sections that the command line names."""
        parser = argparse.ArgumentParser(
            description=self.description, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        parser.add_argument("out", type=Path, nargs="?")
        parser.add_argument("--sections", default=",".join(self.sections))
        parser.add_argument("--budget", type=float, default=self.seconds, help="seconds")
        parser.add_argument("--once", action="store_true")
        args = parser.parse_args()
        torch.manual_seed(0)
        if args.once or args.out is None:
            self.once(args.sections.split(","))
        else:
            self.measure(args.out, args.sections.split(","), time.time() + args.budget)


def _report(what: str, error: Exception) -> None:
    print(f"{what}: {type(error).__name__} {str(error)[:500]}", file=sys.stderr, flush=True)
