"""Losses."""

from __future__ import annotations

from math import ceil, log2

from phantora.cost import coordinates
from phantora.cost.coordinates import Place
from phantora.cost.families.elementwise import passes_memory
from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import nbytes, on_gpu
from phantora.cost.types import OperatorSignature
from phantora.ttir.work import LINE_BYTES

NLL_FLOOR_NS = 1500.0  # read from traces on H200 (docs/accuracy.md)
# Backward (400 of 4 to 169,343 rows in the shipped tables and validation/workloads): a block with a
# thread for
# every 16 rows goes over all rows. A round waits, and each of its rows opens a line (shorter rows share lines).
NLL_ROUND_NS, NLL_ROW_NS, NLL_LINE_NS = 320.0, 0.13, 0.60
NLL_THREADS, NLL_ROWS_PER_THREAD = (32, 1024), 16
# Of a time step of CTC's recursion, forward and backward, whatever the batch: 400 steps of 32 x 29, 100 labels, on an
# H100 (validation/workloads).
CTC_STEP_NS = (600.0, 1440.0)


def classify(name: str) -> str | None:
    """Names end or begin so."""
    named = name.endswith(("_loss", "_loss_backward")) or "ctc_loss" in name
    return "loss" if named or _by_row(name) else None


def _by_row(name: str) -> bool:
    return "nll_loss" in name or "cross_entropy" in name


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """Negative log-likelihood picks values, CTC goes step by step; others go over their operands."""
    if name.startswith("_ctc_loss"):
        return ctc_loss(machine, signature, name, kernels)
    return (nll_loss if _by_row(name) else passes_memory)(machine, signature, name, kernels)


def ctc_loss(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """torch's own kernels go over the time steps one after the other."""
    scores = next((t for t in on_gpu(signature.args) if len(t.shape) == 3), None)
    if scores is None:
        return passes_memory(machine, signature, name, kernels)
    backward = "backward" in name
    moved = float(nbytes(scores)) * (3 if backward else 1)
    return Estimate(machine.memory_ns(moved) + scores.shape[0] * CTC_STEP_NS[backward], moved)


def nll_loss(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """One value per row is read, or written: the zero fill is an operator of its own. A single block does it."""
    given = on_gpu(signature.args)
    logits = given[1] if "backward" in name and len(given) > 1 else given[0] if given else None
    rows = logits.shape[0] if logits is not None and logits.shape else 1
    moved = float(rows * (32 + 8))
    if "backward" in name and logits is not None:
        return Estimate(machine.fit.floor_ns + _written_ns(rows, nbytes(logits) / max(1, rows)), moved)
    return Estimate(machine.memory_ns(moved) + NLL_FLOOR_NS + rows, moved)


def _written_ns(rows: int, row_bytes: float) -> float:
    """Time of the kernel that writes a value to each row."""
    threads = 1 << ceil(log2(max(1, rows // NLL_ROWS_PER_THREAD)))
    threads = min(max(threads, NLL_THREADS[0]), NLL_THREADS[1])
    each = NLL_ROW_NS + NLL_LINE_NS * min(1.0, row_bytes / LINE_BYTES)
    return ceil(rows / threads) * NLL_ROUND_NS + rows * each


def places(signature: OperatorSignature, name: str, compute: str, launches: int) -> tuple[Place, ...]:
    """Rows."""
    return coordinates.by_rows(signature, name, launches, images="norm" in name)


FAMILY = Family("loss", classify=classify, estimate=estimate, precedence=30, places=places)
