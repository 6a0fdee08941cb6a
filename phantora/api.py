"""Runs from Python and notebooks.

    import phantora

    run = phantora.run("train.py", ["--layers", "4"], cluster="1x8xH100")
    run = phantora.open("run.arrow")
    found = phantora.fits("train.py", cluster="1x8xH100", largest="--batch")
    table = phantora.sweep(preset="torchtitan", model="llama3-8b", cluster="8x8xH100")
    run.summary()["step_time_ns"], run.steps().to_pandas(), polars.from_arrow(run.kernels())

Tables are Arrow's; times are in ns, sizes in bytes. Every row of the log is in `run.table()` (docs/log.md).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from phantora.errors import PhantoraError, Reason, known_names
from phantora.json_data import encode
from phantora.options import NO_KEYWORD, with_keywords, with_options
from phantora.result import RunResult
from phantora.run_process import run_in_process
from phantora.spec import (
    CALIBRATE,
    COMPARE,
    FITS,
    MODULE,
    OFF,
    PLAN,
    SCRIPT,
    SWEEP,
    TRACE,
    FoldSpec,
    OutputSpec,
    RunSpec,
    WhatIfSpec,
)
from phantora.trace.analysis.analyze import Filters, analyze
from phantora.trace.analysis.energy import priced
from phantora.trace.analysis.fit import MARGIN
from phantora.trace.analysis.report import Report
from phantora.trace.analysis.summary import error_bar
from phantora.trace.analysis.tables import tables
from phantora.trace.analysis.units import amount, duration, size
from phantora.trace.reader import Log, open_log
from phantora.trace.schema import COMMUNICATION_KINDS
from phantora.units import COUNT, TIME, Grammar

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from phantora.calibration import Calibration
    from phantora.dumps.why import Answer
    from phantora.jobs.answer import Answer as Job
    from phantora.keywords import CalibrateOptions, CompareOptions, FitsOptions, PlanOptions, RunOptions, SweepOptions
    from phantora.sweeps.compare import Comparison
    from phantora.sweeps.questions import Fits, Offers
    from phantora.trace.diff.compare import Difference


class Run:
    """A simulated run: its event log, and what is reported about it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises PhantoraError for a file that is no log."""
        self.path = Path(path)
        self.log: Log = open_log(path)

    @cached_property
    def report(self) -> Report:
        """All numbers of ``phantora analyze``."""
        return analyze(self.log)

    def summary(self, price: float | None = None) -> dict[str, Any]:
        """The headline: step time, its error bar and spread, MFU, throughput, energy, steps set apart; peaks of memory;
        with a `price` in dollars per GPU and hour also the cost. Keys are those of ``analyze --json``."""
        found = encode(priced(self.report, price).headline)
        found["step_source"] = self.report.step_source
        found["peak_allocated_bytes"] = max((rank.gpu.peak_allocated for rank in self.report.ranks), default=0)
        found["peak_reserved_bytes"] = max((rank.gpu.peak_reserved for rank in self.report.ranks), default=0)
        return found

    def table(self, kinds: Collection[str] | None = None) -> pa.Table:
        """The rows of the log, of `kinds` only, in order of their end; texts as dictionaries, null where there is
        none."""
        batches = list(self.log.record_batches())
        whole = pa.Table.from_batches(batches, schema=batches[0].schema if batches else self.log.schema)
        whole = whole.unify_dictionaries().replace_schema_metadata(None)
        if kinds is None:
            return whole
        return whole.filter(pc.is_in(whole["kind"].cast(pa.utf8()), pa.array(sorted(kinds), pa.utf8())))

    def steps(self) -> pa.Table:
        """A row per rank and step: start, end, where its time went, flops, MFU, memory, and a note if it is set
        apart."""
        return pa.Table.from_pylist(tables(self.report)["ranks"])

    def kernels(self) -> pa.Table:
        """Every kernel."""
        return self._with_duration(self.table(("kernel",)))

    def collectives(self) -> pa.Table:
        """Every collective, send and receive of every rank, with the time from the last arrival on as `transfer`."""
        found = self._with_duration(self.table(COMMUNICATION_KINDS))
        ready = np.maximum(found["ready"].to_numpy(), found["start"].to_numpy())
        return found.append_column("transfer", pa.array(found["end"].to_numpy() - ready))

    def memory(self) -> pa.Table:
        """The allocator's level whenever it changed: rank, time, allocated, reserved."""
        rows = self.table(("memory",)).select(["rank", "end", "name", "value", "bytes"])
        return rows.rename_columns(["rank", "time", "event", "allocated", "reserved"])

    def diff(self, other: Run) -> Difference:
        """The differences between this run and `other`, with their causes, as ``phantora diff`` finds them."""
        from phantora.trace.diff.between import between, sides_of

        return between(sides_of([self.log, other.log], Filters()))[0]

    def replay(
        self,
        output: str | os.PathLike[str] = "replay.arrow",
        *,
        cluster: str | None = None,
        gpu: str | None = None,
        host: str | None = None,
        host_scale: float = 1.0,
        degrade: Sequence[str] = (),
        straggler: Sequence[str] = (),
    ) -> Run:
        """Simulates the recorded run again, elsewhere, as ``phantora replay`` does. Raises PhantoraError."""
        from phantora.runs.replay import ReplaySpec, replay

        what_if = WhatIfSpec(degrade=tuple(degrade), straggler=tuple(straggler))
        spec = ReplaySpec(
            log=self.path,
            cluster=cluster,
            gpu=gpu,
            host=host,
            host_scale=host_scale,
            what_if=what_if,
            output=OutputSpec(os.fspath(output)),
        )
        result = replay(spec)
        if result.log is None:
            raise RunFailed(result)
        return Run(result.log)

    def view(self, *, port: int = 0) -> None:
        """Shows the run in a browser until interrupted, as ``phantora view`` does; port 0: any free one."""
        import webbrowser

        from phantora.view import server
        from phantora.view import site as view_site

        site = view_site.Site({"a": view_site.Run(self.log, self.report)})
        try:
            with server.Server(site, port) as serving:
                print(f"{serving.url} (interrupt it to end)")
                webbrowser.open(serving.url)
                serving.serve_forever()
        except KeyboardInterrupt:
            pass
        finally:
            site.close()

    @staticmethod
    def _with_duration(rows: pa.Table) -> pa.Table:
        return rows.append_column("duration", pc.subtract(rows["end"], rows["start"]))

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}: {', '.join(f'{name} {value}' for name, value in self._facts())})"

    def _facts(self) -> list[tuple[str, str]]:
        h, found = self.report.headline, self.summary()
        bar = "" if h.error is None or h.error_above is None else f" {error_bar(h.error, h.error_above)}"
        facts = [("step", f"{duration(h.step_time)}{bar}"), ("steady steps", str(h.steps))]
        if h.mfu is not None:
            facts.append(("MFU", f"{h.mfu:.1%}"))
        if h.throughput is not None and h.throughput.tokens_per_second:
            facts.append(("tokens/s", f"{h.throughput.tokens_per_second:,.0f}"))
        if h.throughput is not None and h.throughput.samples_per_second:
            facts.append(("samples/s", amount(h.throughput.samples_per_second)))
        facts.append(("peak allocated", size(found["peak_allocated_bytes"])))
        return facts

    def _repr_html_(self) -> str:
        """For notebooks: the verdict, where a step's time goes, its timeline, memory, and the roofline."""
        from phantora.view.notebook import page

        return page(self.log, self.report)


