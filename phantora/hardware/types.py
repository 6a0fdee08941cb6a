"""The simulated hardware: GPUs, links, hosts, clusters. All values SI: bytes, bytes/s, FLOP/s, ns."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import NormalDist

from phantora.json_data import BytesPerSecond


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Achieved rates: how close kernels come to the GPU's limits. docs/gpu-files.md explains each."""

    floor_ns: float
    """Shortest kernel, ns, from its start to its end."""
    kernel_gap_ns: float
    """Gap from the end of a kernel, copy or memset to the start of the next on the same stream, if that is already
    queued. Not part of any price: the simulator's streams add it."""
    crowded_gap_ns: float
    """Gap while two or more other streams have work, if only a wait."""
    launch_latency_ns: float
    """Time from the call of cudaLaunchKernel to the start of the kernel on an idle GPU."""
    communication_start_ns: float
    """Time from the last dependency of a communication kernel to its start."""
    filling_copy_bytes: int
    """A copy inside the GPU or a memset of that many bytes takes all of the GPU; a smaller one its share of it."""
    nccl_channels: int
    """Channels of a NCCL kernel over NVLink."""
    nccl_pcie_channels: int
    """Channels of a NCCL kernel over PCIe."""
    nccl_connection_bytes: int
    """Device memory of one connection of one channel."""
    nccl_kernel_bytes: int
    """Memory of NCCL's kernels and their local memory, which the first communicator of a process takes."""
    nccl_send_bytes: int
    """Memory of the first send or receive of a process, in addition to its connections."""
    cublas_bytes: int
    """Memory of the first cuBLAS handle in a process."""
    cudnn_bytes: int
    """Memory of the first cuDNN handle in a process."""
    graph_gap_ns: float
    """Gap between kernels of a CUDA graph."""
    library_gap_ns: float
    """Gap between kernels of one library call, which often begin before the one before has ended."""
    gemm_peak: float
    """Share of peak FLOP/s in the main loop of a large GEMM tile."""
    gemm_prologue_ns: float
    gemm_store: float
    """Rate at which GEMM tiles are stored, as a multiple of the memory bandwidth."""
    conv_peak: float
    """Share of peak FLOP/s in the main loop of an implicit-GEMM convolution."""
    hbm: float
    """Share of the memory bandwidth that a vectorised stream reaches."""
    l2: float
    """Rate of L2 hits, as a multiple of the memory bandwidth."""
    l2_reach: float
    """Share of the L2 cache that still contains a kernel's input when the kernel starts."""
    element_cycles: float
    """SM cycles per element of kernels that compute an index per element (strided, casting)."""
    byte_cycles: float
    """SM cycles per byte that the same kernels move."""
    flash_forward_ns: tuple[float, float]
    """ns of a 128x64 step of FlashAttention-2: fixed, and per head element."""
    flash_backward_ns: tuple[float, float]
    cudnn_forward_ns: tuple[float, float]
    cudnn_backward_ns: tuple[float, float]
    cudnn_forward_block_ns: tuple[float, float]
    """ns of a block of 128 queries or keys of cuDNN's attention, next to its steps: fixed, and per head element."""
    cudnn_backward_block_ns: tuple[float, float]

    @property
    def nccl_peer_channels(self) -> int:
        """Channels that the peers of a rank share over NVLink: the power of two from the ring's channels on."""
        return 1 << (self.nccl_channels - 1).bit_length()


