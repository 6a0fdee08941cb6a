"""The class of kernels that a step loses most by, and what makes it faster."""

from __future__ import annotations

from dataclasses import dataclass

from phantora.trace.analysis.mfu import PRECISION, RECOMPUTED_LAYERS
from phantora.trace.analysis.report import Report, Work
from phantora.trace.analysis.summary import peak_of, slow_products
from phantora.trace.analysis.units import duration, percent

_WORTH_NAMING = 0.05  # of a step
_COMMUNICATION = "communication"
_FUSIBLE = ("elementwise", "copy", "reduction", "normalization", "loss", "fill")
_ATTENTION = "let torch.nn.functional.scaled_dot_product_attention compute attention"


@dataclass(frozen=True)
class SlowClass:
    """A class of kernels. `share` of a step is the time of kernels without flops; of others, their loss to the peak."""

    name: str
    share: float
    most: Work
    """The operator of the class that takes most time."""
    sentence: str


def slowest_class(report: Report) -> SlowClass | None:
    """None where no class loses 5 % of a step. Where flops are unknown, the class that takes most time."""
    steady, details = report.steady, report.details
    if details is None or not steady.time:
        return None
    losses = [loss for loss in report.losses if loss.name != RECOMPUTED_LAYERS]
    device = sum(time for name, time in report.by_class.items() if name != _COMMUNICATION)
    if losses:
        name, share, flops = losses[0].name, losses[0].share, losses[0].flops
    elif device:
        name = max((name for name in report.by_class if name != _COMMUNICATION), key=lambda name: report.by_class[name])
        share, flops = steady.compute / steady.time * report.by_class[name] / device, False
    else:
        return None
    own = [work for work in details.operators if work.cls == name]
    if share < _WORTH_NAMING or not own:
        return None
    most = max(own, key=lambda work: work.time)
    takes = f"takes {duration(share * steady.time)} of a step ({percent(share, 1)})"
    if flops:
        takes += f" more than at {peak_of(report)}"
    elif losses:
        takes += " and has no flops"
    of = "" if most.name == "(none)" else f", most in {most.name.removeprefix('aten::')}"
    text = f"Kernels: {name} {takes}{of}."
    slow = slow_products(report) if flops else ""
    return SlowClass(name, share, most, f"Precision: {slow}; {PRECISION}." if slow else text)


def hint_for_kernels(slowest: SlowClass, report: Report) -> str:
    """What the script does not do yet to make the class faster."""
    details = report.details
    names = [work.name for work in (*details.operators, *details.kernels)] if details is not None else []
    compiled = any(name.startswith(("inductor::", "triton_")) for name in names)
    if slowest.name == "optimizer":
        return "" if any(name.startswith("aten::_fused_") for name in names) else "fuse the optimizer (fused=True); "
    if slowest.most.name.endswith("softmax") and "log_softmax" not in slowest.most.name:
        return f"{_ATTENTION}; "
    if slowest.name in _FUSIBLE and not compiled:
        return "fuse them (torch.compile); "
    return ""
