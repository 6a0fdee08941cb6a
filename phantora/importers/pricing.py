"""Class, flops and bytes of what ran, from the operator's shapes or else from the kernel's name."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from phantora.cost.analytic_model import AnalyticModel
from phantora.cost.families import OWN_NAMESPACES, base_name, class_of
from phantora.cost.kernel_names import class_of_kernel
from phantora.cost.tensors import tensors
from phantora.cost.types import OperatorSignature
from phantora.hardware import load_gpu
from phantora.importers.linking import Links
from phantora.importers.rank import CODES, RankTrace, Texts, Vocabulary, is_device
from phantora.importers.schedule import Ints
from phantora.importers.signatures import UNKNOWN_DTYPE
from phantora.trace.schema import COMMUNICATION_KINDS, REAL, PriceRow

_ANY_GPU = "H100-SXM"  # flops and bytes of an operator are the same on each


class Pricer:
    """Numbers of prices, of which the log's rows have a class, flops and bytes."""

    def __init__(self, words: Vocabulary) -> None:
        self.prices = Texts()
        """``phantora.trace.schema.PriceRow`` by number."""
        self._words = words
        self._analytic = AnalyticModel(load_gpu(_ANY_GPU))
        self._of_operator: dict[int, tuple[str, float, float] | None] = {}
        self._class_of_name: dict[int, str] = {}

    def prices_of(self, trace: RankTrace, links: Links) -> tuple[Ints, npt.NDArray[np.int32]]:
        """For each row of `trace` the number of its price (-1: none) and the part of its operator that it is: 0 for the
        longest kernel, which has the operator's flops."""
        rows = trace.rows
        price, part = np.full(len(rows), -1, np.int64), np.zeros(len(rows), np.int32)
        device = np.flatnonzero(is_device(links.kind))
        part[device] = ~_longest(rows["end"][device] - rows["start"][device], links.operator[device])
        sig = np.where(links.operator[device] >= 0, rows["sig"][np.maximum(links.operator[device], 0)], -1)
        keys = np.stack([links.kind[device].astype(np.int64), sig, rows["name"][device]])
        found, place = np.unique(keys, axis=1, return_inverse=True)
        numbers = np.array([self._number(*key) for key in found.T.tolist()] or [-1], np.int64)
        price[device] = numbers[place.reshape(-1)] if len(device) else -1
        return price, part

    def _number(self, kind: int, sig: int, name: int) -> int:
        if kind in (CODES["memcpy"], CODES["memset"]):
            row = PriceRow("copy" if kind == CODES["memcpy"] else "memset", REAL)
        elif kind in [CODES[each] for each in COMMUNICATION_KINDS]:
            row = PriceRow("communication", REAL)
        else:
            known = self._operator(sig)
            row = (
                PriceRow(known[0], REAL, flops=known[1], bytes=known[2])
                if known
                else PriceRow(self._by_name(name), REAL)
            )
        return self.prices.number(row)

    def _by_name(self, name: int) -> str:
        if name not in self._class_of_name:
            self._class_of_name[name] = class_of_kernel(self._words.names.words[name])
        return self._class_of_name[name]

    def _operator(self, sig: int) -> tuple[str, float, float] | None:
        """Class, flops and bytes of an operator of torch; None for others, whose names say nothing of their work."""
        if sig < 0:
            return None
        if sig not in self._of_operator:
            self._of_operator[sig] = self._priced(self._words.signatures.words[sig].signature)
        return self._of_operator[sig]

    def _priced(self, signature: OperatorSignature) -> tuple[str, float, float] | None:
        namespace = signature.name.rpartition("::")[0]
        if not namespace or namespace not in OWN_NAMESPACES:
            return None
        cls = class_of(base_name(signature.name))
        if not signature.args:
            return cls, 0.0, 0.0
        try:
            price = self._analytic.operator(signature, ())
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            return cls, 0.0, 0.0
        exact = all(tensor.dtype != UNKNOWN_DTYPE for tensor in tensors(signature.args))
        return price.cls, price.flops, price.bytes if exact else 0.0


def _longest(duration: Ints, operator: Ints) -> npt.NDArray[np.bool_]:
    """The longest row of each operator, and all rows without one."""
    first = operator < 0
    order = np.lexsort((-duration, operator))
    own = operator[order]
    begins = np.concatenate([[True], own[1:] != own[:-1]]) if len(own) else np.zeros(0, bool)
    first[order[begins]] = True
    return np.asarray(first)
