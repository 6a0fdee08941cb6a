"""Matrix products: output tiles in waves over the SMs.

A product is cut into tiles; one tile occupies one SM and takes ``ceil(k / 64)`` steps, and as many
tiles as there are SMs run at once. The last wave may be nearly empty, which is most of the difference
between one shape and the next. The library's heuristic is taken to find the best of its tiles.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import lru_cache
from math import ceil, gcd
from typing import Any

from phantora.cost import coordinates, float8
from phantora.cost.coordinates import Place
from phantora.cost.families.elementwise import passes_memory
from phantora.cost.family import Estimate, Family, Kernels
from phantora.cost.kernels import covered_ns
from phantora.cost.machine import Machine, format_of
from phantora.cost.tensors import item_bytes, tensor_at, tensors
from phantora.cost.types import OperatorSignature, TensorSpec

NAMES = frozenset(
    (
        "mm",
        "addmm",
        "addmm_",
        "bmm",
        "baddbmm",
        "baddbmm_",
        "addbmm",
        "linear",
        "mkldnn_linear",
        "matmul",
        "_scaled_mm",
        "_scaled_mm_v2",
        "_grouped_mm",
        "_scaled_grouped_mm",
        "_scaled_grouped_mm_v2",
        "addmv",
        "addmv_",
        "mv",
        "dot",
        "vdot",
        "addr",
        "outer",
        "ger",
        "_int_mm",
        "_addmm_activation",
        "_weight_int8pack_mm",
        "_weight_int4pack_mm",
        "einsum",
        "inner",
        "tensordot",
        "chain_matmul",
        "multi_dot",
    )
)
COUNTED = ("mm", "addmm", "bmm", "baddbmm", "_scaled_mm")
"""Operators whose flops are counted from their arguments, as torch does, whatever the library was called for."""
PLAIN = frozenset(("mm", "addmm", "bmm", "baddbmm", "linear", "_scaled_mm", "_grouped_mm"))
"""Operators whose arguments describe the whole product."""
PUBLISHED = PLAIN | {"_scaled_mm_v2", "_scaled_grouped_mm", "_scaled_grouped_mm_v2", "matmul", "_int_mm"}
"""Operators that published products price, where a GPU has them."""

STEP_BYTES = 128  # of the inner dimension that one step of the main loop consumes: 64 bf16
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
BIAS_SPLITS = (*SPLITS, 32)
WHOLE_SPLITS = (*BIAS_SPLITS, 48, 64, 96, 128)
"""Splits for float32 and complex numbers. With few columns cuBLAS cuts the inner dimension into a part for each SM, but
into at most 33 if the same kernel adds a bias."""
COMPLEX_WORK = 4  # products of reals in a product of complex numbers
ALIGNED = 16  # bytes that rows of operands must be multiples of for Hopper's kernels
UNALIGNED_SHARE = {8: 0.5, 4: 0.5, 2: 0.2}
"""Speed of the older kernels that serve other rows, as a share of the usual, by the bytes that rows are multiples of.
Products of 30,522 x 16,384 x 1,024 in bfloat16 take 3.8 to 4.0 ms on an H100, 1.9 with aligned rows
(validation/workloads/models.py bert); one of 50,257 x 16,384 x 768 takes 13.2 ms on an H200, with 50,304 instead
1.7."""
INT8_SHARE, INT8_STORED, INT8_STEP_NS = 0.665, 14.0, 600.0
"""On Hopper, where cuBLAS runs kernels of Ampere's (cutlass_80_tensorop_i16832gemm), which do not cut the inner
dimension: the share of the usual speed (the 24 products of llm_int8 in validation/workloads/programs/quantized.py reach
762 TOP/s on an H100), the bytes that an SM stores in a ns, and the least ns of a step (11 products of
validation/probes/program_operators.py on an H200)."""

OUTER_TILE, OUTER_CYCLES, OUTER_START_NS = 32, (0.42, 0.40), 900.0
"""Outer products (k = 1): kernels for unaligned rows of Ampere's and Turing's, which store element by element. Padded
rows and columns, SM cycles of an element of 16 and of more bits, and the start. Fitted to 93 products of the H200's
table, 11 % off on average; the 19 of the H100's are 8 % off."""

