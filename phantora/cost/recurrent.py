"""Recurrent layers of cuDNN: LSTM, GRU and plain ones.

Each step of a layer is a product of its hidden state with the recurrent weights and an elementwise kernel, and
waits for the step before; layers and directions run side by side, each a step behind the layer below. What does not
depend on the step before, the products with a layer's input and the gradients of its weights, is done at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from phantora.cost import gemm
from phantora.cost.machine import Machine
from phantora.cost.tensors import item_bytes, tensor_at
from phantora.cost.types import OperatorSignature

GATES = {0: 1, 1: 1, 2: 4, 3: 3}  # by cudnnRNNMode_t: plain with ReLU or tanh, LSTM, GRU
STEP_KERNELS = 3  # of a step: the product, its memset, the elementwise kernel
# The products of steps against the analytic model's, from traces of LSTMs of width 512, 650 and 1024 on H100
# (benchmarks/device/models.py lstm): in 16 bits 0.9 to 1.9, in TF32 2.3 to 3.2, and twice that where rows are not
# aligned to 16 bytes.
STEP_PRODUCT, STEP_TF32, UNALIGNED = 1.2, 2.5, 2.1


@dataclass(frozen=True)
class Recurrent:
    """One call for all its layers. `steps` is the longest sequence, `batch` the mean number of sequences of a step."""

    backward: bool
    steps: int
    batch: int
    inputs: int
    hidden: int
    layers: int
    directions: int
    gates: int
    dtype: str

    def products(self) -> tuple[gemm.Product, list[gemm.Product]]:
        """The recurrent product of one step, and those that wait for no step, of all layers."""
        rows, wide, size = self.steps * self.batch, self.gates * self.hidden, item_bytes(self.dtype)
        dtype = "tfloat32" if self.dtype == "float32" else self.dtype

        def product(m: int, n: int, k: int) -> gemm.Product:
            return gemm.Product(m, n, k, 1, dtype, size, size)

        at_once = []
        for layer in range(self.layers):
            inputs = self.inputs if layer == 0 else self.hidden * self.directions
            for _ in range(self.directions):
                if self.backward:  # of the inputs, and of both weights
                    at_once.append(product(rows, inputs, wide))
                    at_once += [product(wide, width, rows) for width in (inputs, self.hidden)]
                else:
                    at_once.append(product(rows, wide, inputs))
        step = (self.batch, self.hidden, wide) if self.backward else (self.batch, wide, self.hidden)
        return product(*step), at_once


def from_signature(signature: OperatorSignature, name: str) -> Recurrent | None:
    """The recurrent layers that `_cudnn_rnn` or `_cudnn_rnn_backward` computes; None for anything else."""
    if name not in ("_cudnn_rnn", "_cudnn_rnn_backward"):
        return None
    args, backward = signature.args, name.endswith("backward")
    # From here on: cell, hidden, projected, layers, batch first, dropout, train, bidirectional, batch sizes.
    mode = 10 if backward else 6
    x = tensor_at(args, 0)
    if x is None or len(args) <= mode + 7 or not all(isinstance(args[i], int) for i in (mode, mode + 1, mode + 3)):
        return None
    sizes = args[mode + 8] if len(args) > mode + 8 else ()
    if len(x.shape) == 3:
        batch, steps = (x.shape[0], x.shape[1]) if args[mode + 4] else (x.shape[1], x.shape[0])
    elif len(x.shape) == 2 and isinstance(sizes, tuple) and sizes:  # packed sequences
        steps = len(sizes)
        batch = max(1, x.shape[0] // steps)
    else:
        return None
    directions = 2 if args[mode + 7] else 1
    gates = GATES.get(int(args[mode]), 1)
    return Recurrent(
        backward, steps, batch, x.shape[-1], int(args[mode + 1]), int(args[mode + 3]), directions, gates, x.dtype
    )


def recurrent_ns(machine: Machine, r: Recurrent) -> float:
    """Duration of all kernels of the call, ns."""
    step, at_once = r.products()
    moved = r.batch * r.hidden * (2.0 * r.gates + 3.0) * item_bytes(r.dtype)
    gap = machine.fit.library_gap_ns
    slower = STEP_TF32 if r.dtype == "float32" else STEP_PRODUCT
    slower *= UNALIGNED if r.hidden * item_bytes(r.dtype) % 16 else 1.0
    product = gemm.product_ns(machine, step) * slower
    waits = product + machine.memory_ns(moved) + machine.fit.floor_ns + STEP_KERNELS * gap
    rest = sum(gemm.product_ns(machine, p) + gap for p in at_once)
    return (r.steps + r.layers - 1) * waits + rest


def flops(r: Recurrent) -> float:
    """Of the products."""
    step, at_once = r.products()
    return step.flops * r.steps * r.layers * r.directions + sum(p.flops for p in at_once)
