"""The source that a comment names is in the repository, or is listed here as somebody else's."""

from __future__ import annotations

import functools
import io
import re
import tokenize
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("phantora", "stub", "benchmarks", "validation", "samples", "tests", "docs")
SUFFIXES = "py|c|cpp|cu|h|toml|jsonl|json|md|parquet|js|html|xz|npz|arrow|svg|png|txt|yml"
SOURCES = (".py", ".c", ".cpp", ".cu", ".h")
NAMED = re.compile(rf"(?<![\w/{{}}<>.$*-])((?:[\w.*-]+/)*[\w*][\w.*-]*\.(?:{SUFFIXES})(?:\.gz)?)(?![\w(*/])")

# Files of other projects: torch, CUDA and its libraries, NCCL, FlashAttention.
THEIRS = {
    "perfetto_trace.json.gz",
    "deepspeed/utils/timer.py",
    "megatron/training/training.py",
    "torchtitan/components/metrics.py",
    "CUDACachingAllocator.cpp",
    "NCCLUtils.cpp",
    "nccl2/ProcessGroupNCCLUtils.cpp",
    "flash_api.cpp",
    "causal_conv1d.cpp",
    "selective_scan.cpp",
    "ATen/ATen.h",
    "ATen/native/cuda/DistanceKernel.cu",
    "ATen/native/cuda/EmbeddingBackwardKernel.cu",
    "ATen/native/cuda/Indexing.cu",
    "cuda_bf16.h",
    "ATen/native/cuda/ScatterGatherKernel.cu",
    "ATen/native/cuda/Shape.cu",
    "ATen/native/cuda/Sort.cu",
    "SortStable.cu",
    "ATen/native/cuda/TensorTopK.cu",
    "PERFORMANCE.md",
    "ProcessGroupNCCL.cpp",
    "cublas_api.h",
    "cuda_runtime_api.h",
    "cudnn/RNN.cpp",
    "cupti_runtime_cbid.h",
    "cudnn_adv.h",
    "cudnn_cnn.h",
    "cudnn_graph.h",
    "cudnn_ops.h",
    "dlfcn.h",
    "nccl.h",
    "topo.h",
    "nvtxTypes.h",
    "userbuffers-host.cpp",
    "flash_attn/src/static_switch.h",
    "Node.js",
    "cuda.h",
    "llama2.c",
    "docs/README_Hybrid-EP.md",
    "docs/performance-summary-archive.md",
    "comm_sglang_*_wideep_deepep_normal_perf.parquet",
    # PyTorch's tests (tests/upstream/README.md), TorchTitan's and others' published runs.
    "distributed/test_c10d_nccl.py",
    "distributed/pipelining/test_stage.py",
    "distributed/pipelining/test_schedule_multiproc.py",
    "distributed/tensor/parallel/test_tp_examples.py",
    "distributed/test_symmetric_memory.py",
    "distributed/checkpoint/test_file_system_checkpoint.py",
    "distributed/checkpoint/test_hsdp_checkpoint.py",
    "benchmarks/llama3_h100_202412_torchtitan.md",
    "benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md",
    "distributed/_composable/fsdp/test_fully_shard_comm.py",
    "distributed/_composable/fsdp/test_fully_shard_frozen.py",
    "distributed/_composable/fsdp/test_fully_shard_init.py",
    "distributed/_composable/fsdp/test_fully_shard_memory.py",
    "distributed/_composable/fsdp/test_fully_shard_overlap.py",
    "distributed/_composable/fsdp/test_fully_shard_state.py",
    "distributed/test_c10d_ops_nccl.py",
    "docs/performance.md",
    "test_cuda.py",
    "llama3-8b_h200_202506_trainy-whitefiber.md",
    "docs/b200/b200_release_v1.2_summary.md",
    "images/model_table.png",
    "closed/Nebius/systems/nebius_b200_n1.json",
    "collector/trtllm/collect_gemm.py",
}
# Files that a build or a measurement makes, and those of examples, which a user has.
MADE = {
    "dist/sbom.json",
    "spec.json",
    "result.json",
    "phantora_wire.h",
    "phantora_engine.h",
    "triton.jsonl",
    "triton_ir.xz",
    "run.groups.json",
}
EXAMPLES = {
    "wkv.cpp",
    "wkv.cu",
    "config.json",
    "fails.py",
    "org/data/train.parquet",
    "lab.toml",
    "phantora/cost/families/rope.py",
    "run.arrow",
    "run.toml",
    "spawn.py",
    "leak.py",
    "leaks.py",
    "requirements.txt",
    "compare/compare.html",
    "table.md",
    "results.jsonl",
    "sim.py",
    "real_h200.jsonl",
    "train.arrow",
    "train-2.arrow",
    "train.py",
    "traces/*.json.gz",
}
# Commands write files and name those of their user.
COMMAND = re.compile(r"(?<![\w`])(?:phantora|torchrun|python3?|\.venv/bin/\w+) [^\n`]*")
PLACEHOLDER = re.compile(r"\b[A-Z][A-Z_]{2,}\b")  # FILE.jsonl, FOLDER/NAME.jsonl


# Their programs lie elsewhere.
ELSEWHERE = {ROOT / "validation/scoreboard/reports.toml", ROOT / "validation/tables/scoreboard.md"}


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Lines, and the comments and docstrings that begin there; of prose and data files every line."""
    text = path.read_text()
    if path.suffix in (".md", ".toml"):
        yield from enumerate(text.splitlines(), 1)
    elif path.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.string.startswith('"""')):
                yield token.start[0], token.string
    else:
        for found in re.finditer(r"//[^\n]*|/\*.*?\*/", text, re.DOTALL):
            yield text.count("\n", 0, found.start()) + 1, found[0]


@functools.cache
def cited() -> list[tuple[Path, int, str]]:
    """Files and lines, and the names of files that stand there."""
    return list(_cited())


def _cited() -> Iterator[tuple[Path, int, str]]:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    for path in [*files, *ROOT.glob("*.md")]:
        if path.suffix in (".py", ".c", ".h", ".cpp", ".toml", ".md") and path not in ELSEWHERE:
            for line, text in texts(path):
                names = NAMED.findall(COMMAND.sub("", text))
                # Prose names files of its readers as well: there only paths and sources count.
                prose = path.suffix == ".md"
                yield from ((path, line, n) for n in names if not prose or "/" in n or n.endswith(SOURCES))


def exists(name: str, cited_by: Path, known: list[str]) -> bool:
    if name.startswith("../"):
        return (cited_by.parent / name).resolve().exists()
    return any(path.endswith(name) for path in known) or any(fnmatch(path, "*" + name) for path in known)


def test_files_that_comments_cite_are_here() -> None:
    folders = [path for path in ROOT.iterdir() if path.is_dir() and path.name not in (".git", ".venv")]
    files = [*ROOT.iterdir(), *(path for folder in folders for path in folder.rglob("*"))]
    known = [str(path.relative_to(ROOT)) for path in files if path.is_file()]
    found, missing, here = 0, [], THEIRS | MADE | EXAMPLES
    for path, line, name in cited():
        found += 1
        if name in here or PLACEHOLDER.search(name):
            continue
        if exists(name, path, known):
            here |= {name} if not name.startswith("../") else set()
        else:
            missing.append(f"{path.relative_to(ROOT)}:{line} {name}")
    assert missing == [] and found > 500


def test_the_names_of_others_are_cited() -> None:
    """The lists above hold nothing that no comment names any more."""
    names = {name for path, _, name in cited() if path != Path(__file__)}
    assert sorted((THEIRS | MADE | EXAMPLES) - names) == []
