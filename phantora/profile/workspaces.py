"""Measures what cuDNN's plans of convolutions ask for in addition to tensors, by the counters of torch's allocator.

``python -m phantora.profile.workspaces OPERATORS.jsonl RESULTS.jsonl`` is the process that measures:
OPERATORS is a file of ``phantora trace --missing``. It keeps no plans, so that each call chooses anew.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from phantora.cost.parse import parse_signature, write_signature
from phantora.cost.types import OperatorSignature
from phantora.cost.wanted import Wanted, read_wanted, write_wanted
from phantora.cost.workspaces import FOLDER, Bytes, Convolution, convolution_of, read_workspaces, write_workspaces
from phantora.errors import PhantoraError

NO_PLANS_KEPT = {"TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT": "-1"}
_FORWARD, _BACKWARD = "aten::cudnn_convolution", "aten::convolution_backward"


def calls_of(wanted: Iterable[Wanted]) -> dict[Convolution, Wanted]:
    """The convolutions among `wanted`, each once, as calls of cuDNN with one result."""
    found: dict[Convolution, Wanted] = {}
    for entry in wanted:
        if "convolution" not in entry.signature:
            continue  # spares reading it
        for signature in _one_by_one(parse_signature(entry.signature)):
            convolution = convolution_of(signature, entry.compute)
            if convolution is not None:
                found.setdefault(convolution, replace(entry, signature=write_signature(signature)))
    return found


def _one_by_one(signature: OperatorSignature) -> Iterator[OperatorSignature]:
    """One gradient at a time, so that each one's workspace is seen."""
    if signature.name != _BACKWARD:
        yield signature
        return
    for mask in ((True, False, False), (False, True, False)):
        if all(asked or not single for asked, single in zip(signature.args[10], mask, strict=True)):
            yield replace(signature, args=(*signature.args[:10], mask))


# ---------------------------------------------------------------------- the process that measures


def _measure(wanted: Iterable[Wanted], out: Callable[[dict[str, Any]], None]) -> None:
    import torch

    from phantora.profile.arena import Arena, Unbuildable
    from phantora.profile.measure import environment
    from phantora.profile.rebuild import rebuild

    torch.set_grad_enabled(False)
    out(environment())
    arena = Arena(torch.cuda.mem_get_info()[0] * 2 // 5)
    for convolution, entry in calls_of(wanted).items():
        taken: dict[str, int] = {}
        try:
            for name, benchmark in (("usual", False), ("largest", True)):
                tf32 = convolution.type == "tf32"
                torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = tf32, benchmark
                call = rebuild(_reported(parse_signature(entry.signature), tf32, benchmark), arena)
                if not benchmark:
                    call.run()  # what a first call alone takes is none of the plan's
                taken[name] = _workspace_of_results(call.run)
                del call
                torch.cuda.empty_cache()
        except (Unbuildable, RuntimeError) as error:
            out({"signature": entry.signature, "compute": entry.compute, "error": str(error).splitlines()[0][:200]})
            continue
        out({"signature": entry.signature, "compute": entry.compute, **taken})


def _reported(signature: OperatorSignature, tf32: bool, benchmark: bool) -> OperatorSignature:
    """Forward, the operator's arguments say whether TF32 is allowed and plans are tried; backward, torch's settings."""
    if signature.name != _FORWARD:
        return signature
    *before, _, deterministic, _ = signature.args
    return replace(signature, args=(*before, benchmark, deterministic, tf32))


def _workspace_of_results(run: Callable[[], object]) -> int:
    """Bytes that `run` asks of the allocator and gives back before it returns."""
    import torch

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    result = run()
    torch.cuda.synchronize()
    counters = torch.cuda.memory_stats()
    del result
    return int(counters["requested_bytes.all.peak"] - counters["requested_bytes.all.current"])


def main() -> None:
    """Measures the operators of the file named first into the one named second."""
    source, target = map(Path, sys.argv[1:])
    with open(target, "w") as results:
        _measure(read_wanted(source), lambda line: print(orjson.dumps(line).decode(), file=results, flush=True))


# ---------------------------------------------------------------------- its parent


def table_next_to(path: Path) -> Path:
    """Path of the workspaces of the GPU whose kernel times are in `path`."""
    return path.parent / FOLDER / path.name


def measure_workspaces(wanted: Iterable[Wanted], path: Path, budget: float | None = None) -> tuple[int, list[str]]:
    """Measures those of the convolutions among `wanted` missing from the table `path`, for `budget` seconds at most.

    Returns how many convolutions the table has now, and why others could not be measured. Raises PhantoraError for a
    table of another GPU, or if nothing could be measured on this machine.
    """
    rows: dict[Convolution, Bytes] = {}
    about: dict[str, str] = {}
    if path.exists():
        table = read_workspaces(path)
        rows, about = table.rows(), dict(table.about)
    lacking = [call for convolution, call in calls_of(wanted).items() if convolution not in rows]
    if not lacking:
        return len(rows), []
    with tempfile.TemporaryDirectory(prefix="phantora-") as folder:
        source, results = Path(folder) / "operators.jsonl", Path(folder) / "results.jsonl"
        write_wanted(source, lacking)
        status = _run(source, results, budget)
        lines = results.read_bytes().splitlines(keepends=True) if results.exists() else []
    found = [orjson.loads(line) for line in lines if line.endswith(b"\n")]
    if not found:
        raise PhantoraError(f"cannot measure workspaces: the measuring process ended with status {status} (see above)")
    here = {key: str(value) for key, value in found[0].items()}
    if about and about.get("gpu") != here.get("gpu"):
        raise PhantoraError(f"{path} contains workspaces of {about.get('gpu')}, and this GPU is {here.get('gpu')}")
    refused = []
    for line in found[1:]:
        convolution = convolution_of(parse_signature(line["signature"]), line["compute"])
        if "error" in line or convolution is None:
            refused.append(line.get("error", "it is no convolution"))
        else:
            rows[convolution] = Bytes(line["usual"], line["largest"])
    if rows:
        write_workspaces(path, here, rows)
    return len(rows), refused


def _run(source: Path, results: Path, budget: float | None) -> int | None:
    """The exit status of the measuring process; None if it was stopped when its time was over."""
    environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD" and not k.startswith("PHANTORA_RANK")}
    command = [sys.executable, "-m", "phantora.profile.workspaces", str(source), str(results)]
    process = subprocess.Popen(command, env={**environment, **NO_PLANS_KEPT})
    try:
        return process.wait(budget)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