def open_run(path: str | os.PathLike[str]) -> Run:
    """The run whose event log lies at `path`."""
    return Run(path)


@with_keywords(TRACE, NO_KEYWORD)
def run(
    script: str | os.PathLike[str],
    args: Sequence[str] = (),
    *,
    module: bool = False,
    quiet: bool = True,
    **options: Unpack[RunOptions],
) -> Run:
    """Runs a script on a simulated cluster and opens its log. Each option is that of ``phantora trace``.

    The run has a process of its own. An example::

        run = phantora.run("train.py", ["--layers", "2"], cluster="2x8xH100")
        print(run.summary()["step_time_ns"])

    Args:
        script: Path of the script, or a module's name with `module`.
        args: Arguments of the script.
        module: `script` is a module, as in ``python -m``.
        quiet: What the script prints is dropped.

    Returns:
        The log of the run: steps, summary, tables, :meth:`Run.diff`, :meth:`Run.replay`.

    Raises:
        RunFailed: The run failed; its ``result`` has the reason and the partial log.
        PhantoraError: The options cannot be run.
    """
    result = run_in_process(_spec(TRACE, script, args, module, options), quiet=quiet)
    if result.reason != Reason.OK or result.log is None:
        raise RunFailed(result)
    return Run(result.log)


def _spec(
    command: str,
    script: str | os.PathLike[str],
    args: Sequence[str],
    module: bool,
    options: Mapping[str, Any],
    base: RunSpec | None = None,
) -> RunSpec:
    if isinstance(args, str):
        raise TypeError(f"args {args!r}: give a list of words, as {args.split()}")
    spec = replace(base or RunSpec(""), target=os.fspath(script), arguments=tuple(args))
    return with_options(replace(spec, kind=MODULE if module else SCRIPT), command, options)


