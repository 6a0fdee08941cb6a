"""A program for one simulated rank: torch's own operator database, on the GPU against the CPU.

Run by test_op_db.py: ``op_db_program.py SAMPLES SKIPPED...``. Prints ``differs NAME DTYPE: how`` for each operator that
differs, and ``ran N`` at the end. Only samples of small tensors are run (docs/values.md).
"""

from __future__ import annotations

import itertools
import sys
import types
import unittest
import warnings
from typing import Any

import torch

warnings.simplefilter("ignore")
# The database's module asks for this package, of which it only needs the name of one class.
sys.modules.setdefault("expecttest", types.SimpleNamespace(TestCase=unittest.TestCase))  # type: ignore[arg-type]
from torch.testing._internal import common_utils  # noqa: E402

# It looks for a test on the stack for each operator, which costs ten times what the operators do. There is none.
common_utils.extract_test_fn = lambda: None
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402

SMALL = 1_024  # PH_SMALL_ELEMENTS
DTYPES = (torch.float32, torch.int64)


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for item in value for t in tensors(item)] if isinstance(value, (list, tuple)) else []


def moved(value: Any, device: str) -> Any:
    """`value` with copies of its tensors on `device`."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone() if device == "cpu" else value.detach().to(device)
    if isinstance(value, dict):
        return {key: moved(item, device) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [moved(item, device) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def difference(got: Any, expected: Any) -> str:
    """Difference in a word; empty if they agree."""
    if isinstance(expected, torch.Tensor):
        if not isinstance(got, torch.Tensor) or (got.shape, got.dtype) != (expected.shape, expected.dtype):
            return f"{getattr(got, 'shape', got)} {getattr(got, 'dtype', '')}"
        got, expected = got.detach().cpu(), expected.detach()
        if expected.layout != torch.strided:
            got, expected = got.to_dense(), expected.to_dense()
        try:
            torch.testing.assert_close(got, expected, equal_nan=True, rtol=1e-4, atol=1e-5)
        except AssertionError:
            return "values"
        return ""
    if isinstance(expected, (list, tuple)):
        if len(got) != len(expected):
            return "number of results"
        return next(filter(None, (difference(g, e) for g, e in zip(got, expected, strict=True))), "")
    return "" if got == expected or expected != expected else "numbers"


def call(op: Any, sample: Any, device: str) -> Any:
    torch.manual_seed(0)
    options = moved(sample.kwargs, device)
    if "device" in options:
        options["device"] = device
    return op(moved(sample.input, device), *moved(sample.args, device), **options)


def verdict(op: Any, sample: Any) -> str | None:
    """None where the sample is not small, or the CPU refuses it."""
    if any(t.numel() > SMALL for t in tensors([sample.input, sample.args, sample.kwargs])):
        return None
    try:
        expected = call(op, sample, "cpu")
    except Exception:
        return None
    if any(t.numel() > SMALL for t in tensors(expected)):
        return None
    try:
        got = call(op, sample, "cuda")
        torch.cuda.synchronize()  # `to("cpu", non_blocking=True)` arrives late
        return difference(got, expected)
    except Exception as error:
        return f"{type(error).__name__}: {error}".split("\n")[0][:160]


def main() -> None:
    count, skipped, ran = int(sys.argv[1]), set(sys.argv[2:]), 0
    for op in op_db:
        name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
        for dtype in DTYPES:
            if name in skipped or not (op.supports_dtype(dtype, "cpu") and op.supports_dtype(dtype, "cuda")):
                continue
            found = ""
            for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=False), count):
                result = verdict(op, sample)
                ran += result is not None
                found = found or result or ""
            if found:
                print(f"differs {name} {str(dtype).removeprefix('torch.')}: {found}", flush=True)
    print(f"ran {ran}", flush=True)


if __name__ == "__main__":
    main()
