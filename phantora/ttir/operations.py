"""Operations of Triton's IR, by how a walk counts them. Names are those of MLIR dialects (``tt.``, ``arith.``)."""

from __future__ import annotations

MUFU = {"exp": 1.0, "exp2": 1.0, "rsqrt": 1.0, "sqrt": 2.0, "sin": 3.0, "cos": 3.0}
"""Instructions of the special function units, per element."""
ALU_OF = {"sin": 20.0, "cos": 20.0, "exp": 1.0, "sqrt": 4.0}
"""Arithmetic instructions next to those of :data:`MUFU`, per element."""
OF_LIBRARY = ("log", "log2", "erf", "tanh")
"""Operations of the dialect `math` that LLVM takes from libdevice."""
ROUNDED = ("divf", "precise_divf", "precise_sqrt", "remf")
"""A first estimate, then corrections."""
CONVERT = ("extf", "truncf", "sitofp", "uitofp", "fptosi", "fptoui", "fp_to_fp", "bitcast")
EXCHANGED = {"gather": 4.0, "histogram": 8.0}
"""Instructions per element where lanes exchange elements through shared memory: a store and a load, an atomic addition.
An assumption."""
FREE = (
    "tt.splat",
    "tt.broadcast",
    "tt.expand_dims",
    "tt.reshape",
    "tt.trans",
    "tt.get_program_id",
    "tt.get_num_programs",
    "arith.constant",
    "tt.make_range",
    "tt.return",
    "tt.assert",
    "tt.print",
    "gpu.barrier",
    "tt.unsplat",
    "tt.join",
    "ub.poison",
    "tt.call",
    "tt.make_tensor_ptr",
    "tt.make_tensor_descriptor",
    "tt.advance",
    "tt.split",
    "llvm.intr.assume",
    "tt.cat",
    "tt.int_to_ptr",
    "tt.ptr_to_int",
)
SHAPES = frozenset((*FREE, "tt.addptr"))
CONSTANTS = ("arith.constant", "tt.make_range")
"""Operations with one value at all visits."""
ACCESSES = ("tt.load", "tt.store", "tt.atomic_rmw", "tt.atomic_cas")
DOTS = ("tt.dot", "tt.dot_scaled")
REDUCTIONS = ("tt.reduce", "tt.scan")
DESCRIPTORS = ("tt.descriptor_", "tt.experimental_descriptor")
"""Beginnings of names."""
DTYPES = {
    "bf16": "bfloat16",
    "f16": "float16",
    "f32": "tfloat32",
    "f64": "float64",
    "i8": "int8",
    "f8E4M3FN": "float8_e4m3fn",
    "f8E5M2": "float8_e5m2",
    "f8E4M3": "float8_e4m3fn",
}
"""Torch's names of the element types of products."""
_COUNTED = frozenset(
    (
        *SHAPES,
        *ACCESSES,
        *DOTS,
        *REDUCTIONS,
        "tt.bitcast",
        "tt.clampf",
        "tt.elementwise_inline_asm",
        "tt.extern_elementwise",
        "tt.fp_to_fp",
        "tt.map_elementwise",
        "tt.mulhiui",
        "tt.precise_divf",
        "tt.precise_sqrt",
        *(f"tt.{name}" for name in EXCHANGED),
    )
)


def priced(operation: str) -> bool:
    """True if an operation of Triton's dialect (``tt.``) has a price. The kernel's note names the others."""
    return operation in _COUNTED or operation.startswith(DESCRIPTORS)
