"""Runs a trainer of a checkout of prime-rl, whose packages for inference and logging need not be installed.

    PYTHONPATH=CHECKOUT/src phantora trace --cluster 1x8xH100 -m validation.workloads.prime_rl_script SCRIPT [OPTION ...]

A module that a trainer imports and does not call in a benchmark is empty if it is not installed. Weights are not sent to
an engine: between two steps of reinforcement learning the trainer would write them to a disk.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import runpy
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

UNUSED = ("dion", "openai", "prime_evals", "renderers", "verifiers", "vllm", "wandb")
"""Muon, clients, environments, the engine, the logger. Benchmarks use AdamW and none of the others."""


class _Anything:
    """Stands for each name that is imported from an empty module."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass


class _Empty(importlib.abc.Loader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(__path__=[], __getattr__=lambda name: type(name, (_Anything,), {}))


class _Unused(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in UNUSED:
            return None
        return importlib.machinery.ModuleSpec(name, _Empty(), is_package=True)


def main() -> None:
    sys.meta_path.append(_Unused())
    sys.argv = sys.argv[1:]
    broadcast: Any = importlib.import_module("prime_rl.trainer.rl.broadcast.filesystem")
    broadcast.FileSystemWeightBroadcast.broadcast_weights = lambda *_, **__: None
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
