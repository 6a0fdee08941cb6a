"""Why is reality slower or faster than the simulation? Pairs of runs whose difference is known.

The real runs are simulated ones with one change, exported to Kineto's form as torch.profiler writes it, and imported.
"""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from phantora.cli.diff import differences_of
from phantora.importers import import_traces
from phantora.trace.analysis.analyze import Filters
from phantora.trace.diff.compare import Difference
from phantora.trace.diff.render import headline
from phantora.trace.export import export
from phantora.trace.reader import Log, open_log
from tests.support import reality_program
from tests.support.kineto_files import as_a_profiler_writes
from tests.support.runs import Run, phantora, trace


@dataclass(frozen=True)
class Pair:
    """A change of the real run, and the first line that names it."""

    said: str
    variant: str = ""
    options: tuple[str, ...] = ()
    replayed: tuple[str, ...] = ()
    slower: str = ""
    factor: float = 1.0
    ranks: int = 2


PAIRS = {
    "equal": Pair("agrees with the simulation: "),
    "attention": Pair("attention by another operator: _cudnn_attention_forward -> products", variant="attention"),
    "fusion": Pair("another form of the optimizer: fused -> for each parameter", variant="fusion"),
    "reads": Pair("the host reads values of the GPU 0 -> ", variant="reads"),
    "loading": Pair("data loading: the DataLoader takes 20", options=("--data-loading", "20ms")),
    "slow host": Pair("host gaps, the host works", replayed=("--host-scale", "4")),
    "late rank": Pair("rank 1 is slower than the others", replayed=("--straggler", "rank=1:1.3")),
    "collective": Pair("network: the same collectives take", replayed=("--degrade", "*=0.1")),
    "another GPU": Pair("another GPU: H100-SXM -> H200-SXM", replayed=("--gpu", "H200")),
    "clock": Pair("clocks: all products take 1.15 times", slower="^(?!nccl)", factor=1.15),
    "one kernel": Pair("most of it in aten::gelu_backward (6.00 times)", slower="GeluBackward", factor=6.0),
    "one rank of two": Pair("host gaps, the host works", replayed=("--host-scale", "4"), ranks=1),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reality")
    simulate(folder, "", ())
    return folder


def simulate(folder: Path, variant: str, options: tuple[str, ...]) -> Path:
    made = folder / f"simulated{variant}{''.join(options)}"
    made.mkdir()
    return trace(made, "--cluster", "1x2xH100", *options, str(reality_program.__file__), variant, recording=True).log


def real(folder: Path, name: str, pair: Pair) -> Path:
    """The log of the real run."""
    source = folder / "simulated" / "run.arrow"
    if pair.variant or pair.options:
        source = simulate(folder, pair.variant, pair.options)
    elif pair.replayed:
        source = folder / f"{name}.arrow"
        recorded = str(folder / "simulated" / "run.arrow")
        done = phantora("replay", recorded, "-q", "-o", str(source), *pair.replayed, cwd=folder, timeout=120)
        assert done.returncode == 0, done.stderr
    paths = export(source, str(folder / name) + "/")
    for path in map(Path, paths):
        data = json.loads(gzip.decompress(path.read_bytes()))
        as_a_profiler_writes(data, pair.slower, pair.factor)
        path.write_bytes(gzip.compress(json.dumps(data).encode(), 1))
    log = folder / f"real-{name}.arrow"
    import_traces(paths[: pair.ranks], str(log))
    return log


def difference_of(a: Log, b: Log) -> Difference:
    return differences_of([a, b], Filters())[1][0]


def compared(folder: Path, name: str) -> Difference:
    logs = (open_log(folder / "simulated" / "run.arrow"), open_log(real(folder, name, PAIRS[name])))
    return difference_of(*logs)


@pytest.mark.parametrize("name", list(PAIRS))
def test_the_first_line_says_why(place: Path, name: str) -> None:
    difference = compared(place, name)
    assert PAIRS[name].said in headline(difference)
    assert difference.reality == "b"
    if name == "attention":
        assert not difference.inconclusive and difference.step.change > 0
        typed = difference_of(open_log(difference.path_b), open_log(difference.path_a))
        assert (typed.path_a, typed.reality) == (difference.path_b, "a")
        assert headline(typed).startswith("The simulation is faster by ")
        assert "attention by another operator: products" in headline(typed)


def test_what_lies_within_the_error_bars_is_inconclusive(place: Path) -> None:
    """The default host is not measured: the simulation's bar reaches to one that is several times as slow."""
    log = place / "real-slow host.arrow"
    log = log if log.exists() else real(place, "slow host", PAIRS["slow host"])
    difference = difference_of(open_log(place / "simulated" / "run.arrow"), open_log(log))
    assert difference.inconclusive == headline(difference).startswith("Inconclusive")


def test_a_run_is_validated_by_a_real_one(place: Path) -> None:
    """Status 1 where the step is beyond the bound, and at once for a log that is not of a real run."""
    reals = {name: place / f"real-{name}.arrow" for name in ("equal", "loading")}
    for name, log in reals.items():
        if not log.exists():
            real(place, name, PAIRS[name])
    folder = place / "validated"
    folder.mkdir()

    def validated(log: Path) -> Run:
        program = ("--cluster", "1x2xH100", "--validate", str(log), str(reality_program.__file__))
        return trace(folder, *program, check=False)

    done = validated(reals["equal"])
    assert done.status == 0 and re.search(r"^step .* yes$", done.err, re.MULTILINE), done.err
    assert re.search(r"^gemm .* \+0\.0%", done.err, re.MULTILINE) and "peak allocated" in done.err
    done = validated(reals["loading"])
    assert done.status == 1 and re.search(r"^step .* no$", done.err, re.MULTILINE)
    done = validated(place / "simulated" / "run.arrow")
    assert done.status == 1 and "phantora import" in done.err