HOPPER = 9
GROUPED_TILE, GROUPED_SHARE, GROUPED_TILE_NS, GROUPED_START_NS = (256, 128), (0.85, 0.65), 3000.0, 7000.0
"""CUTLASS' kernels of `_grouped_mm` and, for 8 bits, `_scaled_grouped_mm`, in clusters of two tiles of 128 rows: the
share of the peak of arithmetic for 16 and for 8 bits, the end of a tile, and the start of a call, which a first kernel
prepares. Fitted to four fifths of the products of validation/probes/grouped_products.py above 150 us; the others are
9 % off in the median in 16 bits (7 % where the sizes of groups are known), 8 % in 8 bits."""
GROUP_ROWS = 128  # of a tile of groups

# Tile shape and speed of its main loop relative to 256x128: small tiles load more per product.
# Fitted to cuBLAS kernels (names give their tiles) in traces on H200.
_SMALL = ((128, 128, 0.95), (128, 64, 0.67), (64, 128, 0.67), (64, 64, 0.45), (64, 32, 0.28), (32, 64, 0.28))
_LARGE = ((256, 128, 1.0), (128, 256, 1.0))
_SQUARE = ((192, 192, 0.995),)
_OBLONG = (
    (320, 128, 0.99),
    (256, 160, 0.99),
    (224, 128, 0.98),
    (192, 128, 0.97),
    (176, 128, 0.965),
    (160, 128, 0.96),
    (144, 128, 0.955),
    (256, 96, 0.95),
    (112, 128, 0.92),
    (128, 96, 0.88),
)
_HOPPER = (*_SQUARE, *_OBLONG, *((n, m, ease) for m, n, ease in _OBLONG))
"""Tiles of nvjet, from the names of its kernels in the tables. With a fifth of H100's table hidden, products in
bfloat16 are 2.4 % off in the median and 9 % in the 90th percentile; with 192x192 and 320x128 alone 2.8 and 12 %."""


@dataclass(frozen=True)
class Product:
    """`batch` products of m x k by k x n. `dtype` is what the multipliers see."""

    m: int
    n: int
    k: int
    _: KW_ONLY
    batch: int = 1
    dtype: str = "bfloat16"
    in_bytes: float = 2
    out_bytes: int = 2
    alignment: int = ALIGNED
    """Bytes, at most 16, of which rows of operands and result begin at multiples."""
    sms: int = 0
    """SMs that the library may use; 0: all."""
    bias: bool = False
    """The call adds a vector to the rows."""
    shared_by: int = 0
    """Elements along k that share a scale of one byte; 0: no such scales."""
    cut: str = ""
    """Extent that groups of different sizes cut, of which `m` or `k` is the mean: ``m``, ``k``, or none."""

    @property
    def flops(self) -> float:
        """Floating-point operations: two for each multiplication."""
        return 2.0 * self.batch * self.m * self.n * self.k

    @property
    def moved(self) -> float:
        """Bytes when each operand moves once."""
        inputs = (self.m * self.k + self.k * self.n) * (self.in_bytes + (1 / self.shared_by if self.shared_by else 0))
        return float(self.batch * (inputs + self.m * self.n * self.out_bytes))


def product_ns(machine: Machine, p: Product) -> float:
    """Duration in ns."""
    return plan(machine, p)[0]


_TILE = re.compile(r"_(?:tilesize)?(\d{2,3})x(\d{2,3})(?:x\d+)?_")


def tiles_of(kernel: str, p: Product) -> int:
    """Tiles into which the library's `kernel` cuts `p`, read off its name; 0 if that does not say."""
    found = _TILE.search(kernel)
    return ceil(p.m / int(found[1])) * ceil(p.n / int(found[2])) * p.batch if found else 0


