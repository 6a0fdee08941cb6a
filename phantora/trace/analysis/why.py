"""``phantora why`` of a log: the cause of a slow step, its place in the timeline and the next experiment."""

from __future__ import annotations

from phantora.trace.analysis.data import CPU_WORK
from phantora.trace.analysis.delays import longest_stage, lost_by
from phantora.trace.analysis.findings import EXCLUDED, no_sync, of_time
from phantora.trace.analysis.host_waits import BOUND, CPU, ON_CPU, most_in
from phantora.trace.analysis.kernels_first import hint_for_kernels, slowest_class
from phantora.trace.analysis.late_hosts import hosts_decide, late_host
from phantora.trace.analysis.late_hosts import sentence as of_host
from phantora.trace.analysis.loader import LOADER, loader_of
from phantora.trace.analysis.memory_fit import keep_less
from phantora.trace.analysis.report import Delay, Report
from phantora.trace.analysis.slower_ranks import times_the_work
from phantora.trace.analysis.summary import ON_THE_GPU, lines, what_would_fit
from phantora.trace.analysis.units import duration
from phantora.wire.names import CUDNN_PLAN

_SHOWN = ("STEP", "HELD UP", "LOST")
_OF_MEMORY = ("FAILED", "FITS", "MEMORY", "GROWS")
_OF_ONE_HOST = "do less on this rank's CPU (logging, metrics, checkpoints), or share it among ranks"
_PIN = "pin the host's memory (pin_memory=True) and copy with non_blocking=True"
_OF_HOST = {
    LOADER: "try more workers (num_workers) or cheaper transforms",
    ON_CPU: "keep the optimizer's state on the GPU, or take a CPU optimizer with one pass over memory (fused=True)",
    CPU: "make the batch on the GPU or in a DataLoader's workers, or use more CPU threads (OMP_NUM_THREADS)",
    "aten::copy_": _PIN,
    CUDNN_PLAN: "pad to a few lengths, or choose another attention (torch.nn.attention.sdpa_kernel)",
}
_OF_APART = {  # by the note of the steps
    "checkpoint": "save less often, or in the background (torch.distributed.checkpoint.async_save)",
    "evaluation": "evaluate less often, or on fewer batches",
    "recompile": "compile once: mark what changes as dynamic (torch._dynamo.mark_dynamic), or pad to a few lengths",
}
_COPY_LESS = "copy less, or next to compute (non_blocking=True, a stream of its own)"
_DECIDES = 0.05  # of a step, from where a stall is worth an experiment of its own


def answer(report: Report) -> list[tuple[str, str]]:
    """At most five lines, a word and its text each."""
    if report.failure:
        return _of_failure(report)
    summary = dict(lines(report))
    found = [(word, summary[word]) for word in _SHOWN if word in summary]
    if summary.get("FITS", "").startswith("no"):
        found.insert(0, ("FITS", summary["FITS"]))
    if "GROWS" in summary:  # in place of LOST: the run ends by it
        found = [("GROWS", summary["GROWS"]), *(line for line in found if line[0] != "LOST")]
    findings = report.details.findings if report.details is not None else []
    cause = of_time(findings)
    less = f"{keep_less(report.growth)}; for the step: " if report.growth is not None else ""
    first = ""
    if report.growth is not None:
        first = f"memory {'may end a longer' if report.growth.far else 'ends the'} run (GROWS); of the step: "
    if cause.startswith(EXCLUDED):
        return [
            *found,
            ("WHY", first + cause),
            ("NEXT", f"{less}{_rarer(cause)}phantora view {report.path} shows them"),
        ]
    slowest = slowest_class(report)
    if slowest is not None and _largest_delay(report) < min(slowest.share, BOUND):
        cause = slowest.sentence
        return [
            *found,
            ("WHY", first + cause),
            ("NEXT", f"{less}{hint_for_kernels(slowest, report)}{_kernels(report)}"),
        ]
    found += [("WHY", first + cause)] if cause else []
    return [*found, ("NEXT", f"{less}{_place(report)}{_experiment(report)}")]


def _rarer(cause: str) -> str:
    """What makes the work between the steps take less of the run."""
    return "".join(f"{remedy}; " for note, remedy in _OF_APART.items() if note in cause)


def _largest_delay(report: Report) -> float:
    """Share of a step that the largest delay costs."""
    return max((lost_by(one) for one in report.delays), default=0.0) / report.steady.time if report.steady.time else 0.0


def _of_failure(report: Report) -> list[tuple[str, str]]:
    """What ended the run. Of one out of memory also what grew and what would make it fit; the speed of the others is
    not what they failed by."""
    fit = report.details.fit if report.details is not None else None
    if fit is None or fit.fits:
        return [("FAILED", report.failure)]
    found = [(word, text) for word, text in lines(report) if word in _OF_MEMORY]
    remedy = what_would_fit(report)
    return [*found, ("NEXT", remedy)] if remedy else found


def _first(report: Report) -> Delay | None:
    """The delay that costs most; None where kernels decide the step."""
    first = max(report.delays, key=lost_by, default=None)
    return first if first is not None and lost_by(first) >= _DECIDES * report.steady.time else None