def _number(name: str, value: float | str | None, form: Grammar = COUNT) -> float | None:
    """A number, or its text as on the command line: ``"200k"``. Raises PhantoraError."""
    return form.of(name, value) if isinstance(value, str) else value


def why(*paths: str | os.PathLike[str]) -> Answer:
    """The cause of a hang (dumps of NCCL's flight recorder), of an out-of-memory error (one memory snapshot, or two to
    compare) or of a slow step (a log), as ``phantora why`` prints it. Raises PhantoraError."""
    from phantora.dumps.why import why as answer

    return answer([os.fspath(path) for path in paths])


def collective_time(cluster: str, op: str, bytes: int, ranks: int | Sequence[int] | None = None) -> float:
    """ns that one collective takes on `cluster` by itself, after its last rank has arrived.

    Args:
        cluster: As of :func:`run`.
        op: ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``broadcast``, ``all_to_all`` and NCCL's others.
        bytes: Size as nccl-tests counts it: of the larger one of a rank's input and output.
        ranks: How many of the first GPUs take part, or which; None: all.

    Raises:
        PhantoraError: No such cluster, collective or rank.
    """
    from phantora.hardware import load_cluster
    from phantora.sim.collectives import CollectiveModel, NcclEnvironment
    from phantora.wire.layout import EXPERTS, NCCL_DTYPE_NAMES, SYMMETRIC, Coll

    found = load_cluster(cluster)
    unknown = {*SYMMETRIC, *EXPERTS, Coll.BARRIER}
    names = {name.lower(): kind for kind, name in enumerate(Coll.names()) if kind not in unknown}
    if op not in names:
        raise PhantoraError(f"unknown collective {op!r}; {known_names(op, sorted(names))}")
    chosen = tuple(range(found.world_size if ranks is None else ranks)) if not isinstance(ranks, Sequence) else ranks
    if not chosen or not all(0 <= rank < found.world_size for rank in chosen):
        raise PhantoraError(f"ranks {ranks}: the cluster {cluster} has ranks 0 to {found.world_size - 1}")
    model = CollectiveModel(found, NcclEnvironment.read({**found.nccl, **os.environ}, found.wiring.nics))
    return float(model.collective(names[op], tuple(chosen), bytes, NCCL_DTYPE_NAMES.index("bfloat16")).duration_ns)