@lru_cache(maxsize=65536)
def plan(machine: Machine, p: Product) -> tuple[float, int]:
    """Duration in ns, and the number of tiles of the fastest way."""
    gpu, fit = machine.gpu, machine.fit
    if min(p.m, p.n, p.k, p.batch) <= 0:
        return fit.floor_ns, 1
    memory = machine.memory_ns(p.moved) - fit.floor_ns
    if p.cut and gpu.compute_capability[0] == HOPPER:
        return _grouped_plan(machine, p)
    if min(p.m, p.n) == 1:  # a vector: the library's kernels for these stream and pad no tile
        return fit.gemm_prologue_ns + memory, 1
    if p.k == 1:
        stored = p.batch * ceil(p.m / OUTER_TILE) * ceil(p.n / OUTER_TILE) * OUTER_TILE**2
        work = machine.cycles_ns(stored * OUTER_CYCLES[p.out_bytes > 2])
        return fit.gemm_prologue_ns + OUTER_START_NS + max(work, memory), ceil(stored / OUTER_TILE**2)
    speed = machine.peak(p.dtype) * fit.gemm_peak / gpu.sms
    store = gpu.hbm_bandwidth / 1e9 * fit.gemm_store / gpu.sms
    depth = max(1, int(STEP_BYTES / p.in_bytes))
    steps = ceil(p.k / depth)
    sms = min(p.sms or gpu.sms, gpu.sms)
    hopper = gpu.compute_capability >= (9, 0)
    if hopper and p.alignment < ALIGNED and p.dtype in ("bfloat16", "float16", "tfloat32"):
        speed, hopper = speed * UNALIGNED_SHARE.get(p.alignment, 1.0), False
    least = 0.0
    splits: tuple[int, ...] = SPLITS
    if format_of(p.dtype) == "float32":
        splits = BIAS_SPLITS if p.bias else WHOLE_SPLITS
    if p.dtype.startswith("complex"):
        speed /= COMPLEX_WORK
    if hopper and p.dtype == "int8":
        speed, store, least, hopper, splits = speed * INT8_SHARE, INT8_STORED, INT8_STEP_NS, False, (1,)
    tiles = _LARGE + _SMALL + (_HOPPER if hopper else ())
    best = (float("inf"), 0)
    for tm, tn, ease in tiles:
        step = max(least, 2.0 * tm * tn * depth / (speed * ease))
        end = tm * tn * p.out_bytes / store
        count = ceil(p.m / tm) * ceil(p.n / tn) * p.batch
        for split in splits:
            if split > 1 and count > sms:
                break
            waves = ceil(count * split / sms)
            ns = waves * (ceil(steps / split) * step + end)
            if split > 1:  # partial sums in float32, added up by a second kernel
                partial = p.batch * p.m * p.n * (4 * split + p.out_bytes)
                ns += fit.kernel_gap_ns + fit.floor_ns + partial / machine.cache_rate
            best = min(best, (ns, count * split))
    return fit.gemm_prologue_ns + max(best[0], memory), best[1]


def any_groups(machine: Machine, p: Product) -> float:
    """Time of groups of any sizes, whose last tiles are half empty on average, over that of equal groups, which tables
    have. 16 groups of 8,192 rows on an H200 take 1.13 and 1.07 times as long (8,192 x 5,120 and 5,120 x 8,192)."""
    if p.cut != "m" or machine.memory_ns(p.moved) > p.flops / machine.peak(p.dtype):
        return 1.0
    return max(1.0, (p.m / GROUP_ROWS + 0.5) / max(1, ceil(p.m / GROUP_ROWS)))


