"""What the program has its blocks of GPU memory for: parameters, an optimizer's state, buffers, and what it keeps.

It follows from the objects of Python: ``nn.Parameter``, groups and state of optimizers, buffers of modules. After an
optimizer's first step, and where an allocation fails, each of their blocks gets a row in the log. Where memory grows
from step to step the containers of the script do, too, with the line that fills them (``stub/tracer/uses.cpp``).
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import FrameType
from typing import Any

from phantora.rank.patch import Patch, Rank, When
from phantora.rank.patches.keepers import keepers
from phantora.rank.patches.object_tensors import blocks, tensors_in
from phantora.wire.shared import (
    CHECKPOINTS,
    EVALUATED,
    EXPECTED,
    GRADIENTS,
    GRAPH,
    KEPT,
    NO_GRADIENTS,
    OWN_GRAPHS,
    USE_LEAST,
)

_MOST_STEPS = 8  # in which another optimizer may make its first one
_DEPTH = 8  # of objects in an optimizer
_PRECONDITIONER = re.compile("precond|factor_matri|eigenvec", re.IGNORECASE)
_Read = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64, ctypes.c_int)
_installed: list[_Uses] = []


def install(rank: Rank) -> None:
    """Reads the program's objects after steps of optimizers. Called once, before the script runs."""
    library = ctypes.CDLL(str(rank.tracer))
    uses = _Uses(library)
    library.phantora_uses_by.argtypes, library.phantora_uses_by.restype = [_Read], None
    library.phantora_uses_by(uses.callback)
    _installed[:] = [uses]


def failed_allocation() -> str:
    """Where the last failed allocation was asked for: ``train.py:28``, ``backward of train.py:12``; "" if none did."""
    return _installed[0].failed().decode(errors="replace") if _installed else ""


def note_uses(error: BaseException) -> None:
    """Notes the uses of the blocks at an error for want of memory, if no failed allocation of torch has shown them."""
    from torch import OutOfMemoryError

    if isinstance(error, OutOfMemoryError) and any(uses.failures for uses in _installed):
        return
    traceback, frames = error.__traceback__, []
    while traceback is not None:
        frames.append(traceback.tb_frame)
        traceback = traceback.tb_next
    with suppress(Exception):  # objects of a program may raise anything where they are looked at
        for uses in _installed:
            uses.note(frames, failed=True)


class _Uses:
    def __init__(self, library: ctypes.CDLL) -> None:
        self._use = library.phantora_use
        self._use.argtypes, self._use.restype = [ctypes.c_uint64, ctypes.c_char_p], None
        self.failed = library.phantora_failed_allocation
        self.failed.argtypes, self.failed.restype = [], ctypes.c_char_p
        self._noted: set[tuple[int, str]] = set()
        self.failures = 0
        """Number of failed allocations at which the objects were read."""
        self.callback = _Read(self._look)

    def _look(self, step: int, grows: int) -> int:
        if step < 0:  # an allocation fails: what the error lets go of is still there
            with suppress(Exception):  # objects of a program may raise anything where they are looked at
                self.note([f for top in sys._current_frames().values() for f in _frames(top)], failed=True)
                self.failures += 1
            return 0
        optimizers = self.note(_frames(sys._getframe()) if grows else ())
        return step < _MOST_STEPS and any(not optimizer.state for optimizer in optimizers)

    def note(self, frames: Iterable[FrameType], failed: bool = False) -> list[Any]:
        """Rows for the blocks of all objects, and of what `frames` keep; if an allocation has `failed`, of what forward
        passes keep. The program's optimizers."""
        from torch import _C

        objects = gc.get_objects()
        if failed:
            self._noted.clear()  # a block of the same address may be another one
        with _C.DisableTorchFunctionSubclass():
            found, optimizers = _uses(objects)
            for address in sorted(found):
                self._emit(address, found[address])
            if failed and (expected := _expected(optimizers)):
                address = next(address for address, use in sorted(found.items()) if use == "parameters")
                for use in (f"{EXPECTED}{expected}", "parameters"):  # the last one counts for the block
                    self._use(address, use.encode())
            held = set(found)
            for kept in keepers(frames, objects):
                held |= kept.blocks
                if failed and kept.apart and kept.blocks:
                    self._emit(min(kept.blocks), OWN_GRAPHS)
                for address in sorted(kept.blocks - found.keys()):
                    self._emit(address, f"{KEPT}{kept.place}{GRAPH if kept.nodes else ''}")
            if failed:
                passes = _of_forward_passes(objects) | _in_checkpoints(frames)
                for address, use in sorted((passes | _gradients(objects)).items()):
                    if address not in held:
                        self._emit(address, use)
        return optimizers

    def _emit(self, address: int, use: str) -> None:
        if (address, use) not in self._noted:
            self._noted.add((address, use))
            self._use(address, use.encode())


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _uses(objects: list[Any]) -> tuple[dict[int, str], list[Any]]:
    """The use of each block by its address, and the optimizers among `objects`."""
    from torch import Tensor
    from torch.nn import Module, Parameter
    from torch.optim import Optimizer

    found: dict[int, str] = {}

    def note(tensor: Any, use: str) -> None:
        found.update(dict.fromkeys(blocks(tensor, USE_LEAST), use))

    types = set(map(type, objects))
    kinds = {kind: {t for t in types if issubclass(t, kind)} for kind in (Optimizer, Module, Parameter, Tensor)}
    some = set().union(*kinds.values())
    objects = [o for o in objects if type(o) in some]
    optimizers = [o for o in objects if type(o) in kinds[Optimizer]]
    for optimizer in optimizers:
        groups = [p for group in optimizer.param_groups for p in group["params"]]
        shapes = {tuple(p.shape) for p in groups}
        for path, tensor in tensors_in(vars(optimizer), _DEPTH):
            note(tensor, "preconditioners" if _is_preconditioner(path, tensor, shapes) else "optimizer")
        for parameter in groups:
            note(parameter, "parameters")
    for o in objects:
        if type(o) in kinds[Module]:
            for buffer in o._buffers.values():
                if buffer is not None:
                    note(buffer, "buffers")
    for o in objects:
        if type(o) in kinds[Parameter] or (type(o) in kinds[Tensor] and "_is_param" in vars(o)):
            note(o, "parameters")
    return found, optimizers