class RunFailed(PhantoraError):
    """A run that failed. `result` has its reason, its message and its partial log."""

    def __init__(self, result: RunResult) -> None:
        super().__init__(result.message, result.reason)
        self.result = result
        self.exit_status = result.status


@with_keywords(FITS)
def fits(
    script: str | os.PathLike[str],
    args: Sequence[str] = (),
    *,
    largest: str | None = None,
    margin: float = MARGIN,
    remedies: bool = True,
    folder: str | os.PathLike[str] = "fits",
    module: bool = False,
    **options: Unpack[FitsOptions],
) -> Fits:
    """Whether a script fits the memory of its GPUs, as ``phantora fits`` answers it.

    Args:
        script: As of :func:`run`, with `args` and `module`.
        largest: An option of the script; the largest whole number of it that fits is found.
        margin: Share of the fullest GPU's memory that stays free.
        remedies: What would help a run that does not fit is simulated.
        folder: Folder of the runs; the same call goes on with what is in it.

    Raises:
        PhantoraError: The options cannot be run, or a run failed for another reason than memory.
    """
    from phantora.sweeps import questions

    run = _spec(FITS, script, args, module, options, _UNFOLDED)
    return questions.fits(run, Path(folder), largest, margin=margin, remedies=remedies)


@with_keywords(PLAN)
def plan(
    script: str | os.PathLike[str],
    args: Sequence[str] = (),
    *,
    gpu: str = "H100",
    gpus: int = 8,
    per_host: int = 8,
    rate: float | str | None = None,
    tokens: float | str | None = None,
    price: float | str | None = None,
    margin: float = MARGIN,
    folder: str | os.PathLike[str] = "plan",
    module: bool = False,
    **options: Unpack[PlanOptions],
) -> Offers:
    """The fewest GPUs that are enough for a script, as ``phantora plan`` finds them.

    Args:
        script: As of :func:`run`, with `args` and `module`.
        gpu: Model of the GPUs.
        gpus: 1, 2, 4, ... up to this number are tried.
        per_host: GPUs of a host.
        rate: Tokens per second that are enough, 200_000 or ``"200k"``; the search ends there.
        tokens: Tokens of the whole job, for its time and cost.
        price: Dollars per GPU and hour: 2.5, or ``"H100=2.5,H200=3.5"``. By default the median of public on-demand
            prices.
        margin: Share of the fullest GPU's memory that a cluster leaves that is enough.
        folder: Folder of the runs; the same call goes on with what is in it.

    Raises:
        PhantoraError: The options cannot be run, or the tokens of a step are unknown.
    """
    from phantora.sweeps import questions
    from phantora.sweeps.objective import parse_prices

    run = _spec(PLAN, script, args, module, options, _UNFOLDED)
    prices = parse_prices(None if price is None else str(price))
    sizes = questions.Sizes(
        gpu=gpu,
        most=gpus,
        per_host=per_host,
        rate=_number("rate", rate),
        tokens=_number("tokens", tokens),
        prices=prices,
        margin=margin,
    )
    return questions.plan(run, Path(folder), sizes)


