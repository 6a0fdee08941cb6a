"""Files of safetensors whose tensors take the time of their bytes when they are read (docs/data-loading.md)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

Read = Callable[..., None]
"""Takes the bytes that were read, the path of their file, and as ``mapped`` whether they are only mapped: tensors for a
GPU are read into pinned memory (safetensors 0.8)."""


def _on_gpu(tensor: Any) -> bool:
    return bool(getattr(tensor, "is_cuda", False))  # arrays of NumPy are not


class _Class(type):
    """Files that were opened before the change are instances, too."""

    original: type

    def __instancecheck__(cls, one: object) -> bool:
        return super().__instancecheck__(one) or isinstance(one, cls.original)


def timed_class(original: type, read: Read) -> type:
    """The class ``safe_open``, with `read` called at each read."""

    class Opened(metaclass=_Class):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._opened = original(*args, **kwargs)
            self._path = args[0] if args else kwargs["filename"]

        def __enter__(self) -> Opened:
            self._opened.__enter__()
            return self

        def __exit__(self, *what: object) -> None:
            self._opened.__exit__(*what)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._opened, name)

        def get_tensor(self, name: str) -> Any:
            found = self._opened.get_tensor(name)
            read(found.nbytes, self._path, mapped=not _on_gpu(found))
            return found

        def get_tensors(self) -> Any:
            found = self._opened.get_tensors()
            read(sum(t.nbytes for t in found.values()), self._path, mapped=not any(map(_on_gpu, found.values())))
            return found

        def get_slice(self, name: str) -> _Slice:
            return _Slice(self._opened.get_slice(name), functools.partial(read, path=self._path))

    Opened.original = original
    Opened.__name__ = Opened.__qualname__ = original.__name__
    Opened.__module__, Opened.__doc__ = original.__module__, original.__doc__
    return Opened


class _Slice:
    """A tensor of a file of which parts are read."""

    def __init__(self, tensor: Any, read: Read) -> None:
        self._tensor, self._read = tensor, read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tensor, name)

    def __getitem__(self, place: Any) -> Any:
        found = self._tensor[place]
        self._read(found.nbytes, mapped=not _on_gpu(found))
        return found
