"""Stand-ins for the compiled halves of extensions, which take nvcc to build.

Where a package's Python half is installed and imports a compiled module that is not, a stand-in takes its place: its
functions check arguments, return tensors of the right shapes without values, and launch a kernel that has the price of
an operator. A run names those that it used. Installed modules come first.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from phantora.rank.messages import tell
from phantora.rank.patch import Patch, Rank, When


@dataclass(frozen=True, kw_only=True)
class Standin:
    """One compiled module."""

    module: str
    package: str
    """The package whose compiled half it is, on PyPI."""
    source: str
    """The module of ours with its functions, in this package: all public ones of its own, or what its function
    `exported` returns by name."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The functions by the compiled module's name for them, if not all are in it."""
    namespace: str = ""
    """Where the functions are operators of torch, defined by `source.SCHEMAS`; "": they are the module's."""
    half: str = ""
    """The Python half, where other packages import the compiled one as well if it is there."""
    interface: str = ""
    """A module of the Python half next to the package, where the package has the compiled half alone."""
    constants: tuple[str, ...] = ()
    """Names in the source, where the module is what a build writes: they are all that it has."""


def _apex(module: str, *names: str, source: str = "apex", given: Mapping[str, str] | None = None) -> Standin:
    every = given or {name: name for name in names}
    return Standin(module=module, package="apex", source=source, names=every, half="apex")


_BOTH = ("forward", "backward")


def _softmax(module: str, kind: str, *further: str) -> Standin:
    names = {way: f"{kind}_{way}" for way in _BOTH} | {name: name for name in further}
    return _apex(module, source="masked_softmax", given=names)


_NORMS = ("forward", "forward_affine", "forward_affine_mixed_dtypes", "backward", "backward_affine")
_LISTS = (
    *("scale", "axpby", "l2norm", "l2norm_mp", "l2norm_scale", "unscale_l2norm", "adam", "adam_capturable"),
    *("adam_capturable_master", "sgd", "adagrad", "novograd", "lamb", "lamb_mp"),
)
_CONTRIB = (
    ("fast_layer_norm", ("ln_fwd", "ln_bwd")),
    ("group_norm_v2_cuda", ("gn", "gn_bwd")),
    (
        "distributed_adam_cuda",
        tuple(f"multi_tensor_fused_adam{rest}" for rest in ("", "_capturable", "_with_param_remainders")),
    ),
    ("distributed_lamb_cuda", ("multi_tensor_lamb_compute_update_term", "multi_tensor_lamb_update_weights")),
    ("fused_adam_cuda", ("adam", "adam_mt", "maybe_cast", "maybe_cast_mt")),
)
"""Modules of apex.contrib, and their functions."""
STANDINS = (
    Standin(module="flash_attn_2_cuda", package="flash-attn", source="flash_attn_2"),
    Standin(
        module="flash_attn_3._C",
        package="flash-attn 3",
        source="flash_attn_3",
        namespace="flash_attn_3",
        interface="flash_attn_interface",
    ),
    Standin(
        module="flash_attn_config",
        package="flash-attn 3",
        source="flash_attn_3",
        constants=("CONFIG",),
        half="flash_attn_interface",
    ),
    Standin(
        module="causal_conv1d_cuda",
        package="causal-conv1d",
        source="state_space",
        names={f"causal_conv1d_{name}": f"causal_conv1d_{name}" for name in ("fwd", "bwd", "update")},
    ),
    Standin(
        module="selective_scan_cuda",
        package="mamba-ssm",
        source="state_space",
        names={"fwd": "scan_fwd", "bwd": "scan_bwd"},
    ),
    Standin(module="grouped_gemm_backend", package="grouped_gemm", source="grouped"),
    Standin(module="megablocks_ops", package="megablocks", source="megablocks"),
    Standin(module="deep_gemm._C", package="deep_gemm", source="deep_gemm"),
    Standin(module="natten.libnatten", package="natten", source="natten"),
    *(
        Standin(module=f"sageattention.{name}", package="sageattention", source="sage_attention")
        for name in ("_qattn_sm80", "_qattn_sm89", "_qattn_sm90", "_fused")
    ),
    _apex("fused_layer_norm_cuda", *_NORMS, *(f"rms_{name}" for name in _NORMS)),
    _apex("amp_C", *(f"multi_tensor_{name}" for name in _LISTS)),
    _apex("fused_lamb_cuda", given={"lamb": "multi_tensor_lamb"}),
    _apex("fused_weight_gradient_mlp_cuda", "wgrad_gemm_accum_fp32", "wgrad_gemm_accum_fp16"),
    _softmax("scaled_upper_triang_masked_softmax_cuda", "causal"),
    _softmax("scaled_masked_softmax_cuda", "masked", "get_batch_per_block"),
    _softmax("scaled_softmax_cuda", "plain"),
    _apex("mlp_cuda", source="apex_dense", given={name: f"mlp_{name}" for name in _BOTH}),
    _apex(
        "fused_dense_cuda",
        *(f"linear_{part}_{way}" for part in ("bias", "gelu_linear") for way in _BOTH),
        source="apex_dense",
    ),
    *(
        _apex(module, source="apex_contrib", given={name: f"{stem}_{name}" for name in _BOTH})
        for module, stem in (
            ("xentropy_cuda", "xentropy"),
            ("group_norm_cuda", "group_norm"),
            ("focal_loss_cuda", "focal"),
        )
    ),
    _apex(
        "fused_index_mul_2d",
        source="apex_contrib",
        given={
            f"{kind}_{way}": f"index_mul_{way}" for kind in ("float", "half") for way in (*_BOTH, "backward_backward")
        },
    ),
    *(_apex(module, *names, source="apex_contrib") for module, names in _CONTRIB),
)
_said: set[str] = set()