@with_keywords(COMPARE)
def compare(
    script: str | os.PathLike[str],
    args: Sequence[str] = (),
    *,
    gpus: str | Sequence[str],
    counts: int | Sequence[int] = (8,),
    vary: str = "",
    tokens: float | str | None = None,
    rate: float | str | None = None,
    deadline: float | str | None = None,
    price: float | str | None = None,
    margin: float = MARGIN,
    folder: str | os.PathLike[str] = "compare",
    module: bool = False,
    **options: Unpack[CompareOptions],
) -> Comparison:
    """Machines for a script: memory, speed, cost and a verdict, as ``phantora compare`` finds them.

    Args:
        script: As of :func:`run`, with `args` and `module`.
        gpus: Models, or known systems such as ``aws-p6-b200``; the first is the base of speed-ups.
        counts: Numbers of GPUs.
        vary: An option of the script with its values: ``"seq=8k:64k"``.
        tokens: Tokens of the whole job, for its time and cost with failures.
        rate: Least tokens per second.
        deadline: Longest time of the job, in seconds or as ``"30d"``.
        price: Dollars per GPU and hour, as of :func:`plan`. By default the median of public on-demand prices.
        margin: As of :func:`plan`.
        folder: Folder of the runs; the same call goes on with what is in it.

    Raises:
        PhantoraError: The options cannot be run, or the script runs on no machine.
    """
    from phantora.hardware.prices import rental_prices
    from phantora.sweeps import compare as of
    from phantora.sweeps.objective import parse_prices

    name, values = of.parse_values(vary) if vary else ("", ())
    seconds = TIME.of("deadline", deadline) / 1e9 if isinstance(deadline, str) else deadline
    question = of.Question(
        gpus=tuple(part.strip() for part in gpus.split(",")) if isinstance(gpus, str) else tuple(gpus),
        counts=(counts,) if isinstance(counts, int) else tuple(counts),
        vary=name,
        values=values,
        job=of.Job(tokens=_number("tokens", tokens), rate=_number("rate", rate), deadline=seconds, margin=margin),
        prices=rental_prices(),
        dollars=parse_prices(None if price is None else str(price)),
    )
    return of.compare(_spec(COMPARE, script, args, module, options, RunSpec("")), Path(folder), question)


_UNFOLDED = RunSpec("", fold=FoldSpec(OFF))


@with_keywords(SWEEP)
def sweep(
    space: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    *,
    target: Sequence[str] = (),
    preset: str | None = None,
    model: str | None = None,
    cluster: str | Sequence[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    rules: Sequence[str] = (),
    output: str | os.PathLike[str] = "sweep",
    wide: bool = False,
    screen: str | None = None,
    finalists: int = 4,
    search: int = 0,
    seed: int = 0,
    by: str = "speed",
    price: float | str | None = None,
    jobs: int = 0,
    ray: str | None = None,
    everything: bool = False,
    again: bool = False,
    needs: bool = True,
    top: int = 0,
    fold: str = "one",
    **options: Unpack[SweepOptions],
) -> pa.Table:
    """Runs a script in many layouts as ``phantora sweep`` does; a row per point, the best first (docs/sweeps.md).

    `space` is a sweep file, or its content as a mapping. `settings` are values of axes or of computed names, one or
    a list each. Others are as on the command line. Times are in ns, sizes in bytes. Raises PhantoraError."""
    from phantora.sweeps.objective import Objective, parse_prices
    from phantora.sweeps.run import Request, run_sweep
    from phantora.sweeps.spaces import space_from

    found = space_from(space, preset, model, wide, target, _lists({"cluster": cluster, **(settings or {})}), rules)
    request = Request(
        space=replace(found, run=with_options(RunSpec(""), SWEEP, options)),
        folder=Path(output),
        objective=Objective(by, parse_prices(None if price is None else str(price))),
        screen=screen,
        finalists=finalists,
        search=search,
        seed=seed,
        jobs=jobs,
        ray=ray,
        everything=everything,
        again=again,
        needs=needs,
        top=top,
        fold=fold,
    )
    return run_sweep(request).answer.table()


def import_trace(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str] = "real.arrow",
    *,
    force: bool = False,
    gpu: str | None = None,
) -> Run:
    """The log of a real run, from the traces of its profilers, as ``phantora import`` writes it to `output`; `force`
    replaces an existing one, `gpu` is the model where the traces have none. Raises PhantoraError for files that are no
    traces."""
    from phantora.runs.imports import import_run

    paths = [files] if isinstance(files, str | os.PathLike) else files
    return Run(import_run([os.fspath(path) for path in paths], os.fspath(output), force, gpu)[0])