def _place(report: Report) -> str:
    """The rank and step of which the largest stall takes most."""
    first = _first(report)
    cause = first.cause if first is not None else ""
    if cause == "host" and report.headline.without_data is not None:
        return ""  # no row has it
    steps = [
        (step.times.stalls.get(cause, 0.0), rank.rank, step)
        for rank in report.ranks
        for step in rank.steps
        if not step.note
    ]
    if not cause or not steps:
        return ""
    _, rank, step = max(steps, key=lambda item: (item[0], -item[1]))
    where = f" in step {step.number},"
    what = f"see rank {rank} wait for it" if cause == "late rank" else f"see it on rank {rank}"
    if report.step_source == "run":
        return f"{what}: phantora analyze {report.path} --ranks {rank}; "
    command = f"phantora analyze {report.path} --ranks {rank} --steps {step.number}"
    return f"{what}{where} from {duration(step.start)} on: {command}; "


def _equal(late: Delay, report: Report) -> str:
    """What makes one late rank as fast as the others."""
    if late.rank is None:
        return ""
    if times_the_work(report.ranks, late.rank) > 1:
        return f"give rank {late.rank} an equal share of the data; "
    if late_by := of_host(report, late.rank):
        return f"{late_by}: {_OF_ONE_HOST}; "
    return f"check clocks, temperature and other processes of rank {late.rank}'s GPU; " if late.slower else ""


def _hint(cause: str, report: Report) -> str:
    """What makes the largest stall smaller; "" for those that other lines tell of."""
    if cause == "host":
        most, loader = most_in(report), loader_of(report.trailer)
        if loader is not None and LOADER in most:
            return f"{loader.remedy()}; "
        hints = [hint for words, hint in _OF_HOST.items() if words in most]
        if not hints and (rank := late_host(report)) is not None:
            return f"{of_host(report, rank)}: {_OF_ONE_HOST}; "
        return f"{'; '.join(hints) or _fewer_launches(report)}; "
    if cause == "synchronisation":
        return "read values of the GPU less often (.item(), .cpu(), print); "
    if cause == "copy":
        kernels = report.details.kernels if report.details is not None else []
        copies = [work for work in kernels if work.name.startswith("Memcpy")]
        most = max(copies, key=lambda work: work.time).name if copies else ""
        return f"{_PIN if 'Pageable' in most else _COPY_LESS}; "
    return ""


def _fewer_launches(report: Report) -> str:
    """What the script does not do yet to launch less."""
    details = report.details
    names = [work.name for work in (*details.operators, *details.kernels)] if details is not None else []
    graphs = details is not None and details.graphs
    compiled = any(name.startswith(("inductor::", "triton_")) for name in names)
    fused = any(name.startswith("aten::_fused_") for name in names)
    ways = {
        "torch.compile": compiled,
        "mode='reduce-overhead' of torch.compile" if compiled else "CUDA graphs": graphs,
        "fused optimizers": fused
        or not any(work.cls == "optimizer" for work in (details.operators if details else [])),
    }
    less = ", ".join(way for way, used in ways.items() if not used)
    return (
        f"launch less ({less}) or larger kernels (a larger batch)" if less else "launch larger kernels (a larger batch)"
    )


def _is_real(report: Report) -> bool:
    return bool(report.metadata.get("extra", {}).get("imported"))


def _experiment(report: Report) -> str:
    """What makes the largest stall smaller, and a command that simulates the run without it."""
    first, log = _first(report), report.path
    if report.without_gpu:
        return f"phantora analyze {log} lists the operators of the host" if _is_real(report) else ON_THE_GPU
    cause = first.cause if first is not None else ""
    hint = _hint(cause, report)
    if report.metadata.get("extra", {}).get("imported", {}).get("no_replay"):
        shown = f"phantora analyze {log} lists the kernels and what is open meanwhile; phantora view {log} shows them"
        return f"{hint}{shown}"
    if cause == "host" and report.headline.without_data is not None:
        return f"{hint}phantora trace --data-loading measured simulates the data"
    if cause == "host" and report.headline.widest == CPU_WORK:
        return f"{hint}phantora trace --host-time measured counts the script's work on the CPU"
    if cause == "host" and loader_of(report.trailer) is not None and LOADER in most_in(report):
        return f"{hint}phantora trace --data-loading 5ms has batches that take 5 ms"
    if cause in ("host", "synchronisation"):
        return f"{hint}phantora replay {log} --host-scale 0.5 has half of the host time"
    if cause == "copy":
        return f"{hint}phantora analyze {log} lists the copies"
    if first is not None and cause == "late rank":
        real = "phantora replay {0} --stragglers none has equal ranks; " if _is_real(report) else ""
        return f"{_equal(first, report)}{real.format(log)}phantora analyze {log} compares the ranks' work"
    if cause == "pipeline bubble" and longest_stage(report.ranks):
        return f"give the rank that computes longest fewer layers; phantora analyze {log} compares the ranks"
    if cause == "pipeline bubble" and hosts_decide(report):
        return f"{_fewer_launches(report)}; phantora replay {log} --host-scale 0.5 has half of the host time"
    if cause in ("transfer", "pipeline bubble"):
        links = f"phantora replay {log} --cluster SPEC has the links of another machine; " if _scales(report) else ""
        once = no_sync(report, report.details) if cause == "transfer" and report.details is not None else ""
        return f"{once}{'; ' if once else ''}{links}phantora sweep tries other layouts of its script"
    return _kernels(report)


def _kernels(report: Report) -> str:
    return f"the kernels decide: phantora analyze {report.path} lists them"


def _scales(report: Report) -> bool:
    """False for a real run of a GPU without a file here: a replay cannot scale its durations to another machine."""
    return not _is_real(report) or bool(report.metadata["peak_flops"])
