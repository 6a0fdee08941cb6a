"""Instructions that functions of libdevice take for an element, counted in SASS. Needs no GPU.

    python -m validation.fits.function_counts [--capability 90] [NAME ...]

One line per function: instructions beyond those of a kernel that copies, of these the special function units' (MUFU),
and branches. phantora/ttir/functions.py contains the result.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
SOURCE = """
import triton, triton.language as tl
from triton.language.extra.cuda import libdevice
@triton.jit
def kernel(y, x, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i)
    tl.store(y + i, {})
"""
BLOCK, WARPS = 1024, 4
ONE = """tanh erf erfc exp exp2 exp10 expm1 log log1p log2 log10 sin cos tan asin acos atan sinh cosh asinh acosh atanh
rsqrt sqrt cbrt rcbrt ceil floor trunc rint nearbyint round abs normcdf erfinv sinpi cospi lgamma fast_expf fast_logf
fast_sinf fast_cosf"""
TWO = "pow atan2 fmod hypot copysign nextafter"
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4}\*/\s+(?:@!?U?P\d+\s+)?([A-Z][A-Z0-9_]*)")


def counted(expression: str, folder: Path, capability: int) -> Counter[str]:
    """Instructions of the kernel that stores `expression` of an element v."""
    source = folder / "kernel.py"
    source.write_text(SOURCE.format(expression))
    spec = importlib.util.spec_from_file_location("kernel", source)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    aligned = {(place,): [["tt.divisibility", 16]] for place in (0, 1)}
    types = {"y": "*fp32", "x": "*fp32", "BLOCK": "constexpr"}
    kernel = ASTSource(module.kernel, types, {(2,): BLOCK}, aligned)
    code = folder / "kernel.cubin"
    code.write_bytes(triton.compile(kernel, GPUTarget("cuda", capability, 32), {"num_warps": WARPS}).asm["cubin"])
    sass = subprocess.run([TOOLS / "cuobjdump", "-sass", code], capture_output=True, text=True, check=True).stdout
    return Counter(name for name in INSTRUCTION.findall(sass) if name != "NOP")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--capability", type=int, default=90)
    args = parser.parse_args()
    calls = {name: f"libdevice.{name}(v)" for name in ONE.split()}
    calls |= {name: f"libdevice.{name}(v, 2.7)" for name in TWO.split()}
    calls |= {"fma": "libdevice.fma(v, 2.7, 1.1)", "ldexp": "libdevice.ldexp(v, 3)"}
    each = BLOCK // (32 * WARPS)  # elements of a thread
    with tempfile.TemporaryDirectory() as folder:
        plain = counted("v", Path(folder), args.capability)
        for name in args.names or calls:
            found = counted(calls[name], Path(folder), args.capability)
            branches = sum(found[word] for word in ("BRA", "BSSY", "BSYNC", "CALL")) - plain["BRA"]
            total, mufu = (found.total() - plain.total()) / each, found["MUFU"] / each
            print(f"{name:<10} {total:6.1f} instructions {mufu:4.1f} MUFU {branches / each:5.1f} branches")


if __name__ == "__main__":
    main()
