"""Operator families, one module each: this package imports all of its modules (docs/operator-families.md)."""

from __future__ import annotations

from functools import cache, lru_cache
from importlib import import_module
from pkgutil import iter_modules

from phantora.cost.family import LAST, Family

OWN_NAMESPACES = frozenset(("", "aten", "prims", "inductor", "quantized", "phantora"))
"""Namespaces of torch's operators, and of kernels that torch generates. Other namespaces stay a part of the name."""


def base_name(name: str) -> str:
    """``aten::add_.Tensor`` -> ``add_``, ``mylib::mm.out`` -> ``mylib::mm``."""
    namespace, _, base = name.rpartition("::")
    base = base.partition(".")[0]
    return base if namespace in OWN_NAMESPACES else f"{namespace}::{base}"


@cache
def families() -> tuple[Family, ...]:
    """All families, in the order in which they are asked."""
    modules = (import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__))
    found: list[Family] = [module.FAMILY for module in modules]
    return tuple(sorted(found, key=lambda family: (family.precedence, family.name)))


@lru_cache(maxsize=8192)
def identify(name: str) -> tuple[Family, str]:
    """The family and the class (of ``types.CLASSES``) of the operator with base name `name`.

    Of an extension's only families are asked that go by whole names, and :mod:`unknown` in the end: what part of its
    name says need not be so.
    """
    foreign = "::" in name
    for family in families():
        if foreign and 0 < family.precedence < LAST:
            continue
        cls = family.classify(name)
        if cls is not None:
            return family, cls
    raise LookupError(f"no family takes {name}; elementwise and unknown take all that is left")


def family_of(name: str) -> Family:
    """The family of the operator with base name `name`."""
    return identify(name)[0]


def class_of(name: str) -> str:
    """The class of the operator with base name `name`."""
    return identify(name)[1]
