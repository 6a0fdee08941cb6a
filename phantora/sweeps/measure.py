"""The numbers of a run's log, printed as JSON; in a process of its own, whose memory goes with it.

python -m phantora.sweeps.measure LOG
"""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path

import orjson

from phantora.errors import PhantoraError
from phantora.fold.mesh import from_dict
from phantora.spec import REMEDIED, WORST_BATCH
from phantora.sweeps.result import Measured
from phantora.trace.analysis.analyze import analyze
from phantora.trace.analysis.findings import of_time
from phantora.trace.analysis.fit import Fit
from phantora.trace.analysis.loader import LOADER
from phantora.trace.analysis.memory_fit import grows, keep_less
from phantora.trace.analysis.report import Report
from phantora.trace.analysis.spread import longer_with
from phantora.trace.analysis.summary import no_kernels
from phantora.trace.reader import Log, open_log
from phantora.wire.shared import CHECKPOINTS
from phantora.without_pandas import block_pandas


def measure(path: str | Path) -> Measured:
    """Raises PhantoraError for a file that is no log, or one without work of a GPU."""
    log = open_log(path)
    report = analyze(log, paths=False)
    if report.without_gpu:
        raise PhantoraError(f"no step: {no_kernels(report).removeprefix('none: ')}")
    found = measured_of(report)
    sampled = log.trailer.get("spread", {})
    return replace(found, longer=longer_with(log.trailer, _copies(log)), not_sampled=sampled.get("skipped", ""))


def _copies(log: Log) -> float:
    """Ranks for each one that ran: of a folded run those in between have the noise of theirs."""
    fold = log.metadata.extra.get("fold")
    return log.metadata.world_size / len(from_dict(fold).real) if fold else 1.0


def measured_of(report: Report) -> Measured:
    """The numbers of a report with details."""
    head, steady, details = report.headline, report.steady, report.details
    assert details is not None
    fit: Fit | None = details.fit
    rates, growth = head.throughput, report.growth
    capacity = int(report.metadata["memory_bytes"])
    time = steady.time or 1.0
    return Measured(
        step_time=head.step_time,
        lowest=head.lowest,
        highest=head.highest,
        steps=head.steps,
        error=head.error,
        error_above=head.error_above,
        widest=head.widest,
        mfu=head.mfu,
        tokens_per_second=rates.tokens_per_second or None if rates else None,
        samples_per_second=rates.samples_per_second or None if rates else None,
        exposed=steady.exposed / time,
        idle=steady.idle / time,
        overlap=steady.overlap,
        fits=fit.fits if fit else True,
        memory=fit.taken if fit else 0,
        capacity=fit.capacity if fit else capacity,
        peak_allocated=max((rank.gpu.peak_allocated for rank in report.ranks), default=0),
        peak_reserved=max((rank.gpu.peak_reserved for rank in report.ranks), default=0),
        holds_up=of_time(details.findings),
        remedy=keep_less(growth) if growth is not None and not growth.far else fit.remedy if fit else "",
        remedied=any(REMEDIED in one.what for one in report.assumptions),
        checkpointed=any(rank.passes == CHECKPOINTS for rank in details.memory),
        watts=head.energy.watts if head.energy else None,
        parts=parts_of(report),
        roles=", ".join(f"{role.name} {role.idle / role.time:.0%}" for role in report.phases if role.time),
        grows=grows(growth) if growth is not None and not growth.far else "",
        may_grow=grows(growth) if growth is not None and growth.far else "",
        worst_batch=next((one.what for one in report.assumptions if WORST_BATCH in one.what), "").partition(
            WORST_BATCH
        )[0],
        full=growth.full if growth is not None else None,
    )


_PARTS = {"gemm": "products", "attention": "attention", "convolution": "convolutions"}


def parts_of(report: Report) -> dict[str, float]:
    """Shares of a steady step by the limiting part; classes that mostly move data count as ``memory``."""
    steady = report.steady
    classes = {cls: share for cls, share in report.by_class.items() if cls != "communication"}
    whole = sum(classes.values())
    if not steady.time or not whole:
        return {}
    data = sum(wait.time for wait in report.host_waits if wait.name == LOADER) / steady.time
    found: dict[str, float] = {"communication": steady.exposed / steady.time, "host": steady.host / steady.time - data}
    if data:
        found[LOADER] = data
    for cls, share in classes.items():
        part = _PARTS.get(cls, "memory")
        found[part] = found.get(part, 0.0) + share / whole * steady.compute / steady.time
    return found


def main() -> None:
    """Measures the log that the command line names."""
    block_pandas()
    try:
        sys.stdout.buffer.write(orjson.dumps(asdict(measure(sys.argv[1]))))
    except PhantoraError as error:
        sys.exit(f"phantora: {error}")


if __name__ == "__main__":
    main()
