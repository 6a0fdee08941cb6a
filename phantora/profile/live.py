"""Measuring during a run: operators that no table has, once, into the user's cache."""

from __future__ import annotations

import re
from typing import Any

from phantora.cache import make_folder
from phantora.cost.parse import write_signature
from phantora.cost.table import Entry, signature_key
from phantora.cost.table_files import cache_folder
from phantora.cost.types import OperatorSignature
from phantora.cost.wanted import Wanted
from phantora.errors import PhantoraError
from phantora.hardware.types import Gpu
from phantora.profile.session import Book, Worker, WorkerDied


class LiveProfiler:
    """Measures operators on the GPU of this machine, which must be of the simulated kind.

    Raises PhantoraError when made without such a GPU. Close it to write the table.
    """

    def __init__(self, gpu: Gpu) -> None:
        self._worker = Worker()
        found = self._worker.about.get("gpu", "")
        if found != gpu.product:
            self._worker.close()
            raise PhantoraError(
                f"--profile live measures on this machine's {found}, and the cluster has {gpu.product}; "
                f"simulate a cluster of the former, or leave --profile out"
            )
        folder = cache_folder()
        make_folder(folder)
        made_with = f"{found} torch {self._worker.about.get('torch', '')}".lower()  # one table contains one of each
        slug = re.sub(r"[^a-z0-9.]+", "-", made_with).strip("-")
        self._book = Book(folder / f"{slug}.parquet")
        self.measured = 0

    def __call__(self, signature: OperatorSignature, compute: str) -> Entry | None:
        """The operator's entry, or None if it cannot be measured."""
        key = signature_key(signature, compute)
        if key not in self._book.entries and key not in self._book.failures:
            wanted = Wanted(signature=write_signature(signature), compute=compute)
            self._book.add(self._worker.about, self._results(wanted))
            self.measured += key in self._book.entries
        return self._book.entries.get(key)

    def _results(self, wanted: Wanted) -> list[dict[str, Any]]:
        try:
            return self._worker.measure([wanted])
        except WorkerDied as death:
            self._worker.close()
            self._worker = Worker()
            return [{"signature": wanted.signature, "compute": wanted.compute, "kernels": [], "error": str(death)}]

    def close(self) -> None:
        """Ends the worker and writes what it measured."""
        self._worker.close()
        self._book.finish()