@with_keywords(CALIBRATE)
def calibrate(
    real: Run | str | os.PathLike[str],
    script: str | os.PathLike[str] | None = None,
    args: Sequence[str] = (),
    *,
    out: str | os.PathLike[str] = "my-machine.toml",
    simulated: Run | str | os.PathLike[str] | None = None,
    cluster: str | None = None,
    name: str = "calibrated",
    module: bool = False,
    **options: Unpack[CalibrateOptions],
) -> Calibration:
    """Describes the machine of a real run, as ``phantora calibrate`` does, and writes the file for `host`.

    Args:
        real: The log of the real run (:func:`import_trace`).
        script: The script as it was traced, with `args` and `module`; it is simulated. None: for any script.
        out: Calibration file; the table of its operators is next to it (.parquet).
        simulated: The log of such a simulation, on a built-in host, in place of `script`.
        cluster: Cluster of `script`; None: the GPUs of `real`.
        name: Name of the host in reports.

    Raises:
        PhantoraError: The log is not that of a real run, or the script fails under simulation.
    """
    from phantora import calibration

    log, path = _log(real), Path(out)
    if script is not None:
        run = _spec(CALIBRATE, script, args, module, options)
        found = calibration.calibrate_by(log, replace(run, cluster=cluster or log.metadata.cluster), name)
    else:
        found = calibration.calibrate(log, None if simulated is None else _log(simulated), name)
    calibration.write(found, path, path.with_suffix(".parquet"))
    return found


def goodput(
    run: Run | str | os.PathLike[str],
    *,
    tokens: float | str | None = None,
    steps: float | None = None,
    gpus: int | None = None,
    gpu_mtbf_hours: float | None = None,
    host_mtbf_hours: float | None = None,
    checkpoint_cost: float | None = None,
    checkpoint_lag: float | None = None,
    checkpoint: str | None = None,
    reclaims: float | None = None,
    notice: float | None = None,
    every: float | None = None,
    restart: float | None = None,
    stragglers: float | None = None,
    spares: int | None = None,
    repair: float | None = None,
    price: float | None = None,
    trials: int | None = None,
) -> Job:
    """Days, cost and useful share of a long job, from the log of a short run of it, as ``phantora goodput`` does.

    Times are seconds, shares 0 to 1, dollars per GPU and hour. None: from the log, or the default of
    ``phantora goodput``, whose inputs :class:`phantora.jobs.estimate.Inputs` explains. Raises PhantoraError."""
    from phantora.jobs.estimate import Inputs, estimate

    given: dict[str, Any] = {
        "tokens": _number("tokens", tokens),
        "steps": steps,
        "gpus": gpus,
        "gpu_mtbf_hours": gpu_mtbf_hours,
        "host_mtbf_hours": host_mtbf_hours,
        "checkpoint_cost": checkpoint_cost,
        "checkpoint_lag": checkpoint_lag,
        "checkpoint": checkpoint,
        "reclaims": reclaims,
        "notice": notice,
        "every": every,
        "restart": restart,
        "stragglers": stragglers,
        "spares": spares,
        "repair": repair,
        "price": price,
        "trials": trials,
    }
    return estimate(_log(run), Inputs(**{name: value for name, value in given.items() if value is not None}))


def diff(a: Run | str | os.PathLike[str], b: Run | str | os.PathLike[str]) -> Difference:
    """The differences between two runs, with their causes, as ``phantora diff`` finds them."""
    return _run(a).diff(_run(b))


def _run(given: Run | str | os.PathLike[str]) -> Run:
    return given if isinstance(given, Run) else Run(given)


def _log(given: Run | str | os.PathLike[str]) -> Log:
    return _run(given).log


def _lists(settings: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    return {
        name: tuple(value) if isinstance(value, list | tuple) else (value,)
        for name, value in settings.items()
        if value is not None
    }