def _grouped_plan(machine: Machine, p: Product) -> tuple[float, int]:
    """`plan` for groups: the last tile of each is half empty on average, one that sums over few rows takes a half step
    more."""
    tm, tn = GROUPED_TILE
    depth = int(STEP_BYTES / p.in_bytes)
    share = GROUPED_SHARE[p.in_bytes < 2]
    step = 2.0 * tm * tn * depth * machine.gpu.sms / (machine.peak(p.dtype) * share)
    if p.cut == "m":
        rows, steps = max(p.batch, ceil(p.batch * (p.m / tm + 0.5))), float(ceil(p.k / depth))
    else:
        rows, steps = p.batch * ceil(p.m / tm), ceil(p.k / depth) + 0.5
    tiles = rows * ceil(p.n / tn)
    ns = ceil(tiles / machine.gpu.sms) * (steps * step + GROUPED_TILE_NS)
    return GROUPED_START_NS + max(ns, machine.memory_ns(p.moved)), tiles


_LIBRARY_DTYPES = {
    "bf16": "bfloat16",
    "f16": "float16",
    "fp16": "float16",
    "half": "float16",
    "f32": "float32",
    "fp32": "float32",
    "f64": "float64",
    "fp64": "float64",
    "c32": "complex32",
    "c64": "complex64",
    "c128": "complex128",
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "f8": "float8_e4m3fn",
    "i8": "int8",
    "s8": "int8",
    "u8": "uint8",
    "tf32": "tfloat32",
    "e2m1": "float4_e2m1fn_x2",
}


def element_bytes(dtype: str) -> float:
    """Bytes of one element that is multiplied: torch counts two of FP4 as one."""
    return item_bytes(dtype) / float8.elements(dtype)


def library_dtype(name: str) -> str:
    """torch's name of a dtype as the stubs write it."""
    return _LIBRARY_DTYPES.get(name, name)


def from_library(call: Mapping[str, Any]) -> Product | None:
    """The product that a cuBLAS call describes, or None if `call` is none."""
    try:
        m, n, k = int(call["m"]), int(call["n"]), int(call["k"])
    except (KeyError, TypeError, ValueError):
        return None
    a = library_dtype(str(call.get("a", "bf16")))
    c = library_dtype(str(call.get("c", call.get("d", a))))
    compute = str(call.get("compute", ""))
    trans = str(call.get("trans", "")).ljust(2, "n")
    multiplier = a
    if a == "float32" and "tf32" in compute:
        multiplier = "tfloat32"
    elif a == "float32" and "16" in compute:
        multiplier = "bfloat16"
    rows = (m if trans[0] == "n" else k, k if trans[1] == "n" else n)  # what lies together, in columns
    alignment = gcd(ALIGNED, m * item_bytes(c), *(int(row * element_bytes(a)) for row in rows))
    batch = int(call.get("batch", 1) or 1)
    sms = int(call.get("sms", 0) or 0)
    shared = float8.SHARED_BY.get({"vec32": "mx", "vec16": "nv"}.get(str(call.get("scale_a")), ""), 0)
    bias = "bias" in str(call.get("epilogue", "")).lower()
    return Product(
        m,
        n,
        k,
        batch=batch,
        dtype=multiplier,
        in_bytes=element_bytes(a),
        out_bytes=item_bytes(c),
        alignment=alignment,
        sms=sms,
        bias=bias,
        shared_by=shared,
    )


def on_fewer_sms(machine: Machine, library: Mapping[str, Any]) -> float:
    """Time of a library call on the SMs that it may use, relative to all SMs."""
    product = from_library(library)
    if product is None or not 0 < product.sms < machine.gpu.sms:
        return 1.0
    return product_ns(machine, product) / product_ns(machine, replace(product, sms=0))


