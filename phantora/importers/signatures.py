"""Operators of a Kineto trace as signatures: what ``record_shapes=True`` keeps of their arguments."""

from __future__ import annotations

from typing import Any

import orjson

from phantora.cost.tensors import contiguous_strides
from phantora.cost.types import OperatorSignature, TensorSpec

_DTYPES = {
    "float": "float32",
    "double": "float64",
    "c10::half": "float16",
    "c10::bfloat16": "bfloat16",
    "long": "int64",
    "long int": "int64",
    "int": "int32",
    "short": "int16",
    "short int": "int16",
    "signed char": "int8",
    "char": "int8",
    "unsigned char": "uint8",
    "bool": "bool",
    "c10::float8_e4m3fn": "float8_e4m3fn",
    "c10::float8_e5m2": "float8_e5m2",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
    "unsigned short": "uint16",
    "unsigned int": "uint32",
    "unsigned long": "uint64",
    "c10::float8_e4m3fnuz": "float8_e4m3fnuz",
    "c10::float8_e5m2fnuz": "float8_e5m2fnuz",
    "c10::qint8": "qint8",
    "c10::quint8": "quint8",
}
"""torch's names by those of C++, which Kineto writes."""
_COLLECTIVE_DTYPES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "bfloat16": "bfloat16",
    "long": "int64",
    "int": "int32",
    "short": "int16",
    "char": "int8",
    "byte": "uint8",
    "bool": "bool",
    "float8_e4m3fn": "float8_e4m3fn",
    "float8_e5m2": "float8_e5m2",
    "unsigned char": "uint8",
}
"""torch's names by those of ``c10::ScalarType``."""
SHAPE = "shape"
"""The argument in which our own exports keep the text of an operator's arguments."""
_PARTS = (SHAPE, "Input Dims", "Input type", "Input Strides", "Concrete Inputs")
UNKNOWN_DTYPE = "tensor"  # of members of a tensor list: Kineto does not write it
_LISTS = ("TensorList", "GenericList")


def collective_dtype(name: str) -> str:
    """torch's name of the dtype that Kineto calls `name` in a collective's arguments."""
    return _COLLECTIVE_DTYPES.get(name.lower(), name.lower())


def operator_dtype(name: str) -> str:
    """torch's name of the dtype that C++ calls `name`; empty for what is no dtype."""
    return _DTYPES.get(name.lower(), "")


def signature(name: str, args: dict[str, Any]) -> OperatorSignature:
    """The operator `name` with the arguments that the event's `args` describe; none without ``record_shapes``."""
    dims, types = args.get("Input Dims") or args.get("Input dims"), args.get("Input type")
    if not isinstance(dims, list) or not isinstance(types, list):
        return OperatorSignature(name, ())
    strides, values = args.get("Input Strides") or (), args.get("Concrete Inputs") or ()
    found = [
        _argument(shape, types[i] if i < len(types) else "", _at(strides, i), _at(values, i))
        for i, shape in enumerate(dims)
    ]
    return OperatorSignature(name, tuple(_wrapped_numbers(found)))


def key(name: str, args: dict[str, Any]) -> bytes:
    """Equal for operators whose signatures are equal."""
    return orjson.dumps([name, *(args.get(part) for part in _PARTS)])


def _at(values: Any, index: int) -> Any:
    return values[index] if isinstance(values, list) and index < len(values) else None


def _argument(shape: Any, kind: Any, strides: Any, value: Any) -> Any:
    kind = str(kind)
    if kind.startswith(_LISTS) or (shape and isinstance(shape[0], list)):
        return tuple(_tensor(UNKNOWN_DTYPE, each, None) for each in shape or () if isinstance(each, list))
    dtype = operator_dtype(kind)
    if dtype:
        return _tensor(dtype, shape, strides)
    return _value(value)


def _tensor(dtype: str, shape: Any, strides: Any) -> TensorSpec:
    extents = tuple(int(n) for n in shape or ())
    known = isinstance(strides, list) and len(strides) == len(extents)
    return TensorSpec(dtype, extents, stride=tuple(int(n) for n in strides) if known else contiguous_strides(extents))


def _value(text: Any) -> Any:
    """A number, a truth value or a list of them from the text of an argument; None if it is none of them."""
    if not isinstance(text, str) or not text:
        return None if isinstance(text, str) else text
    if text in ("True", "False"):
        return text == "True"
    if text.startswith(("[", "(")):
        items = [item.strip() for item in text.strip("[]()").split(",") if item.strip()]
        return tuple(_value(item) for item in items)
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return None


def _wrapped_numbers(args: list[Any]) -> list[Any]:
    """`args` with tensors without dimensions, next to others, on the CPU: torch wraps numbers so, and Kineto does not
    write where a tensor lies."""
    shaped = any(isinstance(arg, TensorSpec) and arg.shape for arg in args)
    return [
        TensorSpec(arg.dtype, (), stride=(), device="cpu")
        if shaped and isinstance(arg, TensorSpec) and not arg.shape and arg.dtype in ("float64", "int64")
        else arg
        for arg in args
    ]
