"""Constants that the C sources and Python share. ``phantora_wire.h`` has them as ``PH_`` and their name."""

from __future__ import annotations

# How the operator tracer writes arguments (stub/tracer/signatures.cpp).
LONG_LIST = 64  # longer lists are summarised
LIST_HEAD = 8  # by their first elements, count and size
EXACT_SCALAR = 16  # halves of numbers up to this stand as they are

# Which values are true (docs/values.md). A build may set SMALL_ELEMENTS to another number (PHANTORA_DEFINES).
SMALL_ELEMENTS = 1024  # operators on tensors up to this size are computed
KNOWN_INTEGERS = 1 << 22  # elements of integers or booleans that are computed
OBJECT_BYTES = 1 << 26  # of one-dimensional uint8, in which pickled objects travel; of int8 and uint8 in a collective
# What is known of memory beyond the rule for small tensors.
KNOWN = 1  # its bytes are true, however many they are
UNKNOWN = 2  # some follow from unknown values (a choice among unknown numbers)
HOLDS = 4  # its elements count as true, though nobody wrote them all
EQUALS = 16  # unknown numbers were compared with numbers that they equal in a real run: all are true, counted too
COMPARES = 32  # the same of an order: all are true, but as a mask it is unknown
FRESH = 8  # of a large tensor that nobody wrote yet: a write by index makes it known

USE_LEAST = 1 << 16  # bytes of a block from which on its use is recorded
KEPT_LEAST = 1 << 20  # bytes of a block in a container, and of growth in an iteration
KEPT = "kept by "  # how the use of a block begins that a container of the script keeps; then its line and name
CHECKPOINTS = "checkpoints"  # use of what torch.utils.checkpoint keeps to compute a part of the model again
GRADIENTS = "gradients"  # where memory runs out: use of the gradients of parameters
# Uses of tensors where memory runs out: no tensor has gradients; some have, of models in evaluation.
NO_GRADIENTS, EVALUATED = "activations without gradients", "activations of an evaluation"
EXPECTED = "expected "  # where memory runs out: bytes of gradients and state that optimizers are still to make
OWN_GRAPHS = "activations of passes without a backward"  # where memory runs out: a container keeps their outputs
GRAPH = " with its graph"  # how it ends, if what is kept has a graph, which keeps activations

# NVIDIA's.
SHARED_RESERVED = 1024  # bytes of shared memory that the system takes of each block
FUSED_WEIGHTS = 1 << 16  # of a recurrent layer: so few stay in registers, and cuDNN's kernel goes through all steps
# Write-back of L2 lines, by 119 operators on an H100 (validation/probes/dirty_lines.py).
L2_REACH = 1.35  # sizes of L2 that must miss until no line written before is left there
L2_MOST_WRITTEN = 0.42  # largest share of L2 that is written and not yet in memory

NUMBERS: dict[str, int | float] = {
    name: value for name, value in globals().items() if name.isupper() and type(value) in (int, float)
}
