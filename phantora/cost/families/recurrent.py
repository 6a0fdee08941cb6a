"""Recurrent layers of cuDNN: LSTM, GRU and plain ones.

Each step of a layer is a product of its hidden state with the recurrent weights and an elementwise kernel, and
waits for the step before; layers and directions run side by side, each a step behind the layer below, and get in each
other's way. What does not depend on the step before, the products with a layer's input and the gradients of its
weights, is done at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from phantora.cost.coordinates import Place
from phantora.cost.families import gemm
from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.machine import Machine
from phantora.cost.tensors import item_bytes, nbytes, tensor_at, tensors
from phantora.cost.types import OperatorSignature
from phantora.wire.shared import FUSED_WEIGHTS

NAMES = ("_cudnn_rnn", "_cudnn_rnn_backward")
ERROR = 0.50
GATES = {0: 1, 1: 1, 2: 4, 3: 3}  # by cudnnRNNMode_t: plain with ReLU or tanh, LSTM, GRU
# All ns below are fitted to 301 layers timed on H100 and H200 (validation/probes/recurrent.py), half of them within
# 6 %, nine tenths within 14 % forward and 18 % backward; float32 counts as TF32, torch's default.


@dataclass(frozen=True)
class Fused:
    """Layers whose weights one kernel keeps in registers; one layer and direction after the other. ns of a call, of a
    layer, of a byte of its weights, of a step, and more of a step at FUSED_WEIGHTS (by its share, to the fourth).
    """

    call: float
    layer: float
    byte: float
    step: float
    full: float


# By bytes of an element and direction.
FUSED = {
    (2, False): Fused(0.0, 8500.0, 0.14, 400.0, 450.0),
    (2, True): Fused(22000.0, 9000.0, 0.045, 600.0, 1000.0),
    (4, False): Fused(0.0, 8500.0, 0.14, 400.0, 1400.0),
    (4, True): Fused(22000.0, 9000.0, 0.045, 600.0, 1100.0),
}
FUSED_ROWS = 256  # from 256 sequences on, layers of four-byte elements take twice as long
KEPT_ROWS, KEPT_HIDDEN, KEPT_MULTIPLE = 128, 1024, 128  # torch lets cuDNN keep weights on chip (aten's cudnn/RNN.cpp)


@dataclass(frozen=True)
class Step:
    """A step of one layer: ns of its launches, of reading weights and of passing activations through memory (both
    relative to a stream's), and of arithmetic (per GFLOP)."""

    launches: float
    weights: float
    activations: float
    gflop: float


# By bytes of an element, whether rows are aligned to 16 bytes, and direction.
STEPS = {
    (2, True, False): Step(7650.0, 1.17, 1.45, 1530.0),
    (2, True, True): Step(9160.0, 1.68, 5.44, 1530.0),
    (2, False, False): Step(10250.0, 0.06, 1.55, 18700.0),
    (2, False, True): Step(12540.0, 4.02, 0.0, 40000.0),
    (4, True, False): Step(8370.0, 1.64, 5.34, 0.0),
    (4, True, True): Step(13920.0, 2.40, 5.48, 3710.0),
    (4, False, False): Step(9840.0, 3.59, 16.9, 0.0),
    (4, False, True): Step(14830.0, 4.79, 0.0, 72000.0),
}
KEPT = {False: Step(5370.0, 0.0, 0.0, 3960.0), True: Step(7250.0, 0.09, 0.0, 10300.0)}
NEXT_TO = 0.6  # of its time that a further layer or direction adds: their steps overlap in part


@dataclass(frozen=True, kw_only=True)
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
    packed: bool = False
    """Sequences of several lengths: cuDNN keeps no weights in registers then."""

    def products(self) -> tuple[gemm.Product, list[gemm.Product]]:
        """The recurrent product of one step, and those that wait for no step, of all layers."""
        rows, wide, size = self.steps * self.batch, self.gates * self.hidden, item_bytes(self.dtype)
        dtype = "tfloat32" if self.dtype == "float32" else self.dtype

        def product(m: int, n: int, k: int) -> gemm.Product:
            return gemm.Product(m, n, k, batch=1, dtype=dtype, in_bytes=size, out_bytes=size)

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
    if name not in NAMES:
        return None
    args, backward = signature.args, name.endswith("backward")
    # From here on: cell, hidden, projected, layers, batch first, dropout, train, bidirectional, batch sizes.
    mode = 10 if backward else 6
    x = tensor_at(args, 0)
    if x is None or len(args) <= mode + 7 or not all(isinstance(args[i], int) for i in (mode, mode + 1, mode + 3)):
        return None
    sizes = args[mode + 8] if len(args) > mode + 8 else ()
    packed = len(x.shape) == 2
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
        backward=backward,
        steps=steps,
        batch=batch,
        inputs=x.shape[-1],
        hidden=int(args[mode + 1]),
        layers=int(args[mode + 3]),
        directions=directions,
        gates=gates,
        dtype=x.dtype,
        packed=packed,
    )


def recurrent_ns(machine: Machine, r: Recurrent) -> float:
    """Duration of all kernels of the call, ns."""
    step, at_once = r.products()
    rest = sum(gemm.product_ns(machine, p) + machine.fit.library_gap_ns for p in at_once)
    size, sides = item_bytes(r.dtype), r.layers * r.directions
    weights = r.gates * r.hidden * r.hidden
    if weights <= FUSED_WEIGHTS and not r.packed:
        fused = FUSED[2 if size == 2 else 4, r.backward]
        each = fused.step + fused.full * (weights / FUSED_WEIGHTS) ** 4
        waves = 2 if size > 2 and r.batch >= FUSED_ROWS else 1
        layer = fused.layer + fused.byte * weights * size + r.steps * each
        return (fused.call + sides * layer * waves) / machine.clock_ratio + rest
    kept = size == 2 and sides == 1 and not r.packed and r.hidden <= KEPT_HIDDEN and r.batch <= KEPT_ROWS
    if kept and r.hidden % KEPT_MULTIPLE == 0 and r.inputs % KEPT_MULTIPLE == 0:
        costs = KEPT[r.backward]
    else:
        costs = STEPS[2 if size == 2 else 4, r.hidden * size % gemm.ALIGNED == 0, r.backward]
    activations = r.batch * r.hidden * (2 * r.gates + 3)
    each = costs.launches + step.flops / 1e9 * costs.gflop / machine.clock_ratio
    each += (costs.weights * weights + costs.activations * activations) * size / machine.stream_rate
    return r.steps * (1.0 + NEXT_TO * (sides - 1)) * each + rest


def flops(r: Recurrent) -> float:
    """Flops of the products."""
    step, at_once = r.products()
    return step.flops * r.steps * r.layers * r.directions + sum(p.flops for p in at_once)


def classify(name: str) -> str | None:
    """Class by name. Most of the time goes into products."""
    return "gemm" if name in NAMES else None


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """All layers; where the arguments are not as expected, the products that the library was called for."""
    layers = from_signature(signature, name)
    if layers is None:
        called = gemm.of_calls(machine, signature, name, kernels)
        return called or gemm.estimate(machine, signature, name, kernels)
    moved = float(sum(map(nbytes, tensors(signature.args))))
    return Estimate(recurrent_ns(machine, layers), moved, flops=flops(layers), error=ERROR)


def places(signature: OperatorSignature, name: str, compute: str, launches: int) -> tuple[Place, ...]:
    """None: layers are not read off others."""
    return ()


FAMILY = Family("recurrent", classify=classify, estimate=estimate, takes_libraries=True, places=places)