def from_signature(signature: OperatorSignature, name: str) -> list[Product]:
    """The products of an ATen operator, from the shapes of its arguments."""
    args = signature.args
    shift = {
        "addmm": 1,
        "addmm_": 1,
        "_addmm_activation": 1,
        "baddbmm": 1,
        "baddbmm_": 1,
        "addbmm": 1,
        "addmv": 1,
        "addmv_": 1,
        "addr": 1,
    }.get(name, 0)
    a, b = tensor_at(args, shift), tensor_at(args, shift + 1)
    if a is None or b is None:
        return []
    if "grouped_mm" in name and len(a.shape) > 1 and len(b.shape) > 1:
        return [_grouped(signature, a, b)]
    transposed = name in ("linear", "mkldnn_linear")
    if name in ("addr", "outer", "ger"):
        return [_product(a, a.shape[-1] if a.shape else 1, b.shape[-1] if b.shape else 1, 1, 1)]
    if not a.shape or not b.shape:
        return [_product(a, 1, 1, 1, 1)]
    k = a.shape[-1]
    if len(b.shape) == 1:  # dot, mv
        return [_product(a, _size(a.shape[:-1]), 1, k, 1)]
    n = b.shape[-2] if transposed else b.shape[-1]
    if (way := float8.way_of(signature)) is not None:
        shared = float8.SHARED_BY.get(way.scales, 0)
        return [replace(_product(a, a.shape[0], n, k, 1), out_bytes=item_bytes(way.out), shared_by=shared)]
    if name == "_int_mm":
        return [replace(_product(a, a.shape[0], n, k, 1), out_bytes=4)]
    if len(a.shape) <= 2 or transposed or len(b.shape) == 2:
        added = tensor_at(args, 0) if shift else tensor_at(args, 2) if transposed else None
        bias = added is not None and len(added.shape) == 1
        return [replace(_aligned(_product(a, _size(a.shape[:-1]), n, k, 1), a, b), bias=bias)]
    return [_aligned(_product(a, a.shape[-2], n, k, _size(a.shape[:-2])), a, b)]


def _size(shape: tuple[int, ...]) -> int:
    result = 1
    for extent in shape:
        result *= extent
    return result


def _product(a: TensorSpec, m: int, n: int, k: int, batch: int) -> Product:
    width = item_bytes(a.dtype)
    k *= float8.elements(a.dtype)
    return Product(
        m, n, k, batch=batch, dtype=a.dtype, in_bytes=element_bytes(a.dtype), out_bytes=2 if width == 1 else width
    )


def _aligned(p: Product, a: TensorSpec, b: TensorSpec) -> Product:
    """`p` of two tensors whose rows lie as their strides say; the result's are dense."""
    steps = [s * item_bytes(t.dtype) for t in (a, b) for s in t.stride[-2:] if s > 1]
    return replace(p, alignment=gcd(ALIGNED, p.n * p.out_bytes, *steps))


def _grouped(signature: OperatorSignature, a: TensorSpec, b: TensorSpec) -> Product:
    """Groups of a mixture of experts: offsets are data, so rows are taken as spread evenly."""
    offsets = next(
        (t for t in signature.args[2:] if isinstance(t, TensorSpec) and len(t.shape) == 1 and t.dtype == "int32"), None
    )
    groups = max(1, offsets.shape[0] if offsets else (b.shape[0] if len(b.shape) == 3 else 1))
    if len(a.shape) == 2 and len(b.shape) == 3:
        return replace(_product(a, ceil(a.shape[0] / groups), b.shape[-1], a.shape[1], groups), cut="m")
    if len(a.shape) == 3 and len(b.shape) == 2:
        return _product(a, a.shape[1], ceil(b.shape[1] / groups), a.shape[2], groups)
    if len(a.shape) == 2 and len(b.shape) == 2:  # the weight's gradient: k is cut into groups
        return replace(_product(a, a.shape[0], b.shape[1], ceil(a.shape[1] / groups), groups), cut="k")
    return _product(a, a.shape[-2], b.shape[-1], a.shape[-1], a.shape[0] if len(a.shape) == 3 else 1)


def classify(name: str) -> str | None:
    """Class by name."""
    return "gemm" if name in NAMES else None


