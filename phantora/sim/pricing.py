"""Answers the engine's questions about cost and keeps the log's tables in step."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from phantora.cost.kernel_names import class_of_kernel
from phantora.cost.kernels import UNKNOWN_WAVE_ERROR
from phantora.cost.machine import Machine
from phantora.cost.parse import compute_of, read_signature, signature_text
from phantora.cost.types import CostModel, KernelLaunch, L2State, OperatorSignature, Price
from phantora.cost.wanted import Wanted
from phantora.errors import PhantoraError
from phantora.hardware import Cluster, Flow
from phantora.sim.collectives import SEND_RECV_KERNEL, CollectiveModel, CollectivePrice, Rows, kernel_name, signal_name
from phantora.sim.config import SimulatorConfig
from phantora.sim.engine import library as native
from phantora.sim.kernel_profile import communication_feels, profile_of
from phantora.sim.links import Links
from phantora.sim.measured import Measured, Took, as_measured, fixed
from phantora.trace.schema import COPY_NAMES, REAL, PriceRow, Tables
from phantora.wire import layout
from phantora.wire.layout import EXPERTS

_TF32 = re.compile(r"tf32|s1688")
"""Parts of names of cuDNN, cuBLAS and CUTLASS kernels that multiply float32 in TF32."""
_PEER_COPY = COPY_NAMES["P2P"]
_COPY_KINDS = [name.lower() for name in layout.Copy.names()]


def _l2(request: native.PriceRequest) -> L2State | None:
    """The state of L2 for the operator; recordings of older versions have none."""
    if not request.l2_hits:
        return None
    written = (request.l2_written - 1) / layout.L2_STEPS if request.l2_written else 1.0
    return L2State((request.l2_hits - 1) / layout.L2_STEPS, written)


def _rows(request: native.PriceRequest) -> Rows | None:
    return Rows(request.tokens, request.row) if request.sub in EXPERTS else None


def _late(cost: CostModel, signature: OperatorSignature, kernel: KernelLaunch) -> Price:
    """Price of a kernel that an operator launched after a wait for its first kernels, which have the operator's
    price."""
    if str(kernel.library.get("call", "")).startswith("conv_"):  # cudnn.benchmark: all of its work once more
        return cost.operator(signature, (kernel,))
    return cost.covered(kernel)


def by_kinds(cluster: Cluster) -> dict[frozenset[int], Cluster]:
    """The cluster as each set of its kinds of hosts sees it: NCCL takes its constants from the slowest links."""
    found = {frozenset({0}): cluster}
    kinds = range(len(cluster.parts))
    for chosen in (each for count in kinds for each in combinations(kinds, count + 1) if cluster.kinds):
        parts = [cluster.parts[kind] for kind in chosen]
        slowest = min(parts, key=lambda part: part.intra.bandwidth)
        inter = min((part.inter for part in parts), key=lambda link: link.bandwidth)
        found[frozenset(chosen)] = replace(cluster, gpu=slowest.gpu, intra=slowest.intra, inter=inter)
    return found


class Pricing:
    """Serves price requests from the cost model and the model of collectives."""

    def __init__(self, engine: native.Engine, tables: Tables, world_size: int, config: SimulatorConfig) -> None:
        cluster, fold, what_if = config.cluster, config.fold, config.what_if
        self._engine = engine
        self._costs, self._known = (config.cost, *config.other_costs), config.prices
        self._brief = config.brief
        self._measured = config.measured
        self._same_gpu = config.measured is not None and config.measured.cluster.gpu.name == cluster.gpu.name
        self._machines = [Machine(part.gpu) for part in cluster.parts]
        # Hosts that differ from each other must all be looked at.
        identical = fold is not None and not (config.flows or what_if.degrade or what_if.background or what_if.fault)
        domain = cluster.domains().gpus_per_host
        processes = frozenset(rank // domain for rank in fold.real) if fold else frozenset()
        hosts = processes if identical else None
        self._models = {kinds: CollectiveModel(of, config.nccl, hosts=hosts) for kinds, of in by_kinds(cluster).items()}
        self._collectives = self._models[frozenset({0})]
        self._cluster = cluster
        topology = self._collectives.topology
        self._links = Links(engine, topology, world_size, what_if, fold, config.places)
        self._fold = fold
        self._places = config.places
        self._hosts_of_processes = processes
        fabric = any(topology.host_of_link(link) is None for link in range(len(topology.links))) if fold else True
        self._apart = identical and not fabric  # groups that share no host share no link, and one host is like another
        self._tables = tables
        self._signatures: dict[int, OperatorSignature] = {}
        self._prices: dict[int, PriceRow] = {}
        self._operators: dict[int, Wanted] = {}  # by price
        self._count = np.zeros(1024, np.int64)  # instances and ns of each price
        self._ns = np.zeros(1024, np.int64)

    def serve(self) -> None:
        """Prices everything that the engine waits for."""
        while (request := self._engine.next_price()) is not None:
            if request.kind in (native.COLLECTIVE, native.TRANSFER):
                self._serve_communication(request)
            else:
                price = self._price(request)
                if not self._brief:
                    self._count_operator(request, price)
                main = max(range(len(price.durations)), key=price.durations.__getitem__)
                if self._measured is not None:
                    price = self._scaled(self._measured, price, request)
                elif request.kind != native.COPY or request.sub == layout.Copy.D2D:
                    # Copies by a link draw little, and their pace does not follow the GPU's clock.
                    self._engine.set_profile(request.id, profile_of(self._machines[request.gpu_kind], price))
                self._engine.set_price(request.id, price.durations)
                self._prices[request.id] = PriceRow(
                    price.cls,
                    price.provenance,
                    flops=price.flops,
                    bytes=price.bytes,
                    main_part=main,
                    algorithm="",
                    error=price.error,
                )

    def _signature(self, index: int) -> OperatorSignature:
        if index not in self._signatures:
            self._signatures[index] = read_signature(self._engine.text(native.SIGNATURES, index))
        return self._signatures[index]

    def _kernel(self, kernel: native.PriceKernel) -> KernelLaunch:
        name = self._engine.text(native.NAMES, kernel.name) if kernel.name >= 0 else "?"
        library: dict[str, Any] = {}
        if kernel.library:
            library = orjson.loads(name)
            name = str(library.get("name", library.get("call", "library")))
        elif self._measured is not None and _TF32.search(name):
            library = {"compute": "tf32"}
        grid = (kernel.grid_x, kernel.grid_y, kernel.grid_z)
        block = (kernel.block_x, kernel.block_y, kernel.block_z)
        return KernelLaunch(name, grid, block, kernel.shared_bytes, library)

    def _scaled(self, measured: Measured, price: Price, request: native.PriceRequest) -> Price:
        """`price` as a ratio to the measured duration."""
        kernels = self._engine.price_kernels(request) if price.error == UNKNOWN_WAVE_ERROR else ()
        name = self._kernel(kernels[0]).name if kernels else ""
        if self._same_gpu:
            cls = class_of_kernel(name) if name else price.cls
            price = replace(price, cls=cls, provenance=REAL, error=0.0)
        elif name:
            return measured.by_name(price, name, self._machines[0].gpu)
        return measured.ratio(price, lambda: self._price_by(measured.cost, request))

    def _price(self, request: native.PriceRequest) -> Price:
        if self._measured is not None:
            return self._price_by(self._costs[0], request)
        work = self._work(request)
        if work not in self._known:
            self._known[work] = self._price_by(self._costs[request.gpu_kind], request)
        return self._known[work]

    def _work(self, request: native.PriceRequest) -> Hashable:
        """All that a price depends on."""
        signed = request.kind == native.OPERATOR and request.sig >= 0
        signature = self._engine.text(native.SIGNATURES, request.sig) if signed else ""
        kernels = tuple(
            (
                self._engine.text(native.NAMES, k.name) if k.name >= 0 else "",
                k.library,
                k.grid_x,
                k.grid_y,
                k.grid_z,
                k.block_x,
                k.block_y,
                k.block_z,
                k.shared_bytes,
            )
            for k in (self._engine.price_kernels(request) if request.kernels else ())
        )
        about = (
            request.gpu_kind,
            request.kind,
            request.sub,
            request.part,
            request.bytes,
            request.l2_hits,
            request.l2_written,
        )
        return (about, signature, kernels)

    def _count_operator(self, request: native.PriceRequest, price: Price) -> None:
        if request.kind != native.OPERATOR or request.part or request.sig < 0:
            return
        signature = self._signature(request.sig)
        kernels = tuple(self._kernel(kernel) for kernel in self._engine.price_kernels(request))
        self._operators[request.id] = Wanted(
            signature=self._engine.text(native.SIGNATURES, request.sig),
            compute=compute_of(kernels),
            operator=signature.name,
            shape=signature_text(signature),
            cls=price.cls,
            provenance=price.provenance,
            error=price.error,
            tuning=signature.tuning,
        )

    def _price_by(self, cost: CostModel, request: native.PriceRequest) -> Price:
        if request.kind == native.COPY:
            return cost.copy(_COPY_KINDS[request.sub], request.bytes)
        if request.kind == native.MEMSET:
            return cost.memset(request.bytes)
        kernels = tuple(self._kernel(kernel) for kernel in self._engine.price_kernels(request))
        if request.kind == native.OPERATOR and request.part == 0 and request.sig >= 0:
            return cost.operator(self._signature(request.sig), kernels, _l2(request))
        if request.kind == native.OPERATOR and request.sig >= 0:
            prices = [_late(cost, self._signature(request.sig), kernel) for kernel in kernels]
        else:
            prices = [cost.kernel(kernel) for kernel in kernels]
        return Price(
            tuple(duration for price in prices for duration in price.durations),
            prices[0].cls,
            prices[0].provenance,
            flops=sum(price.flops for price in prices),
            bytes=sum(price.bytes for price in prices),
            error=prices[0].error,
        )

    def _serve_communication(self, request: native.PriceRequest) -> None:
        joined: tuple[int, ...] = (request.src, request.dst)
        if request.kind == native.COLLECTIVE:
            joined = self._engine.comm_ranks(request.comm)
        gpus = self._gpus(joined)
        if request.kind == native.COLLECTIVE:
            price = self._communication(
                request,
                gpus,
                lambda model: model.collective(
                    request.sub, gpus, request.bytes, request.dtype, request.root, request.blocks, _rows(request)
                ),
            )
            name = kernel_name(request.sub, request.redop, request.dtype, price.algorithm, price.protocol, len(gpus))
        elif request.sub != native.PAIR:
            price, name = self._one_sided(request, gpus)
        else:
            members = len(self._engine.comm_ranks(request.comm))
            price = self._communication(
                request,
                gpus,
                lambda model: model.transfer(
                    gpus[0], gpus[1], request.bytes, request.concurrent, members=members, duplex=bool(request.duplex)
                ),
            )
            name = SEND_RECV_KERNEL
        topology = self._collectives.topology
        price = replace(price, flows=(*price.flows, *self._flows_of_siblings(request)))
        ends = {end for flow in price.flows for end in (flow.src, flow.dst) if end >= 0}
        feels = communication_feels(len({topology.host_of(end) for end in ends}) == 1)
        if request.kind == native.TRANSFER and request.sub == native.PEER_COPY and not request.blocks:
            feels = 0.0  # copy engines do not wait for SMs
        names = self._links.names(price.flows)
        self._engine.set_flows(request.id, price.latency_ns, self._of_ranks(price.flows, joined), names, feels)
        self._engine.set_price(request.id, (price.duration_ns,), self._engine.intern(native.NAMES, name))
        algorithm = f"{price.algorithm}/{price.protocol}/{price.channels}"
        self._prices[request.id] = PriceRow(
            "communication",
            price.provenance,
            flops=0.0,
            bytes=float(request.bytes),
            main_part=0,
            algorithm=algorithm,
            error=price.error,
        )

    def _gpus(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """The GPUs of `ranks`. Raises PhantoraError where two ranks have one GPU."""
        if self._places is None:
            return ranks
        gpus = tuple(self._places.gpu_of(rank) for rank in ranks)
        if len(set(gpus)) < len(gpus):
            raise PhantoraError(f"ranks {', '.join(map(str, ranks))} have GPUs in common: NCCL wants one for each")
        return gpus

    def _of_ranks(self, flows: Sequence[Flow], ranks: Sequence[int]) -> Sequence[Flow]:
        """`flows` between GPUs, as the engine knows them: by the ranks there."""
        if self._places is None:
            return flows
        rank_of = {self._places.gpu_of(rank): rank for rank in ranks}
        return [
            replace(flow, src=rank_of.get(flow.src, flow.src), dst=rank_of.get(flow.dst, flow.dst)) for flow in flows
        ]

    def _communication(
        self, request: native.PriceRequest, gpus: Sequence[int], price: Callable[[CollectiveModel], CollectivePrice]
    ) -> CollectivePrice:
        """`price` by the simulated links; of a real run scaled to what it measured."""
        measured = self._measured
        if measured is None or request.measured < 0:
            return price(self._model(gpus))
        if not request.bytes or not measured.known:
            return fixed(request.measured)
        took = Took(request.measured, request.crowd)
        before = measured.collectives
        return as_measured(price(self._collectives), took, price(before), before.topology)

    def _model(self, gpus: Sequence[int]) -> CollectiveModel:
        """That of the kinds of GPUs that take part."""
        if len(self._models) == 1:
            return self._collectives
        return self._models[frozenset(self._cluster.kind_of(gpu // self._cluster.gpus_per_host) for gpu in gpus)]

    def _one_sided(self, request: native.PriceRequest, gpus: Sequence[int]) -> tuple[CollectivePrice, str]:
        """Price of access to the memory of peers without their participation: a copy or a signal."""
        if request.sub == native.PEER_COPY:
            price = self._model(gpus).peer_copy(gpus[0], gpus[1], request.bytes, request.blocks)
            return price, signal_name(puts=True, counted=True) if request.blocks else _PEER_COPY
        puts = request.sub == native.PUT_SIGNAL
        return self._model(gpus).signal(gpus[0], gpus[1], puts), signal_name(puts, bool(request.counted))

    def _flows_of_siblings(self, request: native.PriceRequest) -> list[Flow]:
        """In a folded run: flows of groups without a process on links that processes use as well, at the same time.
        Hosts without a process have links to themselves: one host, or a fabric that none share."""
        fold, topology = self._fold, self._collectives.topology
        if fold is None:
            return []
        members: tuple[int, ...] = (request.src, request.dst)
        joined = self._engine.comm_ranks(request.comm) if request.comm >= 0 else ()
        if request.kind == native.COLLECTIVE:
            members = joined
        flows: list[Flow] = []
        for ranks in fold.siblings(members):
            hosts = {topology.host_of(rank) for rank in ranks}
            if (self._apart or len(hosts) == 1) and hosts.isdisjoint(self._hosts_of_processes):
                continue
            if request.kind == native.COLLECTIVE:
                flows += self._collectives.collective(
                    request.sub, ranks, request.bytes, request.dtype, request.root, request.blocks, _rows(request)
                ).flows
            elif request.sub == native.PEER_COPY:
                flows += self._collectives.peer_copy(ranks[0], ranks[1], request.bytes, request.blocks).flows
            elif request.sub == native.PAIR:
                flows += self._collectives.transfer(
                    ranks[0],
                    ranks[1],
                    request.bytes,
                    request.concurrent,
                    members=len(joined),
                    duplex=bool(request.duplex),
                ).flows
        return flows

    def count(self, rows: npt.NDArray[np.void]) -> None:
        """Adds rows of the log to the time that each price stands for. Of a brief log nobody asks."""
        if self._brief:
            return
        priced = np.flatnonzero(rows["price"] >= 0)
        if not len(priced):
            return
        price, start, end, part = (rows[name][priced] for name in ("price", "start", "end", "part"))
        size = int(price.max()) + 1
        if size > len(self._count):
            grow = max(size, 2 * len(self._count)) - len(self._count)
            self._count, self._ns = np.pad(self._count, (0, grow)), np.pad(self._ns, (0, grow))
        ns = np.bincount(price, (end - start).astype(np.float64), size)
        self._ns[:size] += ns.astype(np.int64)
        self._count[:size] += np.bincount(price[part == 0], minlength=size)

    def operators(self) -> list[Wanted]:
        """The operators priced so far, with their instances and time; the longest first."""
        found: dict[tuple[str, str], Wanted] = {}
        for index, entry in self._operators.items():
            count, ns = (int(self._count[index]), int(self._ns[index])) if index < len(self._ns) else (0, 0)
            key = (entry.signature, entry.compute)
            before = found.get(key)
            if before is not None:
                count, ns = count + before.count, ns + before.ns
            found[key] = replace(entry, count=count, ns=ns)
        return sorted(found.values(), key=lambda entry: (-entry.ns, entry.signature, entry.compute))

    def sync_tables(self) -> None:
        """Appends what the engine has interned and what has been priced since the last call."""
        names, signatures, prices = self._tables.names, self._tables.signatures, self._tables.prices
        for index in range(len(names), self._engine.text_count(native.NAMES)):
            names.append(self._engine.text(native.NAMES, index))
        for index in range(len(signatures), self._engine.text_count(native.SIGNATURES)):
            signature = self._signature(index)
            if signature.name == "communicator":
                signatures.append(("ranks", ",".join(map(str, signature.args[0]))))
            else:
                signatures.append((signature.name, signature_text(signature)))
        while len(prices) in self._prices:
            prices.append(self._prices.pop(len(prices)))
