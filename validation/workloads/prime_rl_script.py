"""Runs a trainer of a checkout of prime-rl, whose packages for inference and logging need not be installed.

    PYTHONPATH=CHECKOUT/src phantora trace --cluster 1x8xH100 -m validation.workloads.prime_rl_script SCRIPT [OPTION ...]

A module that a trainer imports and does not call in a benchmark is empty if it is not installed. Weights are not sent to
an engine: between two steps of reinforcement learning the trainer would write them to a disk. The second step is the
last, where a benchmark has four: steps repeat to the microsecond. Experts get equal numbers of tokens; use
`--moe-routing framework`.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import runpy
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

UNUSED = ("dion", "openai", "prime_evals", "renderers", "verifiers", "vllm", "wandb")
"""Muon, clients, environments, the engine, the logger. Benchmarks use AdamW and none of the others."""

STEPS = 2


class _Anything:
    """Stands for each name that is imported from an empty module."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass


def _anything(name: str) -> type[_Anything]:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (_Anything,), {})


class _Empty(importlib.abc.Loader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(__path__=[], __getattr__=_anything)


class _Unused(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in UNUSED:
            return None
        return importlib.machinery.ModuleSpec(name, _Empty(), is_package=True)


def _shorten() -> None:
    """Lets the trainer read its options with fewer steps, and print no table of several."""
    utils: Any = importlib.import_module("prime_rl.trainer.utils")
    utils.print_benchmark = lambda *_: None
    if hasattr(utils, "flexible_all_gather"):
        utils.flexible_all_gather = _gathered
    for module, name in (("prime_rl.utils.pydantic_config", "parse_argv"), ("prime_rl.utils.config", "cli")):
        if importlib.util.find_spec(module) is None:
            continue
        reader: Any = importlib.import_module(module)
        if hasattr(reader, name):
            setattr(reader, name, _with_steps(getattr(reader, name)))


def _gathered(tensor: Any) -> Any:
    """Statistics of all ranks, which have equally many: so one rank can stand for all."""
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)
    return torch.cat(parts)


def _with_steps(read: Callable[..., Any]) -> Callable[..., Any]:
    def shortened(*args: Any, **kwargs: Any) -> Any:
        config = read(*args, **kwargs)
        config.max_steps = STEPS
        return config

    return shortened


def _balance() -> None:
    """Gives each expert as many tokens as the others, where routers and the order of tokens count them."""
    layers: Any = importlib.import_module("prime_rl.trainer.models.layers.moe")
    for counting in (layers.TokenChoiceTopKRouter, layers.TokenReorderer):
        counting.forward = _balanced(counting.forward)


def _balanced(forward: Callable[..., Any]) -> Callable[..., Any]:
    def balanced(*args: Any) -> Any:
        scores, chosen, counts = forward(*args)
        return scores, chosen, counts.fill_(chosen.numel() // counts.numel())

    return balanced


def main() -> None:
    sys.meta_path.append(_Unused())
    sys.argv = sys.argv[1:]
    _shorten()
    _balance()
    broadcast: Any = importlib.import_module("prime_rl.trainer.rl.broadcast.filesystem")
    broadcast.FileSystemWeightBroadcast.broadcast_weights = lambda *_, **__: None
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
