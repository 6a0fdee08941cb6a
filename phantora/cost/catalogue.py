"""Which class an ATen operator belongs to, and which model prices it, by name.

Unknown operators are elementwise: they read their inputs and write an output of broadcast shape.
"""

from __future__ import annotations

from functools import lru_cache

from phantora.cost import attention, convolution, lookup, memory, reduction, sorting
from phantora.cost.memory import Model

GEMM = frozenset(
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
        "_cudnn_rnn",
        "_cudnn_rnn_backward",
        "_weight_int8pack_mm",
        "_weight_int4pack_mm",
        "einsum",
        "inner",
        "tensordot",
        "chain_matmul",
        "multi_dot",
    )
)
_REDUCTIONS = (
    "sum",
    "mean",
    "amax",
    "amin",
    "max",
    "min",
    "argmax",
    "argmin",
    "any",
    "all",
    "prod",
    "norm",
    "linalg_vector_norm",
    "var",
    "std",
    "var_mean",
    "std_mean",
    "logsumexp",
    "nansum",
    "count_nonzero",
    "cumsum",
    "cumprod",
    "logcumsumexp",
    "aminmax",
    "_logcumsumexp",
    "cummax",
    "cummin",
    "histc",
    "bincount",
    "linalg_norm",
    "_amp_foreach",
    "mode",
    "trace",
)
_RANDOM = (
    "uniform",
    "normal",
    "random",
    "bernoulli",
    "exponential",
    "geometric",
    "rand",
    "randn",
    "randint",
    "native_dropout",
    "dropout",
    "_fused_dropout",
    "multinomial",
    "cauchy",
    "log_normal",
    "randperm",
    "poisson",
)
_FILL = (
    "fill",
    "zero",
    "zeros",
    "ones",
    "full",
    "empty",
    "new_zeros",
    "new_ones",
    "new_full",
    "arange",
    "linspace",
    "eye",
)
_GATHER = (
    "index",
    "gather",
    "scatter",
    "take",
    "put",
    "masked_select",
    "masked_scatter",
    "nonzero",
    "_index_put_impl",
    "_unsafe_index",
    "unique",
    "_unique",
    "repeat_interleave",
    "searchsorted",
    "bucketize",
)
_CAT = (
    "cat",
    "_cat",
    "stack",
    "_chunk_cat",
    "split_with_sizes_copy",
    "split_copy",
    "unbind_copy",
    "hstack",
    "vstack",
)
_COPY = (
    "copy",
    "_to_copy",
    "clone",
    "contiguous",
    "to",
    "_foreach_copy",
    "view_copy",
    "expand_copy",
    "repeat",
    "roll",
    "flip",
    "constant_pad_nd",
    "permute_copy",
    "_reshape_copy",
    "slice_copy",
    "as_strided_copy",
)


def _classify_fused(name: str) -> tuple[str, Model]:
    """Inductor names a kernel by its kind (pointwise, reduction, template) and what was fused into it."""
    if attention.matches(name):
        return "attention", memory.fused
    return ("elementwise" if name.startswith("triton_poi") else "reduction"), memory.fused


def base_name(name: str) -> str:
    """``aten::add_.Tensor`` -> ``add_``; other namespaces lose theirs too."""
    return name.rpartition("::")[2].partition(".")[0]


@lru_cache(maxsize=8192)
def classify(name: str) -> tuple[str, Model]:
    """Class (of ``types.CLASSES``) and model of the operator with base name `name`.

    For gemm, attention and convolution the model is what is used when arguments are not as expected.
    """
    if name.startswith("triton_"):
        return _classify_fused(name)
    stem = name.rstrip("_")
    if name in GEMM:
        return "gemm", memory.elementwise
    if attention.matches(name):
        return "attention", memory.elementwise
    if convolution.matches(name):
        return "convolution", memory.elementwise
    if "batch_norm" in name or "instance_norm" in name:
        return "normalization", memory.batch_norm
    if any(part in name for part in ("layer_norm", "rms_norm", "group_norm", "weight_norm")):
        return "normalization", memory.norm
    if "softmax" in name:
        return ("loss" if "log_softmax" in name else "normalization"), memory.softmax
    if "nll_loss" in name or "cross_entropy" in name:
        return "loss", memory.nll_loss
    if name.endswith(("_loss", "_loss_backward")) or "ctc_loss" in name:
        return "loss", memory.elementwise
    if name.startswith(("embedding", "_embedding_bag")):
        return "embedding", lookup.embedding
    if name.startswith(("_foreach_copy",)):
        return "copy", memory.optimizer
    if name.startswith(("_fused_adam", "_fused_sgd", "_fused_adagrad", "_foreach_", "_amp_")):
        return "optimizer", memory.optimizer
    if stem in _CAT:
        return "copy", memory.cat
    if stem in _COPY or stem.endswith("_copy"):
        return "copy", memory.elementwise
    if "pool" in name:
        return "reduction", memory.pool
    if stem in _REDUCTIONS or stem.startswith("_cum"):
        return "reduction", reduction.estimate
    if stem in _RANDOM or (stem.endswith("_like") and stem.startswith("rand")):
        return "random", memory.random
    if stem in _FILL or stem.endswith("_like"):
        return "fill", memory.fill
    if stem in ("sort", "topk", "argsort", "msort", "kthvalue", "median", "nanmedian"):
        return "sort", sorting.sort
    if stem.startswith(_GATHER):
        return "embedding" if stem.startswith("index_select") else "copy", memory.gather
    return "elementwise", memory.elementwise
