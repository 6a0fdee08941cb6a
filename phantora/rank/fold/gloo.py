"""Process groups of gloo in a folded run (docs/scale.md).

Its operations are few and small: barriers, flags, objects. Members that are processes send each other their bytes
through the group's store. Those that are none are taken to give the same, if all processes do; else the run is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from types import ModuleType, SimpleNamespace
from typing import Any

from phantora.errors import PhantoraError

_REMEDY = "run more of its ranks as processes (--real-ranks, an axis written NAME=SIZE:all in --fold), or --fold off"
_REFUSED = ("send", "recv", "recv_anysource", "alltoall", "alltoall_base", "reduce_scatter", "_reduce_scatter_base")


def install(c10d: ModuleType, processes: frozenset[int]) -> None:
    """Puts a group that folds in the place of gloo's."""
    real: Any = c10d.ProcessGroupGloo

    class Kind(type(c10d.ProcessGroup)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, real) or type(instance) is cls

    class ProcessGroupGloo(_Operations, c10d.ProcessGroup, metaclass=Kind):  # type: ignore[misc, name-defined]
        def __init__(self, store: Any, rank: int, size: int, timeout: Any = None) -> None:
            c10d.ProcessGroup.__init__(self, rank, size)
            self._store, self._operations, self._processes = store, 0, processes
            self.options = SimpleNamespace()

        def getBackendName(self) -> str:
            return "gloo"

        def _set_sequence_number_for_group(self) -> None:
            pass

    for name in _REFUSED:
        setattr(ProcessGroupGloo, name, _refusing(name))
    c10d.ProcessGroupGloo = ProcessGroupGloo  # type: ignore[attr-defined]
    _refuse_mixed(c10d)


class _Operations:
    """Operations that torch.distributed asks of a group, on tensors of the CPU."""

    _store: Any
    _operations: int
    _processes: frozenset[int]
    rank: Callable[[], int]
    size: Callable[[], int]

    def _ranks(self) -> list[int]:
        from torch.distributed import get_process_group_ranks

        return get_process_group_ranks(self)  # type: ignore[arg-type]

    def _meet(self, mine: bytes) -> dict[int, bytes]:
        """The data of the members that are processes, by their place in the group."""
        self._operations += 1
        places = [at for at, rank in enumerate(self._ranks()) if rank in self._processes]
        self._store.set(f"folded{self._operations}/{self.rank()}", b"=" + mine)  # a store may refuse no bytes
        return {at: self._store.get(f"folded{self._operations}/{at}")[1:] for at in places}

    def _all(self, what: str, tensor: Any) -> list[Any]:
        """`tensor` of every member."""
        given = self._meet(_bytes(tensor))
        identical = len(set(given.values())) == 1
        alone = len(self._processes) == 1  # before the axes are known rank 0 runs ahead, for its groups alone
        if len(given) < self.size() and not alone and (len(given) < 2 or not identical):
            why = "only one of its ranks is a process" if identical else "its ranks give different bytes"
            raise self._refusal(what, why)
        first = next(iter(given.values()))
        return [_like(tensor, given.get(at, first)) for at in range(self.size())]

    def _of(self, what: str, root: int, tensors: Sequence[Any]) -> list[Any]:
        """The `tensors` of `root`."""
        given = self._meet(b"".join(map(_bytes, tensors)) if root == self.rank() else b"")
        if root not in given:
            raise self._refusal(what, f"its root, rank {self._ranks()[root]}, is folded")
        found, at = [], 0
        for tensor in tensors:
            length = tensor.numel() * tensor.element_size()
            found.append(_like(tensor, given[root][at : at + length]))
            at += length
        return found

    def _reduced(self, what: str, tensor: Any, operation: Any) -> Any:
        for known, function in _reductions():
            if operation == known:
                return function(self._all(what, tensor))
        raise self._refusal(what, f"its reduction {operation} is not known here")

    def _refusal(self, what: str, why: str) -> PhantoraError:
        ranks = self._ranks()
        return PhantoraError(
            f"cannot fold {what} of the gloo group of {len(ranks)} ranks, the first {ranks[0]}: {why}; {_REMEDY}"
        )

    def barrier(self, opts: Any = None) -> Any:
        self._meet(b"")
        return _done(None)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        self._meet(b"")

    def broadcast(self, tensors: list[Any], opts: Any) -> Any:
        for tensor, given in zip(tensors, self._of("broadcast", opts.rootRank, tensors), strict=True):
            tensor.copy_(given)
        return _done(tensors)

    def allreduce(self, tensors: list[Any], opts: Any) -> Any:
        for tensor in tensors:
            tensor.copy_(self._reduced("all_reduce", tensor, opts.reduceOp))
        return _done(tensors)

    def reduce(self, tensors: list[Any], opts: Any) -> Any:
        for tensor in tensors:
            total = self._reduced("reduce", tensor, opts.reduceOp)
            if opts.rootRank == self.rank():
                tensor.copy_(total)
        return _done(tensors)

    def allgather(self, outputs: list[list[Any]], inputs: list[Any], opts: Any = None) -> Any:
        for output, tensor in zip(outputs, inputs, strict=True):
            for to, given in zip(output, self._all("all_gather", tensor), strict=True):
                to.copy_(given)
        return _done(outputs)

    def _allgather_base(self, output: Any, tensor: Any, opts: Any = None) -> Any:
        import torch

        output.copy_(torch.stack(self._all("all_gather", tensor)).view(output.shape))
        return _done([output])

    def gather(self, outputs: list[list[Any]], inputs: list[Any], opts: Any) -> Any:
        found = self._all("gather", inputs[0])
        if opts.rootRank == self.rank():
            for to, given in zip(outputs[0], found, strict=True):
                to.copy_(given)
        return _done(outputs)

    def scatter(self, outputs: list[Any], inputs: list[list[Any]], opts: Any) -> Any:
        mine = inputs[0] if opts.rootRank == self.rank() else [outputs[0]] * self.size()
        outputs[0].copy_(self._of("scatter", opts.rootRank, mine)[self.rank()])
        return _done(outputs)


