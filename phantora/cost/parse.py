"""Operator signatures and library calls: from the tracer's JSON to data classes.

A tensor is ``{"t": dtype, "s": shape, "st": strides}`` (``"d": "cpu"`` when it is not on the GPU; a sparse one has
``"layout"``, no strides, and ``"nnz"`` where it is known), a tensor list ``{"l": [...]}``. A list longer than 64
carries its first elements and ``n``, and if they are tensors ``numel`` and ``bytes`` of all: the rest is rebuilt as
equal tensors of the same total. Of long lists of numbers the rest is taken as equal to the last one given. What an
operator returned is in ``"out"``, a list like ``"args"``; it may be missing. ``"square"`` is true for ``x * x``.
"""

from __future__ import annotations

from functools import lru_cache
from math import copysign, floor, isfinite, log10, prod
from typing import Any

import orjson

from phantora.cost.tensors import contiguous_strides, item_bytes, numel, tensors
from phantora.cost.types import KernelLaunch, OperatorSignature, TensorSpec
from phantora.errors import PhantoraError
from phantora.ttir.work import Work
from phantora.wire.shared import EXACT_SCALAR, LIST_HEAD, LONG_LIST

LARGEST, LONGEST = 1 << 50, 1 << 22  # elements of a tensor, and of a list
EVEN = 16  # elements: sizes of rebuilt tensors are multiples, or kernels could not vectorise

UNREADABLE = "phantora::unreadable"
"""The name of an operator without a signature."""


def parse_signature(text: str | bytes) -> OperatorSignature:
    """The signature in `text`. Raises PhantoraError if it is none."""
    try:
        table = orjson.loads(text)
        if not isinstance(table["op"], str):
            raise ValueError("its name is no text")
        return OperatorSignature(
            name=table["op"],
            args=tuple(_argument(a) for a in table.get("args", ())),
            outputs=tuple(tensors(_argument(a) for a in table.get("out", ()))),
            backward=bool(table.get("bwd", False)),
            work=Work.of(table["work"]) if "work" in table else None,
            tuning=bool(table.get("tuning", False)),
            ir=str(table.get("ir", "")),
            grid=tuple(int(n) for n in table.get("grid", ())),
            square=bool(table.get("square", False)),
            products=table.get("products"),
        )
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        shown = text if isinstance(text, str) else text.decode(errors="replace")
        raise PhantoraError(
            f"cannot read the operator signature {shown[:200]!r} ({error}); "
            "the operator tracer and the simulator come from different versions: rebuild the stubs"
        ) from error


@lru_cache(maxsize=4096)  # replays read those of the run again
def read_signature(text: str | bytes) -> OperatorSignature:
    """Reads a signature without an error: of a text that is no signature at most the name is kept. Such an operator is
    priced by its kernels."""
    try:
        return parse_signature(text)
    except PhantoraError:
        try:
            name = orjson.loads(text)["op"]
        except (LookupError, TypeError, ValueError, RecursionError):
            name = None
        return OperatorSignature(name if isinstance(name, str) and name else UNREADABLE, ())


def write_signature(signature: OperatorSignature) -> str:
    """`signature` as the tracer writes it."""
    args = [_written(value) for value in signature.args]
    table: dict[str, Any] = {"op": signature.name, "args": args, "bwd": signature.backward}
    if signature.outputs:
        table["out"] = [_written(value) for value in signature.outputs]
    if signature.square:
        table["square"] = True
    if signature.work is not None:
        table["work"] = signature.work.text()
    if signature.tuning:
        table["tuning"] = True
    if signature.ir:
        table |= {"ir": signature.ir, "grid": list(signature.grid)}
    if signature.products is not None:
        table["products"] = signature.products
    return orjson.dumps(table).decode()


def parse_library(text: str | bytes) -> dict[str, Any]:
    """The description of a library call; empty when `text` is a plain kernel name."""
    data = text.encode() if isinstance(text, str) else text
    if not data.startswith(b"{"):
        return {}
    try:
        table = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {}
    return table if isinstance(table, dict) else {}


def compute_of(kernels: tuple[KernelLaunch, ...]) -> str:
    """``tf32`` if a library call among `kernels` multiplies float32 so, else empty.

    What the operands' dtypes do not say: the same operator is another kernel in TF32.
    """
    return "tf32" if any("tf32" in str(k.library.get("compute", "")) for k in kernels) else ""


def kernel_launch(
    text: str, grid: tuple[int, int, int] = (1, 1, 1), block: tuple[int, int, int] = (1, 1, 1), shared_bytes: int = 0
) -> KernelLaunch:
    """A launch from the text of its name record: a kernel name or a library call in JSON."""
    library = parse_library(text)
    name = str(library.get("name") or library.get("call") or "library") if library else text
    return KernelLaunch(name=name, grid=grid, block=block, shared_bytes=shared_bytes, library=library)


def _rounded(value: float) -> float:
    """Halves up to `EXACT_SCALAR` as they are, other numbers by their first digit, as the tracer writes them."""
    if abs(value) <= EXACT_SCALAR and (2 * value).is_integer():
        return value
    exponent = floor(log10(abs(value)) + 1e-12)
    digit = min(9, max(1, int(abs(value) / 10.0**exponent + 1e-9)))
    return copysign(float(f"{digit}e{exponent}"), value)