class _Loader(importlib.abc.Loader):
    def __init__(self, standin: Standin) -> None:
        self._standin = standin

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        if self._standin.constants:
            vars(module).update({name: getattr(source_of(self._standin), name) for name in self._standin.constants})
            return
        made = functions(self._standin)
        if self._standin.namespace:
            vars(module)["library"] = defined(self._standin, made)
        else:
            vars(module).update(made)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        bare = (each.interface for each in STANDINS if each.interface and each.module.rpartition(".")[0] == name)
        if any(importlib.util.find_spec(interface) is not None for interface in bare):
            return importlib.machinery.ModuleSpec(name, None, is_package=True)
        found = next((standin for standin in STANDINS if standin.module == name), None)
        if found is None or (found.half and importlib.util.find_spec(found.half) is None):
            return None
        return importlib.machinery.ModuleSpec(name, _Loader(found))


def source_of(standin: Standin) -> ModuleType:
    """Our module with a stand-in's functions."""
    return importlib.import_module(f"{__name__}.{standin.source}")


def functions(standin: Standin) -> dict[str, Callable[..., Any]]:
    """The functions of a stand-in, which name it at their first call."""
    source = source_of(standin)
    if hasattr(source, "exported"):
        found = source.exported()
    else:
        own = (name for name, value in vars(source).items() if getattr(value, "__module__", "") == source.__name__)
        names = standin.names or {name: name for name in own if not name.startswith("_")}
        found = {name: getattr(source, ours) for name, ours in names.items()}
    return {name: _naming(standin, function) for name, function in found.items()}


def defined(standin: Standin, made: Mapping[str, Callable[..., Any]]) -> Any:
    """Defines the operators of a stand-in, which live as long as the returned library."""
    import torch

    library: Any = torch.library.Library(standin.namespace, "FRAGMENT")  # type: ignore[no-untyped-call]
    for name, schema in source_of(standin).SCHEMAS.items():
        library.define(name + schema)
        library.impl(name, made[name], "CUDA")
    return library


def _naming(standin: Standin, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if standin.module not in _said:
            _said.add(standin.module)
            if os.environ.get("RANK", "0") == "0":
                tell(f"{standin.module} of {standin.package} is not installed: a stand-in with its shapes and times")
        return function(*args, **kwargs)

    return call


def install(rank: Rank) -> None:
    """Finds stand-ins where nothing else finds a module of that name."""
    from phantora.rank.standins import kernels

    kernels.announce_to(rank.tracer)
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
        _ask_anew()


def _ask_anew() -> None:
    """Lets transformers look again for packages, if it was imported before stand-ins could be found: it keeps what it
    has not found."""
    kept = sys.modules.get("transformers.utils.import_utils")
    for name, function in vars(kept).items() if kept else ():
        if name.endswith("_available") and hasattr(function, "cache_clear"):
            function.cache_clear()


PATCH = Patch("stand-ins", When.AFTER_TORCH, install)
