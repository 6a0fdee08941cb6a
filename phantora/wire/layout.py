"""The one definition of everything that crosses a process boundary in shared memory.

Three parties read these layouts: the stub libraries inside each rank (C), the simulator's engine
(C++) and Python. The C side includes ``phantora_wire.h``, which :func:`c_header` generates from
the tables here and in :mod:`phantora.wire.records`; the Python side uses the NumPy dtypes that :func:`dtype` and
:func:`fields` build from the same tables. Change a table and both follow. The compiler checks the sizes;
``WIRE_VERSION`` and a checksum of the header are checked when a rank connects.

Conventions: little endian, every struct a multiple of 8 bytes, no implicit padding. Times are
virtual nanoseconds since the start of the run (``int64``).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from phantora.wire import relayed, schema, shared
from phantora.wire.records import Kind, Record, answered, c_record, fields
from phantora.wire.schema import Enum, Struct

__all__ = [
    "BLOB_BYTES",
    "CONSTANTS",
    "ENUMS",
    "GOLDEN",
    "MAGIC",
    "NCCL_DTYPE_BYTES",
    "NCCL_DTYPE_NAMES",
    "REPLY_BYTES",
    "REPLY_SLOTS",
    "RING_RECORDS",
    "SAME_TIME",
    "STRUCTS",
    "WIRE_VERSION",
    "Activity",
    "Api",
    "Blob",
    "Coll",
    "Control",
    "ConvForm",
    "ConvLayout",
    "ConvType",
    "Copy",
    "Device",
    "Enum",
    "Flag",
    "Header",
    "HostMode",
    "Kind",
    "Mem",
    "Record",
    "Reply",
    "Row",
    "RowKind",
    "SimState",
    "Struct",
    "Unsupported",
    "Workspace",
    "answered",
    "c_header",
    "checksum",
    "dtype",
    "fields",
]

WIRE_VERSION = 4
MAGIC = 0x314152544E414850  # "PHANTRA1"
GOLDEN = 0x9E3779B97F4A7C15  # 2 ** 64 / golden ratio: spreads keys of hash tables

RING_RECORDS = 8192  # records per rank, a power of two: 512 KiB
REPLY_SLOTS = 8  # threads of one rank that can wait at the same time
REPLY_BYTES = 65536  # payload bytes of one reply; longer payloads travel in pieces
L2_STEPS = 4  # of the share of an operator's operands that L2 holds
BLOB_BYTES = 56  # bytes of variable-length data that one BLOB record carries
SAME_TIME = 1 << 20  # price of a TIMED launch that takes as long as it did: its price is a ratio
OTHER_THREADS = 64  # index of the first thread that is neither the main thread nor one of autograd
MAX_KINDS = 4  # of GPUs in a cluster
MAX_DEVICES = 128  # of a host, a multiple of 64: the largest NVLink domain has 72
CONSTANTS = {
    "PH_WIRE_VERSION": WIRE_VERSION,
    "PH_RING_RECORDS": RING_RECORDS,
    "PH_REPLY_SLOTS": REPLY_SLOTS,
    "PH_REPLY_BYTES": REPLY_BYTES,
    "PH_BLOB_BYTES": BLOB_BYTES,
    "PH_L2_STEPS": L2_STEPS,
    "PH_NO_SLOT": 0xFF,
    "PH_PROBE": 2,
    "PH_MAX_DEVICES": MAX_DEVICES,
    "PH_MAX_KINDS": MAX_KINDS,
    "PH_SAME_TIME": SAME_TIME,
    "PH_PID_BITS": relayed.PID_BITS,
    "PH_OTHER_THREADS": OTHER_THREADS,
}


Flag = {
    "PH_F_NONBLOCKING": 1,  # stream does not synchronise with the legacy default stream
    "PH_F_TIMING": 2,  # event records time
    "PH_F_SHARED": 1,  # communicator: its members reach each other's memory
    "PH_F_COUNTED": 1,  # signal: any number may be under way, so that giving one waits for none
    "PH_F_UNKNOWN": 1,  # collective, send: all known bytes follow from unknown values
    "PH_F_ABSENT": 2,  # collective, send: no bytes are known
    "PH_F_PARTS": 4,  # collective, send: parts of the bytes are known, or parts are unknown
    "PH_F_SYNC": 4,  # the host waits for the copy (request: a reply slot is given)
    "PH_F_LIBRARY": 8,  # the kernel name is a JSON description of a library call
    "PH_F_HELPER": 16,  # issued by a thread that does not move the host clock
    "PH_F_BACKWARD": 32,  # the operator ran in an autograd thread
    "PH_F_BLOCKED": 64,  # request: the host clock stands still until the answer
    "PH_F_GRAPH": 128,  # comes from the launch of a graph
}

Copy = Enum(
    "ph_copy",
    "PH_COPY_",
    (
        ("H2D_PINNED", ""),
        ("H2D_PAGEABLE", ""),
        ("D2H_PINNED", ""),
        ("D2H_PAGEABLE", ""),
        ("D2D", ""),
        ("P2P", ""),
        ("H2H", ""),
    ),
)
Coll = Enum(
    "ph_coll",
    "PH_COLL_",
    (
        ("ALL_REDUCE", ""),
        ("ALL_GATHER", ""),
        ("REDUCE_SCATTER", ""),
        ("BROADCAST", ""),
        ("REDUCE", ""),
        ("ALL_TO_ALL", ""),
        ("GATHER", ""),
        ("SCATTER", ""),
        ("BARRIER", ""),
        # Kernels on the memory of peers; root = channel: those of one channel come one after the other.
        ("SYMMETRIC_BARRIER", ""),
        ("ONE_SHOT_ALL_REDUCE", ""),
        ("TWO_SHOT_ALL_REDUCE", ""),
        ("PULLED_REDUCE_SCATTER", ""),
        # Of Transformer Engine's Userbuffers.
        ("USERBUFFERS_ALL_GATHER", ""),
        ("USERBUFFERS_REDUCE_SCATTER", ""),
        # Of DeepEP: tokens to their experts, and back. count = bytes of a row, scalar = tokens of this rank.
        ("EXPERT_COUNTS", "members learn how many rows come"),
        ("EXPERT_DISPATCH", ""),
        ("EXPERT_COMBINE", ""),
        ("LOW_LATENCY_DISPATCH", ""),
        ("LOW_LATENCY_COMBINE", ""),
        ("HYBRID_DISPATCH", ""),
        ("HYBRID_COMBINE", ""),
    ),
)
EXPERTS = frozenset(
    (
        Coll.EXPERT_COUNTS,
        Coll.EXPERT_DISPATCH,
        Coll.EXPERT_COMBINE,
        Coll.LOW_LATENCY_DISPATCH,
        Coll.LOW_LATENCY_COMBINE,
        Coll.HYBRID_DISPATCH,
        Coll.HYBRID_COMBINE,
    )
)
SYMMETRIC = frozenset(
    (
        Coll.SYMMETRIC_BARRIER,
        Coll.ONE_SHOT_ALL_REDUCE,
        Coll.TWO_SHOT_ALL_REDUCE,
        Coll.PULLED_REDUCE_SCATTER,
        Coll.USERBUFFERS_ALL_GATHER,
        Coll.USERBUFFERS_REDUCE_SCATTER,
    )
)
Mem = Enum(
    "ph_mem",
    "PH_MEM_",
    (
        ("ALLOC", "the framework's allocator handed out a block"),
        ("FREE", "a block came back"),
        ("SEGMENT_ALLOC", "the allocator took memory from the device"),
        ("SEGMENT_FREE", "and returned it"),
        ("OOM", "an allocation failed"),
        ("SITE", "where the program asked for the large block before: op = name"),
        ("RETRY", "the allocator freed its cache and asked the device again"),
        ("USE", "what the program has a block for: op = name"),
    ),
)
# NCCL's ncclDataType_t values, sizes in bytes.
NCCL_DTYPE_BYTES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)
NCCL_DTYPE_NAMES = (
    "int8",
    "uint8",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "bfloat16",
    "float8_e4m3",
    "float8_e5m2",
)

# CUDA and library calls whose host time is modelled. Costs come from the host profile.
Api = Enum(
    "ph_api",
    "PH_API_",
    (
        ("OTHER", "any call not listed"),
        ("LAUNCH", "cudaLaunchKernel and friends"),
        ("MEMCPY_ASYNC", ""),
        ("MEMCPY_SYNC", ""),
        ("MEMSET", ""),
        ("EVENT_RECORD", ""),
        ("EVENT_QUERY", ""),
        ("EVENT_CREATE", ""),
        ("STREAM_WAIT", ""),
        ("STREAM_SYNC", "host cost of the call on top of the wait"),
        ("STREAM_QUERY", ""),
        ("STREAM_CREATE", ""),
        ("MALLOC", ""),
        ("FREE", ""),
        ("HOST_ALLOC", ""),
        ("HOST_FREE", ""),
        ("GET_DEVICE", "calls that only read state"),
        ("GEMM", "cuBLAS product, launch included"),
        ("GEMM_LT", "cublasLt matmul, launch included"),
        ("GEMM_HEURISTIC", "cublasLtMatmulAlgoGetHeuristic"),
        ("CUDNN_EXECUTE", "cudnnBackendExecute and legacy executes"),
        ("CUDNN_BUILD", "finalize of a descriptor"),
        ("NCCL_ENQUEUE", "one collective or send/receive"),
        ("NCCL_GROUP", "ncclGroupEnd with work"),
        ("COMM_INIT", ""),
        ("HOST_FUNC", ""),
        ("MEM_MAP", "a call on virtual memory that is not listed"),
        ("NVRTC_COMPILE", ""),
        ("OP_TOP", "an operator called from Python"),
        ("OP_NESTED", "an operator called from another operator"),
        ("OP_VIEW", "an operator that only makes a view, from Python"),
        ("OP_VIEW_NESTED", ""),
        ("OP_BACKWARD", "a node of the autograd graph"),
        ("OP_ALLOC", "an operator that only allocates, from Python"),
        ("ANNOTATION", "a user annotation"),
        ("KERNEL_LOAD", "the first launch of a kernel of a module: the module is loaded"),
        ("LIBRARY_LOAD", "the first call of a library that needs another kernel: it is loaded"),
        ("CUBLAS_CREATE", "the first cuBLAS handle of a process"),
        ("CUDNN_CREATE", "the first cuDNN handle of a process"),
        ("CUDNN_PLAN", "finalize of an execution plan that is not listed, such as attention"),
        ("OP_PYTHON", "an operator that is dispatched to Python"),
        ("MALLOC_GIB", "cudaMalloc, per GiB on top of MALLOC"),
        ("FREE_GIB", "cudaFree, per GiB on top of FREE"),
        ("HOST_ALLOC_GIB", "pinned memory, per GiB on top of HOST_ALLOC"),
        ("PY_FRAME", "a Python frame that is entered"),
        ("PY_CODE", "1,000 units of cold code in the frames entered; charged in thousandths of a unit"),
        ("OP_GRAD", "an operator whose place in the autograd graph is noted"),
        ("OP_NODE", "an operator called by a native autograd node"),
        ("OP_ALLOC_NESTED", "an allocation by another operator"),
        ("OP_LIST", "a tensor in a list that an operator takes"),
        ("OP_LIST_OUT", "a tensor in a list that an operator returns"),
        ("OP_ACCUMULATE", "an AccumulateGrad node"),
        ("OP_BACKWARD_PYTHON", "an autograd node written in Python"),
        ("BACKWARD_CALL", "handing a backward pass to the autograd thread of its GPU, and back"),
        ("OPTIMIZER_PARAM", "a parameter in a step or zero_grad of an optimizer that works on lists"),
        ("BLOCK_FREE", "a block that goes back to the framework's allocator"),
        ("OP_COLD", "an operator, not called by another one, whose code is cold; charged in thousandths"),
        ("OP_LIST_PYTHON", "a tensor in a list that an operator dispatched to Python takes"),
        ("HOST_FILL_GIB", "pinned memory that an operator fills for its kernels, per GiB"),
        ("MALLOC_FAIL", "a cudaMalloc for which there is no room"),
        ("MEM_CREATE", "cuMemCreate and cuMemRelease, each"),
        ("MEM_ACCESS", "cuMemSetAccess"),
        ("MEM_UNMAP", "cuMemUnmap"),
        ("GRAPH_LAUNCH", "cudaGraphLaunch"),
        ("GRAPH_LAUNCH_NODE", "and for each node of the graph"),
        ("GRAPH_INSTANTIATE", "cudaGraphInstantiate"),
        ("GRAPH_INSTANTIATE_NODE", "and for each node of the graph"),
        ("GRAPH_UPLOAD", "cudaGraphUpload, or the first launch without"),
        ("GRAPH_UPLOAD_NODE", "and for each node of the graph"),
        ("GEMM_SIZES", "a product of new sizes: its kernel is chosen"),
        ("CONV_PLAN", "CUDNN_PLAN of a convolution or its gradient"),
        ("CONV_LOAD", "the first convolution that needs another kernel"),
        ("CUDNN_PLAN_BACKWARD", "CUDNN_PLAN of attention's gradient"),
        ("FFT_PLAN", "a cuFFT plan"),
        ("CUDNN_CONVERT", "the further kernels of a convolution that converts layouts"),
        ("PY_TORCH_FUNCTION", "a call of torch that a mode or subclass sees in Python, on top of its frame"),
        ("PY_LOOP", "an operator called from a Python frame that has called several, as in a loop over parameters"),
        ("CUDNN_RNN", "a pass through recurrent layers: forward, gradients of the input, gradients of the weights"),
        ("CUDNN_RNN_LAYER", "the gradients of one layer in one direction"),
        ("KERNEL_LOAD_GIB", "KERNEL_LOAD, per GiB of the module's machine code"),
        ("KERNEL_FIRST", "the first launch of each further kernel of a module"),
        ("HOST_MOVE_GIB", "memory that an operator on CPU tensors reads and writes, per GiB and thread"),
        ("HOST_SATURATED_GIB", "and by many threads together, of all ranks of a host, which share its memory"),
        ("HOST_FAULT_SATURATED_GIB", "HOST_FAULT_GIB on many threads of a process"),
        ("PAGEABLE_H2D_GIB", "a copy of pageable memory to a GPU, per GiB: the host's part, next to the copy"),
        ("PAGEABLE_D2H_GIB", "and of one back"),
        (
            "PIN_BATCH_GIB",
            "a batch of a DataLoader that its thread copies to pinned memory with Python's lock, per GiB",
        ),
        ("FILE_WRITE_GIB", "a file that is written into the host's memory, per GiB"),
        ("FILE_LOCKED_GIB", "and for which its writer has Python's lock"),
        ("FILE_TENSOR", "a tensor that a distributed checkpoint plans and writes in the background: Python's work"),
        ("FILE_SUM_GIB", "and more for torch.save and distributed checkpoints: records and checksums"),
        ("FILE_REPLACE_GIB", "and for each GiB of an earlier file of this name"),
        ("FILE_READ_GIB", "a file that is read from the host's memory, per GiB, without the pages of new memory"),
        ("HOST_FAULT_GIB", "new memory that such an operator writes, per GiB and thread: its pages are made"),
        ("PY_ELEMENT", "a number of a Python list that becomes a tensor"),
        ("BACKWARD_WAKE", "waking that thread, and the one that waits for it, on top of BACKWARD_CALL"),
        ("NCCL_COLD", "a group of NCCL's operations whose code is cold; charged in thousandths"),
        (
            "LIST_COLD",
            "a parameter in a list that Python hands to an operator after other work; charged in thousandths",
        ),
        ("GC_IMPORTED", "an object of an imported module that a full garbage collection of Python goes through"),
        ("GC_OBJECT", "and one that the program has made"),
        ("FILE_PLAN", "a tensor of another rank in the plan of a distributed checkpoint, which rank 0 makes"),
        ("WORKER_START", "a worker process of a DataLoader: its fork and its end"),
    ),
)
HostMode = Enum("ph_host_mode", "PH_HOST_", (("MODELLED", ""), ("MEASURED", ""), ("NONE", "")))
Unsupported = Enum("ph_unsupported", "PH_UNSUPPORTED_", (("ERROR", ""), ("WARN", "")))
# Convolutions, as tables of workspaces tell them apart.
ConvForm = Enum(
    "ph_conv_form", "PH_CONV_", (("FWD", ""), ("DGRAD", "gradient of the input"), ("WGRAD", "gradient of the filters"))
)
ConvType = Enum(
    "ph_conv_type", "PH_CONV_", (("TF32", "float32 on tensor cores"), ("F32", "and not"), ("BF16", ""), ("F16", ""))
)
ConvLayout = Enum("ph_conv_layout", "PH_CONV_", (("NCHW", ""), ("NHWC", "channels last")))
SimState = Enum(
    "ph_sim_state", "PH_SIM_", (("STARTING", ""), ("RUNNING", ""), ("ABORTED", "ranks exit at their next call"))
)


# The simulated GPU, as stubs must describe it.
Device = Struct(
    "ph_device",
    (
        ("char", "name", 64, "as cudaDeviceProp.name"),
        ("int32_t", "major", 1, "compute capability"),
        ("int32_t", "minor", 1, ""),
        ("int32_t", "sms", 1, "multiprocessors"),
        ("int32_t", "max_threads_per_sm", 1, ""),
        ("int32_t", "regs_per_sm", 1, ""),
        ("int32_t", "max_blocks_per_sm", 1, ""),
        ("int32_t", "smem_per_sm", 1, "bytes"),
        ("int32_t", "smem_per_block_optin", 1, "bytes"),
        ("int32_t", "clock_khz", 1, ""),
        ("int32_t", "memory_clock_khz", 1, ""),
        ("int32_t", "bus_width", 1, "bits"),
        ("int32_t", "l2_bytes", 1, ""),
        ("int32_t", "persisting_l2_bytes", 1, ""),
        ("int32_t", "nvlink", 1, "1 if peers are reached by NVLink"),
        ("uint64_t", "memory_bytes", 1, "total, as cudaMemGetInfo reports it"),
        ("uint64_t", "context_bytes", 1, "taken by a CUDA context and the first kernel"),
        ("uint64_t", "spare_bytes", 1, "of them given back when memory runs out"),
        ("uint64_t", "nccl_bytes_per_comm", 1, "device memory that a communicator takes"),
        ("int32_t", "nccl_channels", 1, "of a NCCL kernel"),
        ("int32_t", "nccl_peer_channels", 1, "that its peers share over NVLink"),
        ("uint64_t", "nccl_connection_bytes", 1, "device memory of a connection of a channel"),
        ("uint64_t", "nccl_kernel_bytes", 1, "of NCCL's kernels, once"),
        ("uint64_t", "nccl_send_bytes", 1, "of its sends and receives, once"),
        ("uint64_t", "cublas_bytes", 1, "of cuBLAS' kernels, once"),
        ("uint64_t", "cudnn_bytes", 1, "of cuDNN's, once"),
        ("uint32_t", "idle_mw", 1, "that it draws with nothing to do"),
        ("uint32_t", "limit_mw", 1, "its power limit, in force"),
        ("uint32_t", "default_limit_mw", 1, "and as it comes"),
        ("uint32_t", "pad", 1, ""),
    ),
)

Header = Struct(
    "ph_header",
    (
        ("uint64_t", "magic", 1, ""),
        ("uint32_t", "version", 1, ""),
        ("uint32_t", "world_size", 1, ""),
        ("uint32_t", "ranks_per_host", 1, ""),
        ("uint32_t", "sim_state", 1, "enum ph_sim_state"),
        ("int32_t", "sim_pid", 1, ""),
        ("uint32_t", "doorbell", 1, "futex: ranks ring, the simulator sleeps on it"),
        ("uint32_t", "sim_sleeping", 1, "1 while a ring needs a wake-up"),
        (
            "uint32_t",
            "relay_bell",
            1,
            "futex: the simulator rings, the relay of its answers to other nodes sleeps on it",
        ),
        ("uint32_t", "relay_sleeping", 1, "1 while it needs a wake-up"),
        ("uint32_t", "host_mode", 1, "enum ph_host_mode"),
        (
            "uint32_t",
            "null_mode",
            1,
            "1: record nothing, answer at once; PH_PROBE: and end with the first communication that is no small one",
        ),
        ("uint32_t", "unsupported", 1, "enum ph_unsupported"),
        (
            "double",
            "host_scale",
            1,
            "measured mode: CPU time is multiplied by this; modelled mode: host time over that of the reference host",
        ),
        ("int64_t", "epoch_ns", 1, "wall clock at virtual time 0, for time.time()"),
        ("uint32_t", "layout", 1, "PH_LAYOUT"),
        ("uint32_t", "folded", 1, "ranks that are no processes"),
        (
            "uint32_t",
            "gpus_per_host",
            1,
            "where several processes share a GPU: local rank r has GPU r modulo this; 0: every rank has its own",
        ),
        ("uint32_t", "mps", 1, "1: kernels of processes that share a GPU run concurrently"),
        (
            "int64_t",
            "stalled_ns",
            1,
            "real time for which no rank could go on: the clock of torch's timeouts goes on then",
        ),
        ("uint64_t", "size", 1, "bytes of the whole area"),
        ("uint64_t", "control_offset", 1, "of ph_control[world_size]"),
        ("uint64_t", "ring_offset", 1, "of the rings"),
        ("uint64_t", "reply_offset", 1, "of ph_reply[world_size][PH_REPLY_SLOTS]"),
        ("uint64_t", "workspace_offset", 1, "of ph_workspace[workspace_count], by key and batch"),
        ("uint64_t", "workspace_count", 1, "0: not measured for this GPU"),
        ("int64_t", "api_ns", 112, "host cost by enum ph_api"),
        ("ph_device", "devices", MAX_KINDS, "GPUs of the cluster: a kind for all hosts, or one for some of them"),
    ),
)

Control = Struct(
    "ph_control",
    (
        ("uint64_t", "head", 1, "records written by the rank; release"),
        ("uint64_t", "pad0", 7, "own cache line"),
        ("uint64_t", "tail", 1, "records taken by the simulator; release"),
        ("uint32_t", "tail_futex", 1, "bumped when the tail moves while the rank waits"),
        ("uint32_t", "producer_waiting", 1, ""),
        ("uint64_t", "pad1", 6, "own cache line"),
        ("int64_t", "clock", 1, "host clock, published with every record and now and then between"),
        ("int32_t", "pid", 1, ""),
        ("uint32_t", "waiting", 1, "threads blocked in a request"),
        ("int64_t", "floor", 1, "set by the simulator: the rank's host clock is at least this from now on"),
        ("uint32_t", "processes", 1, "processes that have had this place, and times that it was closed"),
        ("int32_t", "left", 1, "pid of one that has said that it ends"),
        ("uint32_t", "folded", 1, "1: no process, others stand for this rank"),
        (
            "uint32_t",
            "holding",
            1,
            "of those that wait, threads whose wait keeps Python's interpreter from the thread that moves the clock",
        ),
        ("int64_t", "host_memory", 1, "most bytes of the host's memory in pinned memory and large tensors"),
        ("int64_t", "host_pinned", 1, "pinned ones among them"),
        ("int64_t", "memory_peak", 1, "most bytes that the process took of any GPU"),
        (
            "int64_t",
            "memory",
            1,
            "bytes taken of the GPU of this place, contexts among them; for processes that are not ranks",
        ),
        ("int64_t", "drawn_mj", 1, "what this GPU drew up to its last POWER row"),
        ("int64_t", "drawn_mw", 1, "and lately; 0: no row yet"),
        (
            "int64_t",
            "data_cpu",
            1,
            "ns of the simulated host's CPU for a batch of data, of which the clock counts nothing more",
        ),
        ("int64_t", "data_counted", 1, "ns that the clock counts for it; -1: workers make it meanwhile"),
        (
            "int64_t",
            "data_apart",
            1,
            "ns of the clock from one batch to the next; 0: no batches, or their time is given",
        ),
        ("int64_t", "data_batch", 1, "ns of a batch, of one worker of the loader that decides; 0: no batches"),
        ("int64_t", "data_used", 1, "ns from one of its batches to the next, less the waits for it"),
        ("int64_t", "data_workers", 1, "its worker processes; 0: the script makes its batches"),
        ("int64_t", "data_starts", 1, "times that they were started"),
        ("int64_t", "cpu_uncounted", 1, "ns of this machine's CPU that no model has, for a ms of the clock"),
        ("uint64_t", "gpu_kind", 1, "of the host's GPUs, in devices"),
    ),
)

Reply = Struct(
    "ph_reply",
    (
        ("uint32_t", "futex", 1, "0 = pending, 1 = answered"),
        ("int32_t", "status", 1, "0 ok / ready, 1 not ready, <0 error"),
        ("int64_t", "time", 1, "virtual completion time; the host clock becomes max(clock, time)"),
        ("int64_t", "value", 1, ""),
        ("uint64_t", "length", 1, "bytes in data"),
        ("uint8_t", "data", REPLY_BYTES, ""),
    ),
)

# Device memory that cuDNN's plans of a convolution were seen to ask for.
Workspace = Struct(
    "ph_workspace",
    (
        ("uint64_t", "key", 1, "all that describes the convolution but the batch: wire/workspaces.py"),
        ("int64_t", "batch", 1, ""),
        ("int64_t", "usual", 1, "bytes of the plan that the heuristics put first, -1 if not measured"),
        (
            "int64_t",
            "largest",
            1,
            "of the plan that asks for most of those that cudnn.benchmark tries, -1 if not measured",
        ),
    ),
)

# A finished piece of simulated work, from the engine to the log writer. Ids are global here.
RowKind = Enum(
    "ph_row_kind",
    "PH_ROW_",
    (
        ("KERNEL", ""),
        ("MEMCPY", ""),
        ("MEMSET", ""),
        ("COLLECTIVE", "per rank"),
        ("SENDRECV", "per rank, a p2p group"),
        ("FLOW", "a class of equal flows of the network"),
        ("RECORD", "event record"),
        ("WAIT", "stream wait"),
        ("SYNC", "host waits"),
        ("OPERATOR", "host"),
        ("ANNOTATION", "host"),
        ("MEMORY", "framework's allocator"),
        ("COMMUNICATOR", ""),
        ("HOST_FUNC", ""),
        ("LINK", "what a link of the network carried over a stretch of time"),
        ("POWER", "what a GPU drew over a stretch of time: stream = its number in the rank, value = microjoules"),
    ),
)
Row = Struct(
    "ph_row",
    (
        ("uint8_t", "kind", 1, "enum ph_row_kind"),
        ("uint8_t", "sub", 1, "ph_copy, ph_coll, ph_mem or record kind of a sync"),
        ("uint8_t", "flags", 1, "PH_F_*"),
        ("uint8_t", "pad", 1, ""),
        ("int32_t", "rank", 1, ""),
        ("int32_t", "stream", 1, "stream id, or host thread index for host rows"),
        ("int32_t", "name", 1, "global name id or -1"),
        ("int32_t", "sig", 1, "global signature id or -1"),
        ("int32_t", "price", 1, "global price id (class, provenance, flops) or -1"),
        ("int32_t", "part", 1, "index of the kernel in its operator"),
        ("int32_t", "comm", 1, "global communicator or -1"),
        ("int64_t", "start", 1, ""),
        ("int64_t", "end", 1, ""),
        ("int64_t", "launch", 1, "host clock at the call or -1"),
        ("int64_t", "ready", 1, "collectives: when the transfer began"),
        ("int64_t", "id", 1, "unique in the rank"),
        ("int64_t", "link", 1, "id of the row that caused it, or -1"),
        ("int64_t", "seq", 1, "of a collective in its communicator, or -1"),
        ("int64_t", "bytes", 1, ""),
        ("int64_t", "value", 1, ""),
        ("int64_t", "value2", 1, ""),
        ("int32_t", "last_rank", 1, "whoever was waited for: the rank that came last, or -1"),
        ("int32_t", "pad1", 1, ""),
        ("int64_t", "last_id", 1, "and its row"),
    ),
)
# What a profiler in the rank gets of a launch that has ended.
Activity = Struct(
    "ph_activity",
    (
        ("uint8_t", "kind", 1, "enum ph_row_kind"),
        ("uint8_t", "sub", 1, "ph_copy, ph_coll"),
        ("uint8_t", "flags", 1, "PH_F_*"),
        ("uint8_t", "pad", 1, ""),
        ("uint32_t", "correlation", 1, "as CORRELATE said"),
        ("uint32_t", "stream", 1, ""),
        ("int32_t", "name", 1, "for PROFILE_NAME, or -1"),
        ("int64_t", "start", 1, ""),
        ("int64_t", "end", 1, ""),
        ("int64_t", "launch", 1, ""),
        ("int64_t", "bytes", 1, ""),
    ),
)
ENUMS = (Kind, Copy, Coll, Mem, Api, HostMode, Unsupported, ConvForm, ConvType, ConvLayout, SimState, RowKind)
Blob = Struct(
    "ph_blob",
    (
        ("uint8_t", "kind", 1, "PH_BLOB"),
        ("uint8_t", "flags", 1, ""),
        ("uint8_t", "slot", 1, "PH_NO_SLOT"),
        ("uint8_t", "thread", 1, ""),
        ("uint32_t", "used", 1, "bytes"),
        ("uint8_t", "data", BLOB_BYTES, ""),
    ),
)

RELAYED = relayed.structs(Header, Control)
STRUCTS = (Blob, Device, Header, Control, Reply, Workspace, Row, Activity, *RELAYED)


def dtype(struct: Struct) -> np.dtype[np.void]:
    """The NumPy dtype of `struct`, packed exactly as the C compiler lays it out."""
    return schema.dtype(struct, STRUCTS)


def opaque(structs: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """A view of `structs` whose elements have no fields: numpy copies those 10 times as fast."""
    return structs.view(np.dtype((np.void, structs.dtype.itemsize)))


def c_header() -> str:
    """The text of ``phantora_wire.h``."""
    lines = [f"#define {name} {value}" for name, value in CONSTANTS.items()]
    lines.append(f"#define PH_MAGIC 0x{MAGIC:x}ULL")
    lines.append(f"#define PH_GOLDEN 0x{GOLDEN:x}ULL")
    lines += [f"#define {name} {value}" for name, value in Flag.items()]
    for name, value in shared.NUMBERS.items():
        lines += [f"#ifndef PH_{name}", f"#define PH_{name} {value}", "#endif"]
    for enum in ENUMS:
        lines += ["", *enum.c()]
    lines.append(f"#define PH_COLL_NAMES {_c_list(name.lower() for name in Coll.names())}")
    lines.append(f"#define PH_NCCL_DTYPE_NAMES {_c_list(NCCL_DTYPE_NAMES)}")
    lines.append(f"#define PH_NCCL_DTYPE_BYTES {{{', '.join(map(str, NCCL_DTYPE_BYTES))}}}")
    lines += c_record()
    for struct in STRUCTS:
        lines += ["", *schema.c_struct(struct, dtype(struct).itemsize)]
    lines += relayed.c_lines(RELAYED)
    return "\n".join([*_PREFACE, f"#define PH_LAYOUT {zlib.crc32(chr(10).join(lines).encode())}U", *lines, ""])


def _c_list(texts: Iterable[str]) -> str:
    return "{" + ", ".join(f'"{text}"' for text in texts) + "}"


def checksum() -> int:
    """``PH_LAYOUT``: differs wherever two layouts do."""
    line = next(line for line in c_header().splitlines() if line.startswith("#define PH_LAYOUT "))
    return int(line.split()[2].rstrip("U"))


_PREFACE = (
    "// Generated from phantora/wire/layout.py and records.py; do not edit.",
    "#pragma once",
    "#include <stdint.h>",
    "#ifdef __cplusplus",
    "#define PH_STATIC_ASSERT static_assert",
    "#else",
    "#define PH_STATIC_ASSERT _Static_assert",
    "#endif",
)