def _written(value: Any) -> Any:
    if isinstance(value, TensorSpec):
        table: dict[str, Any] = {"t": value.dtype, "s": value.shape, "st": value.stride}
        if value.layout:
            table |= {"st": (), "layout": value.layout} | ({"nnz": value.stored} if value.stored >= 0 else {})
        return table if value.device == "cuda" else {**table, "d": value.device}
    if isinstance(value, float):
        return _rounded(value) if isfinite(value) else str(value)
    if isinstance(value, (tuple, list)):
        if not any(isinstance(item, TensorSpec) for item in value):
            return [_written(item) for item in value]
        if len(value) <= LONG_LIST:
            return {"l": [_written(item) for item in value]}
        shown = [item for item in value if isinstance(item, TensorSpec)]
        return {
            "l": [_written(item) for item in value[:LIST_HEAD]],
            "n": len(value),
            "numel": sum(numel(t.shape) for t in shown),
            "bytes": sum(numel(t.shape) * item_bytes(t.dtype) for t in shown),
        }
    return value


def _argument(value: Any) -> Any:
    if isinstance(value, dict):
        if "l" in value:
            return _long_list(value)
        return _tensor(value)
    if isinstance(value, list):
        return _arguments(value)
    return value


def _arguments(values: list[Any]) -> tuple[Any, ...]:
    """Arguments of each value. Equal tensors next to each other are one object."""
    found: list[Any] = []
    for at, value in enumerate(values):
        same = at and isinstance(value, dict) and value == values[at - 1]
        found.append(found[-1] if same else _argument(value))
    return tuple(found)


def _tensor(table: dict[str, Any]) -> TensorSpec:
    shape = tuple(map(int, table["s"]))
    layout = str(table.get("layout", ""))
    stride = tuple(map(int, table["st"])) if "st" in table and not layout else contiguous_strides(shape)
    if len(stride) != len(shape):
        raise ValueError(f"{len(shape)} dimensions but {len(stride)} strides")
    if min(shape, default=0) < 0 or prod(shape) > LARGEST:
        raise ValueError(f"no tensor has the shape {shape}")
    stored = int(table.get("nnz", -1))
    return TensorSpec(
        str(table["t"]), shape, stride=stride, device=str(table.get("d", "cuda")), layout=layout, stored=stored
    )


def _long_list(table: dict[str, Any]) -> tuple[Any, ...]:
    listed = _arguments(table["l"])
    missing = int(table.get("n", len(listed))) - len(listed)
    if missing <= 0:
        return listed
    if missing > LONGEST:
        raise ValueError(f"no list has {missing} elements more")
    if "numel" not in table:  # numbers
        return listed + listed[-1:] * missing
    shown = [t for t in listed if isinstance(t, TensorSpec)]
    size = max(0, int(table["numel"]) - sum(numel(t.shape) for t in shown))
    total = max(0, int(table["bytes"]) - sum(numel(t.shape) * item_bytes(t.dtype) for t in shown))
    first = shown[0] if shown else None
    dtype = first.dtype if first else "float32"
    if size and total != size * item_bytes(dtype):
        dtype = _dtype_of_size(total / size, dtype)
    even = size // missing // EVEN * EVEN or size // missing
    rest = size - even * (missing - 1)
    device = first.device if first else "cuda"
    more = TensorSpec(dtype, (even,), stride=(1,), device=device)
    return listed + (TensorSpec(dtype, (rest,), stride=(1,), device=device),) + (more,) * (missing - 1)


def _dtype_of_size(size: float, default: str) -> str:
    """A floating dtype of about `size` bytes per element."""
    for width, dtype in ((1, "float8_e4m3fn"), (2, "bfloat16"), (4, "float32"), (8, "float64")):
        if abs(size - width) < 0.5 * width:
            return dtype
    return default


_SHORT = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "float64": "fp64",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint8": "u8",
    "bool": "bool",
}


def _argument_text(value: Any) -> str:
    if isinstance(value, TensorSpec):
        where = "" if value.device.startswith("cuda") else f"@{value.device}"
        kind = f"{value.layout} " * bool(value.layout) + _SHORT.get(value.dtype, value.dtype)
        return f"{kind}[{','.join(map(str, value.shape))}]{where}"
    if isinstance(value, (tuple, list)):
        texts = [_argument_text(item) for item in value[:4]]
        return "(" + ", ".join(texts) + (f", … {len(value)} in all" if len(value) > 4 else "") + ")"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def signature_text(signature: OperatorSignature) -> str:
    """An operator's arguments as people read them, with what it returned if that is known:
    ``bf16[4096,4096], bf16[4096,14336]``, ``u8[64,1], fp32[2] -> bf16[8,16]``."""
    text = ", ".join(_argument_text(value) for value in signature.args if value is not None)
    if not signature.outputs:
        return text
    return f"{text} -> {', '.join(_argument_text(value) for value in signature.outputs)}"