@dataclass(frozen=True, kw_only=True)
class Power:
    """Power of a GPU's activities, as shares of the usual cap (``power_watts``), and the limiter (docs/costs.md)."""

    idle: float
    """Whatever runs: leakage, memory refresh, links."""
    resting: float
    """Power while nothing runs."""
    tensor: float
    """Arithmetic at the peak rate of its format and full clock. Falls with the clock."""
    float8: float
    """Products in FP8, as a multiple of `tensor`."""
    attention: float
    """As `tensor`, of attention's products, which draw `active` as well."""
    active: float
    """Kernels that fill the GPU and do not use tensor cores: mostly memory traffic. Smaller ones draw by their share of
    the SMs."""
    communication: float
    """A NCCL kernel."""
    exponent: float
    """Exponent of the SM clock in a kernel's dynamic power."""
    burst: float
    """Highest power in an instant, also below the cap on average."""
    response_ns: float
    """The limiter averages over so long."""
    reaction_ns: float
    """Time in which the limiter moves the clock by the share of the cap that the mean is below or above it."""
    spread: float
    """Standard deviation of dynamic power between GPUs of the same model."""
    lowest_clock: float
    """Share of the full clock below which the limiter does not go."""
    without_tensor_cores: tuple[str, ...]
    """Formats of arithmetic that draw no more than other kernels do."""


@dataclass(frozen=True)
class Interference:
    """Slowdown of kernels next to communication (docs/costs.md)."""

    classes: dict[str, float]
    """Factor by which a kernel of a class is slower while a NCCL kernel runs next to it; 1 for others."""
    channel_sms: float
    """SMs that a NCCL channel keeps from products that ran when it came."""
    first_channel_sms: float
    """SMs that a NCCL channel keeps from products that came after it."""
    waves: float
    """Share of a product's time that comes in waves of tiles over the SMs."""


@dataclass(frozen=True)
class CommunicationSlowdown:
    """Slowdown of communication next to a kernel, as a share of its time alone."""

    products: float
    """Next to products and convolutions."""
    attention: float
    memory: float
    """Next to a kernel that takes all of the memory's bandwidth; it goes with the cube of that share."""


@dataclass(frozen=True)
class MeasuredCollective:
    """Durations of one collective from the arrival of its last rank, by size."""

    op: str
    """As ``wire.layout.Coll`` in lower case: ``all_reduce``."""
    members: int
    """Ranks of the group, all on one host."""
    bytes: tuple[int, ...]
    """Sizes as nccl-tests counts them, ascending."""
    ns: tuple[float, ...]
    """Duration at each size."""


