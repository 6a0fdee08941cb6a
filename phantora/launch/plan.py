"""The terminal's plan of a run: the processes to launch, and the environment that torchrun would give them."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from phantora.errors import PhantoraError
from phantora.fold.mesh import Fold
from phantora.fold.ranges import format_ranks
from phantora.launch.shared_imports import shared_imports
from phantora.rank.fold.groups import ENVIRONMENT
from phantora.spec import MODULE, VARIABLE, RankSpec, RunSpec

MASTER_ADDRESS = "127.0.0.1"
STDOUT, STDERR = 1, 2  # bits of torchrun's --redirects and --tee


# By top package of a module that is run, or that a script imports: what it imports from elsewhere that costs much and
# does nothing. What asks for its GPU's properties when it is imported (torchtitan itself) is left to the rank.
PRELOADS = {
    "deepspeed": ("torch._inductor.compile_fx",),  # in its first optimizer step: 0.8 s of each rank
    "torchtitan": (
        "datasets",
        "sympy",
        "torch._inductor.compile_fx",
        "torch.distributed.checkpoint",
        "torch.distributed.pipelining",
        "torch.utils.tensorboard",
        "torchdata.stateful_dataloader",
        "tyro",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One launch of a spec: where its ranks are, and what they are given."""

    spec: RunSpec
    hosts: int = 1
    ranks_per_host: int = 1
    ranks: RankSpec = field(default_factory=RankSpec)
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    log_dir: Path | None = None
    ranks_filter: tuple[int, ...] | None = None
    """Local ranks whose output reaches the console; None: all."""
    real: tuple[int, ...] | None = None
    """Ranks that are processes, in a folded run; None: all."""

    def folded(self, fold: Fold | None) -> Plan:
        """This launch with the processes of `fold`."""
        if fold is None:
            return replace(self, real=None, ranks=replace(self.ranks, processes=""))
        return replace(self, real=fold.real, ranks=replace(self.ranks, processes=format_ranks(fold.real)))

    @property
    def module(self) -> bool:
        """The target is a module's name, and no path."""
        return self.spec.kind == MODULE

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.hosts * self.ranks_per_host

    @property
    def processes(self) -> Sequence[int]:
        """The ranks that run as processes: all, if the run is not folded."""
        return range(self.world_size) if self.real is None else self.real

    @property
    def imports(self) -> tuple[str, ...]:
        """Modules for the fork server: imported once, they cost every rank neither time nor memory."""
        # What nearly every run imports, with its optimizer at the latest: 1.5 s and 70 MB.
        always = ("torch", "torch.distributed.fsdp", "torch.distributed.tensor", "torch._dynamo")
        return (*always, *self.spec.preload)

    @property
    def shared(self) -> tuple[str, ...]:
        """What else the fork server can import for all ranks, as far as it is installed: what the target's packages and
        the script itself will import."""
        imported = (self.spec.target,) if self.module else shared_imports(self.spec.target)
        packages = dict.fromkeys(entry.partition(":")[0].partition(".")[0] for entry in imported)
        known = (name for package in packages for name in PRELOADS.get(package, ()))
        return (*known, *(() if self.module else imported))


def rank_environment(plan: Plan, rank: int, address: str, port: int) -> dict[str, str]:
    """The variables that torchrun sets for `rank` (torch.distributed.elastic, agent_server), with the address and the
    port of the TCPStore."""
    host, local = divmod(rank, plan.ranks_per_host)
    environment = {
        "RANK": str(rank),
        "LOCAL_RANK": str(local),
        "WORLD_SIZE": str(plan.world_size),
        "LOCAL_WORLD_SIZE": str(plan.ranks_per_host),
        "GROUP_RANK": str(host),
        "GROUP_WORLD_SIZE": str(plan.hosts),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(plan.world_size),
        "ROLE_NAME": plan.spec.launch.role,
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": plan.run_id,
        VARIABLE: plan.ranks.to_json(),
        # The store is hosted by a process next to the ranks, as torchrun's agent does.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        # A watchdog that has found a timeout sleeps four times as long before it ends the process: a minute by default.
        "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": os.environ.get("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "100"),
    }
    if plan.ranks.processes:
        environment |= ENVIRONMENT
    if plan.log_dir is not None:
        environment["TORCHELASTIC_ERROR_FILE"] = str(rank_log_dir(plan, rank) / "error.json")
    return environment


_SHARES = ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")


def refuse_shares(inherited: Mapping[str, str]) -> None:
    """Raises PhantoraError where the environment asks for parts of GPUs."""
    if "MIG-" in inherited.get("CUDA_VISIBLE_DEVICES", ""):
        raise PhantoraError(
            "CUDA_VISIBLE_DEVICES names a part of a GPU: MIG is not simulated; unset it, --cluster has the GPUs"
        )
    if named := [name for name in _SHARES if name in inherited]:
        raise PhantoraError(f"{named[0]} gives processes a part of a GPU: shares of MPS are not simulated; unset it")


def rank_log_dir(plan: Plan, rank: int) -> Path:
    """The folder in which torchrun would put the rank's files."""
    assert plan.log_dir is not None
    return plan.log_dir / plan.run_id / "attempt_0" / str(rank)


def parse_streams(option: str, text: str, ranks_per_host: int) -> dict[int, int]:
    """torchrun's ``--redirects``/``--tee``: ``3`` for all, or ``0:1,1:2`` by local rank."""
    try:
        if ":" not in text:
            masks = dict.fromkeys(range(ranks_per_host), int(text))
        else:
            masks = {int(k): int(v) for k, v in (part.split(":") for part in text.split(",") if part.strip())}
    except ValueError:
        masks = {-1: -1}
    if not all(0 <= local < ranks_per_host and 0 <= mask <= 3 for local, mask in masks.items()):
        raise PhantoraError(
            f"{option} {text!r} is not understood; give 0, 1 (stdout), 2 (stderr) or 3 (both), "
            f"or LOCAL_RANK:N pairs such as 0:3,1:2 with local ranks below {ranks_per_host}"
        )
    return masks
