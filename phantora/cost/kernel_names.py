"""The class of a kernel by its name, where no operator tells it."""

from __future__ import annotations

import re

_BY_NAME = (
    ("communication", r"nccl|rccl|nvshmem|multimem|symm_mem|one_shot_all_reduce|two_shot_all_reduce"),
    ("attention", r"flash|fmha|attention|attn|sdpa"),
    ("gemm", r"gemm|gemv|cublas|nvjet|cutlass|cijk_|wgmma|xmma|splitk|matmul|_mm_|tensile|dot_kernel"),
    ("convolution", r"conv(?!ert)|cudnn.*(?:dgrad|wgrad|fprop)|winograd|implicit_gemm|miopen.*conv"),
    ("optimizer", r"adam|sgd|lamb(?!da)|adagrad|optimizer"),
    ("normalization", r"norm(?!al(?!i))|batch_?norm|bn_[fb]w"),
    ("embedding", r"embedding|gather|index_select|indexselect"),
    ("reduction", r"reduce|softmax|_red_|cumsum|scan"),
    ("sort", r"sort|topk|radix"),
    ("random", r"distribution|philox|random|dropout"),
    ("copy", r"copy|transpose|catarray|permute|pad_kernel"),
    ("fill", r"fill"),
    ("elementwise", r"elementwise|pointwise|_poi_|activation|gelu|silu|vectorized|add|mul"),
)
_PATTERNS = tuple((cls, re.compile(pattern, re.IGNORECASE)) for cls, pattern in _BY_NAME)


def class_of_kernel(name: str) -> str:
    """The class (of ``cost.types.CLASSES``) of a kernel that no known operator launched, by parts of its name."""
    return next((cls for cls, pattern in _PATTERNS if pattern.search(name)), "other")
