"""A family of operators: its operators, their durations, and when two are equivalent.

A family is a module of ``phantora/cost/families`` with a constant ``FAMILY``; to write it is to add the family.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple, Protocol

from phantora.cost import coordinates
from phantora.cost.coordinates import Place
from phantora.cost.gaussian_process import GaussianProcess
from phantora.cost.machine import Machine
from phantora.cost.table import Table
from phantora.cost.training_points import PointsCache
from phantora.cost.types import KernelLaunch, OperatorSignature

Kernels = tuple[KernelLaunch, ...]
LAST = 100  # precedence of the families that take what is left
UNKNOWN_ERROR = 1.0  # relative: of what nothing is known but its name


@dataclass(frozen=True)
class Estimate:
    """The analytic model's answer for an operator: ns of all its kernels, bytes to and from memory, flops.

    `format`, `tiles`, `sms` and `computed` as in :class:`phantora.cost.types.Price`. `parts` are ns of each kernel
    where the model tells them apart; else the whole is spread by their threads. `cls` and `error` (relative) replace
    those of the family.
    """

    ns: float
    moved: float
    _: KW_ONLY
    flops: float = 0.0
    format: str = ""
    tiles: int = 0
    sms: int = 0
    computed: float = 1.0
    parts: tuple[float, ...] = ()
    cls: str = ""
    error: float | None = None


Model = Callable[[Machine, OperatorSignature, str, Kernels], Estimate]
"""The estimate of an operator with its base name and the kernels that it launches (none: they are not known)."""


class Prediction(NamedTuple):
    """ns, the octaves to the nearest that is comparable, and the relative error where more is known than that of its
    class."""

    ns: float
    distance: float
    error: float | None = None


class Predictor(Protocol):
    """Predicts operators from measured ones by other means than near places."""

    def read(self, signature: OperatorSignature, compute: str) -> Prediction | None:
        """None if nothing comparable was measured."""
        ...

    def processes(self) -> Iterable[GaussianProcess]:
        """The processes that predictions are read from."""
        ...


def _as_it_is(signature: OperatorSignature, kernel: KernelLaunch) -> KernelLaunch:
    return kernel


def _not_more(machine: Machine, signature: OperatorSignature, name: str) -> float:
    return 0.0


def _cores(there: Machine, here: Machine, signature: OperatorSignature) -> float:
    return here.cycles_ns(1.0) / there.cycles_ns(1.0)


@dataclass(frozen=True)
class Family:
    """Operators that one model prices. All but the first three fields have defaults that most families keep."""

    name: str
    classify: Callable[[str], str | None]
    """The class (of ``types.CLASSES``) of an operator by its base name; None if it is none of this family."""
    estimate: Model
    _: KW_ONLY
    precedence: int = 0
    """Families are asked in this order, and the first that claims an operator has it: those that go by whole names
    before those that go by parts of names."""
    takes_libraries: bool = False
    """True if the estimate covers products of a called library. Others leave these to the products' family."""

    places: Callable[[OperatorSignature, str, str, int], tuple[Place, ...]] = coordinates.by_size
    """Places of an operator among measured ones: from its signature, base name, compute mode and the number of its
    kernels; the narrowest family of places first."""
    depends_on_kernels: bool = True
    """Do the names of kernels say which operators are comparable? Not where a library chooses them by size."""
    together: tuple[str, ...] = ()
    """Base names whose measurements count for each other."""
    predictor: Callable[[Machine, Table, str, PointsCache | None], Predictor] | None = None
    """Instead of `places`: of the GPU that a table was measured on, the table, and an operator's base name; where what
    is made of the table is kept."""
    same_work: Callable[[OperatorSignature], OperatorSignature | None] | None = None
    """Another signature whose measurement holds for this one; None if there is none."""

    call_of: Callable[[OperatorSignature, KernelLaunch], KernelLaunch] = _as_it_is
    """A kernel with what the operator's arguments say of its library's call that the call itself does not."""

    ns_of_arguments: Callable[[Machine, OperatorSignature, str, str], float | None] | None = None
    """ns from the arguments and the compute mode alone, where the estimate would depend on the library's call."""
    read_again: Callable[[Machine, OperatorSignature, str], float] = _not_more
    """Bytes that kernels read from memory a second time, because what is under way does not fit into L2."""
    cores: Callable[[Machine, Machine, OperatorSignature], float] = _cores
    """Time of the SMs on the second GPU over their time on the first."""