def _bytes(tensor: Any) -> bytes:
    import torch

    data: bytes = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return data


def _like(tensor: Any, data: bytes) -> Any:
    """A tensor of the type and shape of `tensor` with these bytes."""
    import torch

    return torch.frombuffer(bytearray(data), dtype=tensor.dtype).view(tensor.shape) if data else tensor.clone()


def _reductions() -> list[tuple[Any, Callable[[list[Any]], Any]]]:
    import torch
    from torch.distributed import ReduceOp

    return [
        (ReduceOp.SUM, lambda parts: torch.stack(parts).sum(0).to(parts[0].dtype)),
        (ReduceOp.AVG, lambda parts: (torch.stack(parts).sum(0) / len(parts)).to(parts[0].dtype)),
        (ReduceOp.MAX, lambda parts: torch.stack(parts).amax(0)),
        (ReduceOp.MIN, lambda parts: torch.stack(parts).amin(0)),
        (ReduceOp.PRODUCT, lambda parts: torch.stack(parts).prod(0).to(parts[0].dtype)),
        (ReduceOp.BAND, lambda parts: reduce(torch.bitwise_and, parts)),
        (ReduceOp.BOR, lambda parts: reduce(torch.bitwise_or, parts)),
        (ReduceOp.BXOR, lambda parts: reduce(torch.bitwise_xor, parts)),
    ]


def _done(result: Any) -> Any:
    import torch

    future: Any = torch.futures.Future()
    future.set_result(result)
    return torch._C._distributed_c10d._create_work_from_future(future)  # type: ignore[attr-defined]


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(self: Any, *_: Any, **__: Any) -> Any:
        raise self._refusal(name, "only barriers, broadcasts, reductions and gathers of gloo are folded")

    return refuse


def _refuse_mixed(c10d: ModuleType) -> None:
    """A group with gloo for the CPU and NCCL for the GPU is one object of torch's; a group that folds cannot be half of
    it."""
    config = c10d.BackendConfig

    def checked(backend: Any) -> Any:
        made = config(backend)
        if {"gloo", "nccl"} <= set(made.get_device_backend_map().values()):
            raise PhantoraError(
                "a process group of gloo and NCCL together cannot be folded: give torch.distributed."
                'init_process_group and new_group backend="nccl" (and groups of gloo of their own), or use --fold off'
            )
        return made

    c10d.BackendConfig = checked  # type: ignore[attr-defined]
