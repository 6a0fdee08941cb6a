"""Which GPU a rank has, where several processes share GPUs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Places:
    """Local rank r of a host has its GPU r modulo their number."""

    ranks_per_host: int
    gpus_per_host: int
    mps: bool = False
    """Kernels of processes on one GPU run concurrently."""

    @property
    def shared(self) -> bool:
        """Whether a GPU has several processes."""
        return self.ranks_per_host > self.gpus_per_host

    def gpu_of(self, rank: int) -> int:
        """The GPU of `rank`, counted over all hosts."""
        host, local = divmod(rank, self.ranks_per_host)
        return host * self.gpus_per_host + local % self.gpus_per_host

    def ranks_of(self, gpu: int) -> tuple[int, ...]:
        """The ranks that have `gpu`."""
        host, number = divmod(gpu, self.gpus_per_host)
        first = host * self.ranks_per_host
        return tuple(range(first + number, first + self.ranks_per_host, self.gpus_per_host))
