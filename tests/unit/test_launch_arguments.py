"""Arguments of launches that wrap a tensor: torch's ConstTensorWrapper and Triton's TensorWrapper."""

from __future__ import annotations

import torch

from phantora.rank.patches.triton_launches import _unwrapped


class Const:
    """As torch._native.const_tensor_wrapper, which has no ``is_cuda`` and reads the address in its own way."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def data_ptr(self) -> int:
        return self._tensor.data_ptr() + 1


class Reinterpreted:
    """As triton.runtime.jit.TensorWrapper."""

    def __init__(self, base: torch.Tensor) -> None:
        self.base = base

    def data_ptr(self) -> int:
        return self.base.data_ptr()


class Pointer:
    """An address of which nothing else is known."""

    def data_ptr(self) -> int:
        return 16


def test_wrappers_show_their_tensor_and_their_own_address() -> None:
    tensor = torch.ones(2, 3)
    for wrapper, address in ((Const(tensor), tensor.data_ptr() + 1), (Reinterpreted(tensor), tensor.data_ptr())):
        found = _unwrapped(wrapper)
        assert (found.data_ptr(), found.numel(), found.is_cuda, tuple(found.stride())) == (address, 6, False, (3, 1))


def test_tensors_and_numbers_stay_and_bare_pointers_are_nothing() -> None:
    tensor = torch.ones(2)
    assert _unwrapped(tensor) is tensor and _unwrapped(7) == 7 and _unwrapped(Pointer()) is None
