"""Whole models that no table and no sample knows, on one real GPU: each script of `unseen/` in a process of its own.

    python -m validation.workloads.unseen_runs DIR [--budget 150] [--only liger_llama,scan]

Writes DIR/unseen_runs.jsonl, a line per script (median step, steps, peak memory), and DIR/unseen_kernels.jsonl, the kernels
of one step of each. First those that compile run two steps, some at once, so that the measured ones, one after the
other, find Triton's and Inductor's caches filled; max-autotune's choice is made anew while nothing else runs.
Processes are forked from one that has imported torch.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import time
import traceback
from pathlib import Path

HERE = Path(__file__).parent / "unseen"
COMPILED = (
    "tuned_mlp", "adamw_8bit torchao", "flex_gpt documents", "flex_gpt sliding", "deltanet", "retnet", "float8_mlp",
    "liger_llama", "scan", "triton_transformer", "liger_qwen", "gla", "forgetting", "grouped_moe", "compiled_resnet", "flex_capped",
    "triton_ops", "own_adam", "tuned_gpt", "liger_dpo", "helion_block", "own_attention", "cut_loss",
    "float8_rows", "own_norms", "segments", "own_int8", "rounded_adam", "short_convolutions", "liger_gemma",
    "own_moe", "own_window", "own_groups", "own_states", "rwkv", "own_operators", "own_loss", "compiled_mixer",
)  # fmt: skip
OTHERS = (
    "adamw_8bit bitsandbytes", "qlora", "dlrm", "graph gat", "graph sage", "moe_loops", "packed", "t5_encoder", "llm_int8",
    "jagged", "own_cuda", "tried_convolutions resnet50 tf32", "tried_convolutions vgg16 tf32", "tried_convolutions densenet121 tf32",
    "tried_convolutions unet tf32", "tried_convolutions resnet50 exact",
)  # fmt: skip
AT_ONCE = 6


def start(line: str, iterations: int, out: Path, env: dict[str, str]) -> int:
    """Fork a process that runs a script; its output goes to `out`."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        script, *words = line.split()
        os.environ.update(env)
        file = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        sys.argv = [str(HERE / f"{script}.py"), *words, *(["0"] if not iterations else [])]
        sys.path.insert(0, str(HERE))
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except BaseException:
        print(f"{line}:\n{traceback.format_exc()[-1500:]}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(code)


def wait(running: dict[int, str], until: float) -> None:
    """Until one of `running` has ended, or the time is over: then all of them end."""
    while True:
        for pid in list(running):
            if os.waitpid(pid, os.WNOHANG)[0]:
                del running[pid]
                return
        if time.time() > until:
            for pid, line in running.items():
                print(f"{line}: out of time", file=sys.stderr)
                os.kill(pid, 9)
                os.waitpid(pid, 0)
            running.clear()
            return
        time.sleep(0.02)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--budget", type=float, default=150.0, help="seconds")
    parser.add_argument("--only", default="", help="scripts, separated by commas")
    args = parser.parse_args()
    begin = time.time()
    args.folder.mkdir(parents=True, exist_ok=True)
    import torch

    torch.set_num_threads(2)
    only = args.only.split(",") if args.only else [*COMPILED, *OTHERS]
    running: dict[int, str] = {}
    for line in (line for line in COMPILED if line in only):
        if len(running) >= AT_ONCE:
            wait(running, begin + 0.5 * args.budget)
        fresh = (
            {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOTUNE_LOCAL_CACHE": "0"}
            if line == "tuned_mlp"
            else {}
        )
        running[start(line, 0, Path(os.devnull), fresh)] = line
    while running:
        wait(running, begin + 0.5 * args.budget)
    print(f"compiled after {time.time() - begin:.0f} s", file=sys.stderr)
    for line in (line for line in (*OTHERS, *COMPILED[::-1]) if line in only):
        if time.time() > begin + args.budget:
            print(f"{line}: out of time", file=sys.stderr)
            continue
        env = {"STEPS_PROFILE": str((args.folder / "unseen_kernels.jsonl").resolve())}
        wait({start(line, 12, args.folder / "unseen_runs.jsonl", env): line}, begin + args.budget + 15)
        print(f"{line} at {time.time() - begin:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
