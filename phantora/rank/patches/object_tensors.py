"""Tensors in the objects of a program, and the blocks of GPU memory behind them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

_PLAIN = (str, bytes, int, float, complex, type(None), type)
_MOST = 100_000  # elements of a container that are looked at


def tensors_in(value: Any, depth: int, path: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """The tensors in containers and in the attributes of objects, each once, with the names on the way to it."""
    from torch import Tensor

    seen = set() if seen is None else seen
    if depth < 0 or isinstance(value, _PLAIN) or id(value) in seen:
        return
    seen.add(id(value))
    if issubclass(type(value), Tensor):
        yield path, value
        return
    for name, inner in _inner(value):
        yield from tensors_in(inner, depth - 1, f"{path}.{name}" if name else path, seen)


def _inner(value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(key if isinstance(key, str) else "", inner) for key, inner in list(value.items())[:_MOST]]
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return [("", inner) for inner in list(value)[:_MOST]]
    if hasattr(value, "__dict__") and not callable(value):
        return list(vars(value).items())
    return ()


def blocks(tensor: Any, least: int) -> Iterator[int]:
    """Addresses of the blocks of at least `least` bytes behind a tensor: its own, of a DTensor the part, of DeepSpeed's
    parameters the part."""
    for part in (tensor, getattr(tensor, "_local_tensor", None), getattr(tensor, "ds_tensor", None)):
        if part is None:
            continue
        # A subclass without storage of its own raises one of these. No use of it is noted then.
        with suppress(RuntimeError, NotImplementedError, AttributeError):
            if part.is_cuda:
                storage = part.untyped_storage()
                if storage.nbytes() >= least:
                    yield storage.data_ptr()
