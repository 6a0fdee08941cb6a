"""The question to the sources of prices: an operator in the form that all of them read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

from phantora.cost import float8
from phantora.cost.analytic_model import OF_PROGRAMS, AnalyticModel
from phantora.cost.families import attention, base_name, family_of, gemm
from phantora.cost.families.attention import Attention
from phantora.cost.parse import compute_of
from phantora.cost.table import signature_key
from phantora.cost.tensors import as_measured, on_gpu
from phantora.cost.types import KernelLaunch, OperatorSignature, Price


@dataclass(frozen=True, kw_only=True)
class Query:
    """One operator with its kernels, normalised once."""

    signature: OperatorSignature
    """As tables write it: without outputs, and products in FP8 and FP4 by one operator."""
    compute: str
    """``tf32`` where a library call multiplies float32 so, else empty."""
    kernels: tuple[KernelLaunch, ...]
    keys: tuple[str, ...]
    """Keys of table entries that hold for the operator, the exact one first."""
    l2_hits: float | None
    """Share of the operands that L2 holds; None: unknown."""
    base: Price
    """The analytic price. Other sources replace its durations, provenance and error."""

    @cached_property
    def name(self) -> str:
        """The operator's base name."""
        return base_name(self.signature.name)

    @cached_property
    def products(self) -> tuple[gemm.Product, ...]:
        """The operator's products with the format that they are computed in; empty for other operators."""
        found = gemm.from_signature(self.signature, self.name) if self.name in gemm.PUBLISHED else []
        return tuple(replace(one, dtype="tfloat32") if self.compute == "tf32" else one for one in found)

    @cached_property
    def attention(self) -> Attention | None:
        """The operator's attention; None for other operators."""
        return attention.from_signature(self.signature, self.name) if attention.classify(self.name) else None

    @cached_property
    def comparable(self) -> bool:
        """True if measurements of other operators apply.

        They do not apply to a program's own kernels, whose names say nothing about their work, and not to operators
        with sparse operands.
        """
        own_kernel = self.signature.work is not None or self.signature.name.startswith(OF_PROGRAMS)
        return not own_kernel and not any(tensor.layout for tensor in on_gpu(self.signature.args))


class Source(Protocol):
    """One way to price an operator."""

    def price(self, query: Query) -> Price | None:
        """The price; None if this source has none for `query`."""
        ...


def query_of(
    analytic: AnalyticModel, signature: OperatorSignature, kernels: tuple[KernelLaunch, ...], l2_hits: float | None
) -> Query:
    """The query for an operator on the GPU of `analytic`."""
    base = analytic.operator(signature, kernels)
    signature = float8.as_tables_have_it(replace(as_measured(signature), outputs=()))
    compute = compute_of(kernels)
    same_work = family_of(base_name(signature.name)).same_work
    same = (signature, same_work(signature) if same_work else None)
    keys = tuple(signature_key(each, compute) for each in same if each is not None)
    return Query(signature=signature, compute=compute, kernels=kernels, keys=keys, l2_hits=l2_hits, base=base)
