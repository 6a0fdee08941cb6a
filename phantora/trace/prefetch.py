"""Reads ahead: one item is unpacked in a thread while the caller works on the one before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TypeVar

Item = TypeVar("Item")


def prefetched(get: Callable[[int], Item], order: Iterable[int]) -> Iterator[Item]:
    """`get` of each number, in order. Raises what `get` raises."""
    numbers = iter(order)
    first = next(numbers, None)
    second = next(numbers, None)
    if first is None:
        return
    if second is None:
        yield get(first)
        return
    with ThreadPoolExecutor(1, "prefetch") as thread:
        waiting = thread.submit(get, first)
        for number in chain((second,), numbers):
            found = waiting.result()
            waiting = thread.submit(get, number)
            yield found
        yield waiting.result()
