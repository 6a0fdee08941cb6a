"""Runs a script of the study of 8 H200 and 8 B200 with cuDNN's attention in place of FlashAttention 3 and 4.

    DATA_FAST=FOLDER phantora trace --cluster 1x8xH200 -m validation.workloads.upgrade_script SCRIPT

FOLDER has the weights, or those of samples/huggingface/empty_weights.py. The script has its settings from the environment.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def main() -> None:
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    spec: Any = importlib.util.spec_from_file_location("study", sys.argv[1])
    study: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(study)
    study.detect_backend = lambda *_: "sdpa"
    if hasattr(study, "profile"):  # of kernels only: theirs are found by their operators here
        study.profile = lambda **_: profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])
    study.main()


if __name__ == "__main__":
    main()