def estimate(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate:
    """Estimate from the arguments; a pass over memory if these are not as expected."""
    return _of(machine, from_signature(signature, name)) or passes_memory(machine, signature, name, kernels)


def of_calls(machine: Machine, signature: OperatorSignature, name: str, kernels: Kernels) -> Estimate | None:
    """Estimate from the products of library calls, one by one, and kernels next to them (a bias) by their grids; None
    without any."""
    called = [from_library(kernel.library) for kernel in kernels]
    products = [p for p in called if p is not None]
    if not products:
        return None
    parts = tuple(
        product_ns(machine, p) if p is not None else covered_ns(machine, kernel)
        for p, kernel in zip(called, kernels, strict=True)
    )
    expected = from_signature(signature, name) if name in COUNTED else []
    flops, moved = sum(p.flops for p in (expected or products)), sum(p.moved for p in products)
    return _tiled(machine, products, Estimate(sum(parts), moved, flops=flops, parts=parts, cls="gemm"))


def of_call(machine: Machine, library: Mapping[str, Any]) -> Estimate | None:
    """Estimate of a bare library call; None if it is no product."""
    product = from_library(library)
    return None if product is None else replace(_of(machine, [product]) or Estimate(0.0, 0.0), cls="gemm")


def _of(machine: Machine, products: list[Product]) -> Estimate | None:
    if not products:
        return None
    ns = sum(product_ns(machine, p) for p in products)
    return _tiled(machine, products, Estimate(ns, sum(p.moved for p in products), flops=sum(p.flops for p in products)))


def _tiled(machine: Machine, products: list[Product], found: Estimate) -> Estimate:
    largest = max(products, key=lambda p: p.flops)
    return replace(found, format=largest.dtype, tiles=plan(machine, largest)[1], sms=largest.sms)


def ns_of_arguments(machine: Machine, signature: OperatorSignature, name: str, compute: str) -> float | None:
    """ns from the arguments alone, in TF32 if `compute` is TF32; None where they do not suffice."""
    products = from_signature(signature, name) if name in PLAIN else []
    if compute == "tf32":
        products = [replace(p, dtype="tfloat32") for p in products]
    return sum(product_ns(machine, p) for p in products) if products else None


def places(signature: OperatorSignature, name: str, compute: str, launches: int) -> tuple[Place, ...]:
    """Rows, columns, what is summed over, and how many products; by how operands lie in memory."""
    products = from_signature(signature, name)
    operands = [t for t in tensors(signature.args) if len(t.shape) >= 2]
    if len(products) != 1 or len(operands) < 2:
        return ()
    p, log = products[0], coordinates.log
    if p.cut:  # the tables have groups of one size
        return ()
    a, b = operands[-2:] if name.startswith(("addmm", "baddbmm")) else operands[:2]
    form = f"{_transposed(a)}{_transposed(b)}"
    kind = "grouped" if "grouped" in name else "batched" if p.batch > 1 or len(a.shape) > 2 else "plain"
    at = (log(p.m), log(p.n), log(p.k), *((log(p.batch),) if kind != "plain" else ()))
    if (way := float8.way_of(signature)) is not None:
        return Place(way.narrow, at), Place(way.wide, at)
    with_bias = p.bias and p.dtype == "float32" and not compute  # other kernels: see BIAS_SPLITS
    dtypes = f"{p.dtype} {compute} {kind}{' with bias' * with_bias}"
    rows = f"{dtypes} {p.alignment}"
    return Place(f"{rows} {form}", at), Place(rows, at), Place(dtypes, at)


def _transposed(t: TensorSpec) -> str:
    """Direction in which a product reads an operand: along its rows or its columns."""
    return "t" if len(t.stride) >= 2 and t.stride[-1] != 1 and t.stride[-2] == 1 else "n"


FAMILY = Family(
    "products",
    classify=classify,
    estimate=estimate,
    places=places,
    depends_on_kernels=False,
    together=("mm", "addmm"),
    ns_of_arguments=ns_of_arguments,
)
