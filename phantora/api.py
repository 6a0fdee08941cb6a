"""Runs from Python and notebooks.

    import phantora

    run = phantora.run("train.py", ["--layers", "4"], cluster="1x8xH100")
    run = phantora.open("run.arrow")
    table = phantora.sweep(preset="torchtitan", model="llama3-8b", cluster="8x8xH100")
    run.summary()["step_time_ns"], run.steps().to_pandas(), polars.from_arrow(run.kernels())

Tables are Arrow's; times are in ns, sizes in bytes. Every row of the log is in `run.table()` (docs/log.md).
"""

from __future__ import annotations

import html
import os
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from phantora import defaults
from phantora.errors import PhantoraError, Reason
from phantora.json_data import encode
from phantora.result import RunResult
from phantora.run_process import run_in_process
from phantora.spec import AUTO, MODULE, SCRIPT, FoldSpec, LaunchSpec, OutputSpec, RankSpec, RunSpec, WhatIfSpec
from phantora.trace.analysis.analyze import Filters, analyze
from phantora.trace.analysis.energy import priced
from phantora.trace.analysis.report import Report
from phantora.trace.analysis.tables import tables
from phantora.trace.analysis.units import amount, duration, size
from phantora.trace.reader import Log, open_log
from phantora.trace.schema import COMMUNICATION_KINDS

if TYPE_CHECKING:
    from phantora.dumps.why import Answer
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

        what_if = WhatIfSpec(tuple(degrade), tuple(straggler))
        spec = ReplaySpec(
            self.path, cluster, gpu, host, host_scale, what_if=what_if, output=OutputSpec(os.fspath(output))
        )
        result = replay(spec)
        if result.log is None:
            raise RunFailed(result)
        return Run(result.log)

    def view(self, *, port: int = 0) -> None:
        """Shows the run in a browser until interrupted, as ``phantora view`` does; port 0: any free one."""
        import webbrowser

        from phantora.view import server

        site = server.Site({"a": server.Run(self.log, self.report)})
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
        bar = "" if h.error is None or h.error_above is None else f" -{h.error:.1%} +{h.error_above:.1%}"
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
        """For notebooks: the headline, and where a steady step's time goes as a bar."""
        from phantora.view.palette import color

        facts = "".join(f"<tr><th>{html.escape(n)}</th><td>{html.escape(v)}</td></tr>" for n, v in self._facts())
        steady = self.report.steady
        parts = {"compute": steady.compute, **{name: time for name, time in steady.stalls.items() if time}}
        bars = "".join(
            f'<span title="{html.escape(name)}: {duration(time)}" style="display:inline-block;height:1em;'
            f'background:{color(name)};width:{100 * time / steady.time:.2f}%"></span>'
            for name, time in parts.items()
        )
        swatch = '<span style="color:{}">&#9632;</span> '
        causes = ", ".join(
            f"{swatch.format(color(name))}{html.escape(name)} {100 * time / steady.time:.1f}%"
            for name, time in parts.items()
        )
        title = f"<b>{html.escape(self.path.name)}</b> {html.escape(str(self.report.metadata['cluster']))}"
        return f'{title}<table>{facts}</table><div style="width:100%;font-size:0">{bars}</div><small>{causes}</small>'


def open_run(path: str | os.PathLike[str]) -> Run:
    """The run whose event log lies at `path`."""
    return Run(path)


