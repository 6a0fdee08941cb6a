"""Device memory that operands of measured operators are cut from."""

from __future__ import annotations

from math import prod

import torch

from phantora.cost.types import TensorSpec

ALIGNMENT = 512  # of operands, as torch's allocator gives them
SMALLEST = 0.25  # of positive operands
NARROW = 256 << 20  # bytes of bfloat16 from which FP8 numbers are made

DTYPES = {str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.dtype)}


class Unbuildable(Exception):
    """Why an operator cannot be called from its signature alone."""


class Arena:
    """Device memory that operands are cut from: a third that is only read, and the rest, which may be written.

    It contains the operands of one call. The next takes the same place.
    """

    def __init__(self, size: int, device: str = "cuda") -> None:
        """`size` in bytes, of both parts together."""
        third = size // 3 // ALIGNMENT * ALIGNMENT
        self.device = device
        self._memory = torch.empty(3 * third, dtype=torch.uint8, device=device)
        piece = self._memory.view(torch.bfloat16)[: min(third, 1 << 30) // 2]
        piece.normal_()
        for start in range(0, 3 * third, 2 * len(piece)):  # the same numbers, again and again
            rest = self._memory[start : start + 2 * len(piece)]
            rest.copy_(piece.view(torch.uint8)[: len(rest)])
        # Pairs and quadruples of positive bfloat16 are positive in the other floating-point formats.
        self._positive = piece.abs().clamp_(min=SMALLEST).view(torch.uint8)
        self._narrow: dict[torch.dtype, torch.Tensor] = {}
        self.call = 0  # the number of the call whose operands it contains
        self._starts = (0, third)
        self._ends = (third, 3 * third)
        self._used = list(self._starts)

    def reset(self) -> None:
        """Forgets what was cut: the next operands take the same place."""
        self._used = list(self._starts)
        self.call += 1

    def cut(self, spec: TensorSpec, written: bool, positive: bool = False) -> torch.Tensor:
        """A tensor as `spec` says, from the part that may be `written` also if it must be `positive`. Raises
        Unbuildable when it does not fit."""
        dtype = dtype_of(spec.dtype)
        narrow = dtype.is_floating_point and dtype.itemsize == 1
        written = written or positive or narrow
        elements = 1 + sum((n - 1) * s for n, s in zip(spec.shape, spec.stride, strict=True)) if prod(spec.shape) else 0
        size = -(-elements * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        start = self._used[written]
        if start + size > self._ends[written]:
            room = self._ends[written] - self._starts[written]
            raise Unbuildable(f"its operands take more than the {room >> 30} GiB set aside for them")
        self._used[written] = start + size
        used = self._memory[start : start + elements * dtype.itemsize]
        flat = used.view(dtype)
        if written:  # earlier operators have left their results here
            source = self._narrow_numbers(dtype) if narrow else self._memory[: self._starts[1]]
            source = self._positive if positive else source
            for at in range(0, len(used), len(source) or 1):
                piece = used[at : at + len(source)]
                piece.copy_(source[: len(piece)])
        return flat.as_strided(spec.shape, spec.stride)

    def _narrow_numbers(self, dtype: torch.dtype) -> torch.Tensor:
        """Bytes of random numbers of an FP8 format: those of bfloat16 numbers draw less power in products, which take
        0.92 of the time then (validation/probes/scaled_products.py)."""
        if dtype not in self._narrow:
            numbers = self._memory[: min(NARROW, self._starts[1])].view(torch.bfloat16)
            self._narrow[dtype] = numbers.to(dtype).view(torch.uint8)
        return self._narrow[dtype]


def dtype_of(name: str) -> torch.dtype:
    """torch's dtype of that name. Raises Unbuildable."""
    found = DTYPES.get(name)
    if found is None:
        raise Unbuildable(f"this torch has no dtype {name}")
    return found