@dataclass(frozen=True)
class MeasuredGpu:
    """Facts about the GPUs in the trace of a real run. Facts that the trace does not show have their defaults."""

    product: str
    """``cudaDeviceProp.name``; on other GPUs nothing of this counts."""
    kernels: str = ""
    """Path of the table of operators (``cost/traced.py``)."""
    products: float = 1.0
    """Time of products over that of the simulated run."""
    products_spread: tuple[float, float] = (1.0, 1.0)
    """Quartiles of that ratio over products."""
    collectives: tuple[MeasuredCollective, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU model."""

    name: str
    aliases: tuple[str, ...]
    product: str
    """``cudaDeviceProp.name``: frameworks pick peaks and kernels by it."""
    sources: tuple[str, ...]
    compute_capability: tuple[int, int]
    sms: int
    max_threads_per_sm: int
    regs_per_sm: int
    max_blocks_per_sm: int
    smem_per_sm: int
    smem_per_block_optin: int
    clock_khz: int
    memory_clock_khz: int
    bus_width: int
    """Bits."""
    l2_bytes: int
    persisting_l2_bytes: int
    memory_bytes: int
    """Total as ``cudaMemGetInfo`` reports it."""
    context_bytes: int
    """Taken by a CUDA context and the first kernel, next to allocations."""
    nccl_bytes_per_comm: int
    hbm_bandwidth: float
    nvlink_bandwidth: float
    """Bytes/s per direction; 0 when GPUs of a host reach each other through PCIe only."""
    pcie_bandwidth: float
    """Bytes/s per direction."""
    nic_bandwidth: float
    """Bytes/s per direction of the network port that a GPU has to itself."""
    power_watts: int
    peak_flops: dict[str, float]
    """Dense FLOP/s by format: bfloat16, float16, tfloat32, float32, float64, float8, int8, float4."""
    interference: Interference
    communication_slowdown: CommunicationSlowdown
    power: Power
    calibration: Calibration
    calibrated_on: str
    """Name of the GPU on which `calibration` was measured."""
    calibrated_clock_khz: int
    """SM clock of the GPU on which `calibration` was measured."""
    host_bandwidth: float = 0.0
    """Bytes/s per direction to the memory of the host; 0: that of PCIe."""
    limit_watts: float = 0.0
    """The limit in force (``nvidia-smi -pl``), where it is not `power_watts`, to which the shares of `power` refer."""
    spare_bytes: int = 0
    """Part of `context_bytes`: memory that the first kernel adds, and the driver gives back when memory runs out."""
    scaled_errors: dict[str, float] = field(default_factory=dict)
    """Relative error bars of times that are scaled from another GPU, by class: nine of ten published kernels lie within
    (validation/published/kernels.py). A class that is not there has that of products."""
    attention_step_ns: dict[str, float] = field(default_factory=dict)
    """ns of 128 x 64 scores of causal attention on one SM, forward, by head
    (validation/published/nvidia_attention.py); empty: by the calibration's GPU."""
    attention_backward_step_ns: dict[str, float] = field(default_factory=dict)
    """ns of 128 x 64 scores, backward (validation/published/cudnn_attention.py); empty: by the forward pass and the
    calibration's GPU."""
    nvlink_domain: int = 0
    """GPUs that one NVLink fabric joins, in several hosts; 0: those of a host."""
    attention_kind: str = ""
    """The library whose attention was published: ``cudnn`` or ``flash``; empty: torch's two are equally fast."""
    host: str = ""
    """Built-in host, where the GPU's module has its CPU; empty: the default host."""
    launch_ns: float = 0.0
    """Duration of a kernel that does nothing, measured; 0: not known, the calibration's `floor_ns` then."""
    measured: MeasuredGpu | None = None
    """Facts from a trace of the user's machine, from a calibration file."""

    @property
    def reference_clock(self) -> float:
        """SM clock in Hz that cycle counts refer to."""
        return self.clock_khz * 1e3

    @property
    def calibrated_clock(self) -> float:
        """SM clock in Hz of the GPU on which `calibration` was measured."""
        return self.calibrated_clock_khz * 1e3


@dataclass(frozen=True)
class Link:
    """A GPU's port: `bandwidth` in bytes/s per direction per GPU, `latency_ns` one way."""

    bandwidth: float
    latency_ns: int


LOADS = frozenset({"KERNEL_LOAD", "KERNEL_LOAD_GIB"})
"""Costs that all hosts share: the driver reads a module and copies it. A machine whose Python is 1.15 times as slow as
the reference host's took 1.4 times as long for modules as one of 2.79 (both first_launches.jsonl)."""


def _expected_maximum(draws: int) -> float:
    """Expected largest of `draws` standard normal numbers, by Blom's formula: 0 of one, 1.05 of 4, 1.43 of 8."""
    return NormalDist().inv_cdf((draws - 0.375) / (draws + 0.25)) if draws > 1 else 0.0


@dataclass(frozen=True, kw_only=True)
class HostJitter:
    """Changes of a host's speed during a run. The defaults are near what ``validation.fits.jitter`` prints for the
    machines on which the runs of ``validation/runs.toml`` were made, VMs whose cores others use too. `spread` (0.16
    there) and `machines_spread` (0.44 and 0.55) are lower, for the share of real steps in the range of samples
    (``validation.compare.spread``)."""

    spread: float = 0.14
    """Standard deviation of the logarithm of a rank's pace."""
    lasts_ns: float = 40e6
    """Mean time for which a pace lasts."""
    pauses_per_second: float = 1.2
    """Mean number of pauses on a host, in each of which one of its ranks does not run."""
    pause_ns: float = 20e6
    """Mean time of a pause."""
    pause_spread: float = 1.1
    """Standard deviation of the logarithm of a pause's time."""
    machines_spread: float = 0.35
    """Standard deviation of the logarithm of `spread` between machines that pass for this one; 0 for a measured one."""
    machines_pauses: float = 0.7
    """Standard deviation of the logarithm of `pauses_per_second` between them."""


@dataclass(frozen=True, kw_only=True)
class HostProfile:
    """A host: what its CPU takes for CUDA calls, operators and Python."""

    name: str
    api_ns: dict[str, int]
    """ns by member name of ``wire.layout.Api``."""
    factor: float = 1.0
    """Host time on it over that on the reference host (``hosts.REFERENCE_HOST``)."""
    spread: tuple[float, float] = (1.0, 1.0)
    """Hosts that pass for this one take this range of times as long: measured ones (`phantora profile host`)
    repeat closely, one that is only assumed does not."""
    cpu: str = ""
    """Model and clock, as /proc/cpuinfo gives them."""
    sources: tuple[str, ...] = ()
    probe_ns: dict[str, float] = field(default_factory=dict)
    """Times of rows of ``profile/host_probe.py`` there under the stub libraries, ns; hosts are compared by them."""
    measured: bool = False
    """True for a host file of `phantora profile host`; False for an assumed host."""
    rank_spread: float = 0.15
    """Standard deviation of the logarithm of the ranks' host times on one machine, for the same work. Processors of a
    VM are threads of cores that others use. In five programs of 4 ranks next to 4 H200 the slowest rank took 1.16 to
    1.42 times the mean. Steps of 18 runs there took 1.16 times as long as at the mean pace (docs/virtual-time.md)."""
    cores_per_gpu: int = 16
    """Logical CPUs of the host for each of its GPUs: what scripts see as ``os.cpu_count()``. VMs with one, two and four
    GPUs had 16, 32 and 64."""

    jitter: HostJitter = HostJitter()

    def pace(self, ranks: int) -> float:
        """Host time of the slowest of `ranks` ranks of a machine over the typical one: the slowest decides the step."""
        return math.exp(self.rank_spread * _expected_maximum(ranks))

    def slower(self, factor: float) -> HostProfile:
        """This host, `factor` times as slow in everything but :data:`LOADS`."""
        scaled = {name: ns if name in LOADS else round(ns * factor) for name, ns in self.api_ns.items()}
        return replace(self, api_ns=scaled, factor=self.factor * factor, probe_ns={})


@dataclass(frozen=True, kw_only=True)
class Wiring:
    """The inside of a host. Hosts of a cluster are identical."""

    kind: str
    """Connection of the GPUs: ``nvswitch`` (each has a port to it), ``nvlink-pairs`` (bridges join 0 and 1, 2 and 3
    ...; all else over PCIe) or ``pcie``."""
    nics: int
    """NICs, assigned to the GPUs in order; a GPU's NIC is its rail."""
    gpus_per_pcie_switch: int
    """GPUs, with their NICs, below one PCIe switch."""
    sockets: int
    """CPUs, to which the PCIe switches are assigned."""
    socket_bandwidth: BytesPerSecond
    """Bytes/s per direction between two CPUs."""
    nvlink_hosts: int = 1
    """Consecutive hosts whose GPUs meet in one NVLink fabric, a domain (NVL72: 18 of 4 GPUs)."""
    cpu: str = "intel"
    """``intel`` or ``amd``: NCCL's latencies and LL rates between hosts depend on it."""


@dataclass(frozen=True)
class FabricLink:
    """A cable of a fabric of kind ``graph``, between NICs (``h0.nic3``) and switches (any other name)."""

    ends: tuple[str, str]
    bandwidth: BytesPerSecond
    """Payload and headers, bytes/s per direction."""
    latency_ns: int = 500
    one_way: bool = False


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """The network between hosts. docs/clusters.md draws each kind."""

    kind: str = "switch"
    """``switch`` (one that blocks nothing), ``rail``, ``leaf-spine``, ``fat-tree``, ``dragonfly`` or ``graph``."""
    hosts_per_leaf: int = 0
    """Hosts below a leaf switch (``rail``: below each rail's leaf; ``dragonfly``: per router); 0: 32 in
    ``rail``, else 4."""
    spines: int = 0
    """Switches above the leaves (``fat-tree``: in each pod); 0: as many as a leaf has ports to share out."""
    leaves_per_pod: int = 4
    """``fat-tree``: leaf switches in a pod; ``dragonfly``: routers in a group."""
    oversubscription: float = 1.0
    """Rate into a leaf from below over the rate of its links upwards."""
    hop_latency_ns: int = 500
    """One way over a link between switches, with the switch."""
    routing: str = "ecmp"
    """``ecmp`` (hash of the flow) or ``adaptive`` (the link with the fewest flows)."""
    seed: int = 0
    """Seed of the hash."""
    links: tuple[FabricLink, ...] = ()
    """``graph``: its cables."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """`hosts` hosts of `gpus_per_host` GPUs, all equal unless there are `kinds`."""

    name: str
    hosts: int
    gpus_per_host: int
    gpu: Gpu
    intra: Link
    """A GPU's port inside the host."""
    inter: Link
    """A NIC's port; the latency is from GPU to GPU through one switch."""
    host: HostProfile
    wiring: Wiring
    fabric: Fabric = Fabric()
    nccl: dict[str, str] = field(default_factory=dict)
    """``NCCL_*`` variables that its operator sets on all hosts; the run's own environment comes first."""
    host_memory: int = 0
    """Bytes of a host's memory; 0: unknown."""
    kinds: tuple[Cluster, ...] = ()
    """Hosts of different kinds in their order, each a cluster of equal hosts with the same wiring; (): all are equal.
    `gpu`, `intra` and `inter` are those of the first."""

    @property
    def parts(self) -> tuple[Cluster, ...]:
        """Clusters of equal hosts."""
        return self.kinds or (self,)

    def kind_of(self, host: int) -> int:
        """Number of a host's kind in :attr:`parts`."""
        for kind, part in enumerate(self.parts):
            if host < part.hosts:
                return kind
            host -= part.hosts
        return 0

    def each(self, change: Callable[[Cluster], Cluster]) -> Cluster:
        """The cluster with a change of all its hosts."""
        return replace(change(self), kinds=tuple(map(change, self.kinds)))

    @property
    def world_size(self) -> int:
        """Number of GPUs."""
        return self.hosts * self.gpus_per_host

    def domains(self) -> Cluster:
        """The cluster whose hosts are the NVLink domains of this one; the last domain may be larger than it is here."""
        joined = min(self.wiring.nvlink_hosts, self.hosts)
        wiring = replace(self.wiring, nics=min(self.wiring.nics, self.gpus_per_host) * joined, nvlink_hosts=joined)
        if joined == 1:
            return replace(self, wiring=replace(self.wiring, nvlink_hosts=1))
        return replace(self, hosts=-(-self.hosts // joined), gpus_per_host=self.gpus_per_host * joined, wiring=wiring)

    def part(self, hosts: int, gpus_per_host: int) -> Cluster:
        """The first GPUs of its first hosts, with the NICs that belong to them."""
        nics, kinds, left = math.ceil(self.wiring.nics * gpus_per_host / self.gpus_per_host), [], hosts
        for kind in self.kinds:
            kinds += [kind.part(min(left, kind.hosts), gpus_per_host)] if left > 0 else []
            left -= kind.hosts
        wiring = replace(self.wiring, nics=nics)
        return replace(self, hosts=hosts, gpus_per_host=gpus_per_host, wiring=wiring, kinds=tuple(kinds))
