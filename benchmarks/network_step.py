"""A training step of many ranks with overlapping FSDP and TP groups, as records straight into the engine's rings.

Every rank has the program of a 32-layer Llama of 7B parameters: FSDP gathers a layer's parameters one layer ahead on a
stream of its own and scatters its gradients, tensor parallelism sums twice a layer in each direction. Hosts launch 5 us
apart, so that they run ahead of their GPUs as real ones do.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from phantora.hardware import load_cluster
from phantora.sim.collectives import CollectiveModel
from phantora.sim.engine import library as native
from phantora.sim.links import Links
from phantora.sim.whatif import WhatIf
from phantora.wire import layout, records
from tests.support.fakeranks import Bench

LAYERS, LAYER_BYTES, ACTIVATION_BYTES = 32, 2 * 202_000_000, 2 * 2048 * 4096
KERNELS = 45  # of a layer, there and back
COMPUTE, SHARD, TENSOR = 10, 11, 12  # streams
LAUNCH_NS = 5_000
CHUNK = 512  # records of a rank before the next has its turn


@dataclass
class Program:
    """Records of one rank, the same for all."""

    records: list[npt.NDArray[np.void]] = field(default_factory=list)
    clock: int = 0
    events: int = 0

    def emit(self, kind: str, **fields: int) -> None:
        self.records.append(records.make(kind, slot=layout.CONSTANTS["PH_NO_SLOT"], time=self.clock, **fields))

    def launch(self, kind: str, **fields: int) -> None:
        self.clock += LAUNCH_NS
        self.emit(kind, **fields)

    def kernels(self, count: int) -> None:
        for _ in range(count):
            self.launch(
                "KERNEL", id=1, stream=COMPUTE, grid_x=10**6, grid_y=1, grid_z=1, block_x=1024, block_y=1, block_z=1
            )

    def follow(self, stream: int, other: int) -> None:
        """Later work of `stream` comes after earlier work of `other`."""
        self.events += 1
        self.emit("EVENT_RECORD", id=self.events, stream=other)
        self.emit("STREAM_WAIT", id=self.events, stream=stream)
        self.emit("EVENT_DESTROY", id=self.events)

    def collective(self, comm: int, kind: int, nbytes: int, stream: int) -> None:
        self.launch("COLLECTIVE", id=comm, stream=stream, coll=kind, dtype=7, count=nbytes // 4, bytes=nbytes)

    def sum_activations(self) -> None:
        self.follow(TENSOR, COMPUTE)
        self.collective(2, layout.Coll.ALL_REDUCE, ACTIVATION_BYTES, TENSOR)
        self.follow(COMPUTE, TENSOR)

    def step(self, layer_bytes: int) -> None:
        for backward in (False, True):
            share = KERNELS * (2 if backward else 1) // 3
            self.collective(1, layout.Coll.ALL_GATHER, layer_bytes, SHARD)
            for layer in range(LAYERS):
                self.follow(COMPUTE, SHARD)
                if layer + 1 < LAYERS:
                    self.collective(1, layout.Coll.ALL_GATHER, layer_bytes, SHARD)
                self.kernels(share // 2)
                self.sum_activations()
                self.kernels(share - share // 2)
                self.sum_activations()
                if backward:
                    self.follow(SHARD, COMPUTE)
                    self.collective(1, layout.Coll.REDUCE_SCATTER, layer_bytes, SHARD)


@dataclass
class Cost:
    """Cost of all steps together."""

    cpu: float
    """Seconds in the engine."""
    virtual_ns: int
    operations: int


def simulate(library: Path, hosts: int, steps: int, fluid: bool) -> Cost:
    """Steps of `hosts` x 8 GPUs: TP inside hosts, FSDP across them. Without `fluid` collectives take fixed times."""
    world = hosts * 8
    cluster = load_cluster(f"{hosts}x8xH100")
    model = CollectiveModel(cluster)
    bench = Bench.create(library, world)
    links = Links(bench.engine, model.topology, world, WhatIf())
    program = Program()
    for stream in (COMPUTE, SHARD, TENSOR):
        program.emit("STREAM_CREATE", stream=stream, flags=layout.Flag["PH_F_NONBLOCKING"])
    for _ in range(steps):
        program.step(LAYER_BYTES // 8)
    program.emit("RANK_EXIT")
    records = np.concatenate(program.records)
    for rank in bench.ranks:
        host, local = divmod(rank.index, 8)
        rank.name("k:90000")
        rank.communicator(1, hosts, host, key=100 + local)
        rank.communicator(2, 8, local, key=1000 + host)
    sent = np.zeros(world, np.int64)
    spent = 0.0
    reason = 0
    while not reason & native.DONE:
        for rank in bench.ranks:
            head, tail = int(rank.control["head"][0]), int(rank.control["tail"][0])
            begin = int(sent[rank.index])
            count = min(CHUNK, len(records) - begin, layout.RING_RECORDS - (head - tail))
            if not count:
                continue
            rank.ring[(head + np.arange(count)) % layout.RING_RECORDS] = records[begin : begin + count]
            rank.control["clock"] = records["time"][begin + count - 1]
            rank.control["head"] = head + count
            sent[rank.index] += count
        idle = False
        while not idle:
            began = time.process_time()
            reason = bench.engine.run(0)
            spent += time.process_time() - began
            assert not reason & native.ERROR, bench.engine.error()
            while (request := bench.engine.next_price()) is not None:
                durations = (90_000,)
                if request.kind == native.COLLECTIVE:
                    price = model.collective(request.sub, bench.engine.comm_ranks(request.comm), request.bytes, 7)
                    durations = (price.duration_ns,)
                    if fluid:
                        names = links.names(price.flows)
                        bench.engine.set_flows(request.id, price.latency_ns, price.flows, names)
                bench.engine.set_price(request.id, durations)
            if reason & native.ROWS:
                bench.engine.take_rows(everything=False)
            idle = reason in (native.IDLE, native.DONE)
    status = bench.engine.status()
    operations = steps * LAYERS * (3 * 8 + 4 * hosts)
    bench.engine.close()
    return Cost(spent, status.final_time, operations)