def _expected(optimizers: list[Any]) -> int:
    """Bytes on the GPU of gradients and states that a step of `optimizers` makes and that do not exist yet. Of an
    optimizer that torch does not have only the gradients."""
    from torch.optim import SGD, Adam, AdamW, NAdam, RAdam

    found = 0
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            states = 0
            if isinstance(optimizer, (Adam, AdamW, NAdam, RAdam)):
                states = 3 if group.get("amsgrad") else 2
            elif isinstance(optimizer, SGD):
                states = 1 if group.get("momentum") else 0
            for parameter in group["params"]:
                if parameter.is_cuda and parameter.requires_grad:
                    own = getattr(parameter, "_local_tensor", parameter)  # of a DTensor
                    size = own.numel() * own.element_size()
                    found += size * ((parameter.grad is None) + states * (not optimizer.state.get(parameter)))
    return found


def _of_forward_passes(objects: list[Any]) -> dict[int, str]:
    """The use of blocks that forward passes keep, by their address: of checkpoints, or of passes without a backward."""
    from torch import Tensor
    from torch.nn import Module
    from torch.optim import Optimizer

    types = set(map(type, objects))
    modules = {t for t in types if issubclass(t, Module)}
    alive = [o for o in objects if issubclass(type(o), Tensor)]
    trained = any(issubclass(t, Optimizer) for t in types) or any(o.training for o in objects if type(o) in modules)
    use = "" if trained else EVALUATED
    if not any(tensor.grad_fn is not None or (tensor.is_leaf and tensor.grad is not None) for tensor in alive):
        use = NO_GRADIENTS
    found = {address: use for tensor in alive if use for address in blocks(tensor, USE_LEAST)}
    for o in objects:
        node: Any
        if type(o).__name__ == "_CheckpointFrame":
            node = getattr(o.input_saver, "grad_fn", None)
        elif type(o).__name__ == "CheckpointFunctionBackward":  # torch's, Megatron's, DeepSpeed's
            node = o
        else:
            continue
        with suppress(RuntimeError, AttributeError):  # freed, or not saved yet
            kept = [saved.data for saved in node._raw_saved_tensors]  # a checkpoint in another has no tensors
            tensors = [tensor for tensor in kept if issubclass(type(tensor), Tensor)]
            found.update(dict.fromkeys((a for tensor in tensors for a in blocks(tensor, USE_LEAST)), CHECKPOINTS))
    return found


def _in_checkpoints(frames: Iterable[FrameType]) -> dict[int, str]:
    """The inputs of layers whose checkpointed forward pass runs, by the address of their blocks."""
    from torch import Tensor

    found: dict[int, str] = {}
    for frame in frames:
        code = frame.f_code
        if code.co_name == "forward" and "checkpoint" in os.path.basename(code.co_filename):  # CheckpointFunction's
            inputs = [o for o in frame.f_locals.get("args", ()) if issubclass(type(o), Tensor)]
            found.update(dict.fromkeys((a for tensor in inputs for a in blocks(tensor, USE_LEAST)), CHECKPOINTS))
    return found


def _gradients(objects: list[Any]) -> dict[int, str]:
    """The blocks of gradients that parameters have, or that a framework keeps at them, by their address."""
    from torch import Tensor
    from torch.nn import Parameter

    kinds = {t for t in map(type, objects) if issubclass(t, Tensor)}
    found: dict[int, str] = {}
    for o in objects:
        if type(o) not in kinds or not (isinstance(o, Parameter) or "_is_param" in vars(o)):
            continue
        own = [o.grad, *(value for name, value in vars(o).items() if "grad" in name)]  # main_grad, _saved_grad_shard
        for gradient in own:
            if issubclass(type(gradient), Tensor):
                found.update(dict.fromkeys(blocks(gradient, USE_LEAST), GRADIENTS))
    return found


def _is_preconditioner(path: str, tensor: Any, shapes: set[tuple[int, ...]]) -> bool:
    """True for square matrices of an optimizer that are no parameter's size, or are named so."""
    if tensor.dim() < 2 or tensor.shape[-1] != tensor.shape[-2]:
        return False
    return tuple(tensor.shape) not in shapes or _PRECONDITIONER.search(path) is not None


PATCH = Patch("memory uses", When.AFTER_TORCH, install)