def run(
    script: str | os.PathLike[str],
    args: Sequence[str] = (),
    *,
    cluster: str = defaults.CLUSTER,
    output: str | os.PathLike[str] | None = None,
    module: bool = False,
    nnodes: int | None = None,
    nproc_per_node: int | None = None,
    processes_per_gpu: int = 1,
    gpu_memory: float | None = None,
    host: str | None = None,
    host_time: str = "modelled",
    data_loading: str = "free",
    disk: str = "1GB/s",
    moe_routing: str = "balanced",
    assume: Sequence[str] = (),
    degrade: Sequence[str] = (),
    straggler: Sequence[str] = (),
    background: Sequence[str] = (),
    fold: str = AUTO,
    real_ranks: Sequence[int] = (),
    seed: int = 0,
    hang_timeout: float = 30.0,
    unsupported: str = "error",
    modules: bool = False,
    flows: bool = False,
    recording: bool = True,
    force: bool = False,
    quiet: bool = True,
) -> Run:
    """Runs a script on a simulated cluster and opens its log. Each option is that of ``phantora trace``.

    The run has a process of its own. An example::

        run = phantora.run("train.py", ["--layers", "2"], cluster="2x8xH100")
        print(run.summary()["step_time_ns"])

    Args:
        script: Path of the script, or a module's name with `module`.
        args: Arguments of the script.
        cluster: ``HOSTSxGPUSxMODEL`` or the path of a .toml file.
        output: Where the log (.arrow) or timeline goes; None: named after the script, in the current folder.
        module: `script` is a module, as in ``python -m``.
        nnodes: Hosts to use; None: all of the cluster.
        nproc_per_node: Ranks per host; None: its GPUs.
        processes_per_gpu: Processes that may share a GPU at a time.
        gpu_memory: GiB of each GPU in place of its own.
        host: Host CPU model: a built-in name, a .toml file, or a multiplier of ``default``.
        host_time: Source of the host time: ``modelled``, ``measured`` (this machine's CPU time), or ``none``.
        data_loading: Cost of a DataLoader's batch: ``free``, ``measured``, or a time such as ``12ms``.
        disk: Rate of checkpoints, written and read: ``2GB/s`` per host, ``20GB/s,shared``, or ``free``.
        moe_routing: Tokens per expert: ``balanced``, ``zipf:S``, a .json file with shares, or ``framework``.
        assume: Unknown values, such as ``["length=lognormal:900:0.8", "accept=0.7"]``.
        degrade: Slower parts of the network, such as ``["h0.nic0>*=0.5"]``.
        straggler, background: Slower ranks, and other traffic; forms as in ``phantora trace --help``.
        fold: ``auto`` (if the ranks do not fit this machine), ``off``, or the axes of the mesh whose ranks are folded.
        real_ranks: More ranks of a folded run that are processes.
        seed: Random generators of rank r start with `seed` + r.
        hang_timeout: Seconds without progress after which the run counts as hung.
        unsupported: Effect of a call that Phantora does not cover: ``error`` or ``warn``.
        modules: Log time, flops and memory by nn.Module.
        flows: Log all network flows and the traffic of each link.
        recording: The log includes the recording for :meth:`Run.replay`.
        force: A run that fails replaces an existing log too.
        quiet: What the script prints is dropped.

    Returns:
        The log of the run: steps, summary, tables, :meth:`Run.diff`, :meth:`Run.replay`.

    Raises:
        RunFailed: The run failed; its ``result`` has the reason and the partial log.
        PhantoraError: The options cannot be run.
    """
    spec = RunSpec(
        os.fspath(script),
        tuple(args),
        MODULE if module else SCRIPT,
        cluster=cluster,
        processes_per_gpu=processes_per_gpu,
        gpu_memory=gpu_memory,
        host=host,
        host_time=host_time,
        unsupported=unsupported,
        hang_timeout=hang_timeout,
        ranks=RankSpec(seed, data_loading, disk, moe_routing=moe_routing, assume=tuple(assume), modules=modules),
        fold=FoldSpec(fold, tuple(real_ranks)),
        what_if=WhatIfSpec(tuple(degrade), tuple(straggler), tuple(background)),
        launch=LaunchSpec(str(nnodes or AUTO), str(nproc_per_node or AUTO)),
        output=OutputSpec(os.fspath(output) if output is not None else "", force, recording, flows),
    )
    result = run_in_process(spec, quiet=quiet)
    if result.reason != Reason.OK or result.log is None:
        raise RunFailed(result)
    return Run(result.log)


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
        raise PhantoraError(f"unknown collective {op!r}; known: {', '.join(sorted(names))}")
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
    options: Sequence[str] = (),
    fold: str = "one",
) -> pa.Table:
    """Runs a script in many layouts as ``phantora sweep`` does; a row per point, the best first (docs/sweeps.md).

    `space` is a sweep file, or its content as a mapping. `settings` are values of axes or of computed names, one or
    a list each. Others are as on the command line. Times are in ns, sizes in bytes. Raises PhantoraError."""
    from phantora.cli.trace import read_command
    from phantora.sweeps.objective import Objective, parse_prices
    from phantora.sweeps.run import Request, run_sweep
    from phantora.sweeps.spaces import space_from

    found = space_from(space, preset, model, wide, target, _lists({"cluster": cluster, **(settings or {})}), rules)
    objective = Objective(by, parse_prices(None if price is None else str(price)))
    request = Request(
        found,
        Path(output),
        read_command,
        objective,
        screen,
        finalists,
        search,
        seed,
        jobs,
        ray,
        everything,
        again,
        needs,
        top,
        tuple(options),
        fold,
    )
    return run_sweep(request).answer.table()


def _lists(settings: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    return {
        name: tuple(value) if isinstance(value, list | tuple) else (value,)
        for name, value in settings.items()
        if value is not None
    }
