"""Kernels of the Hugging Face hub, which the package `kernels` downloads as compiled files.

A kernel that is known here needs no download: it is a stand-in (:mod:`phantora.rank.standins.hub_attention`,
:mod:`phantora.rank.standins.hub_layers`), or the installed package with the same functions. Others are what the hub
gives. Where it gives nothing, a lookup ends in one line, and `kernelize` leaves a layer as it is.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from phantora.rank.importhook import after_import
from phantora.rank.messages import tell
from phantora.rank.patch import Patch, Rank, When

OWNER = "kernels-community"
STANDINS = ("flash-attn2", "flash-attn3", "vllm-flash-attn3", "activation", "relu", "rotary")


@dataclass(frozen=True)
class Like:
    """A kernel that is an installed package: its module, and what installs it."""

    module: str
    install: str


PACKAGES = {
    "flash-attn4": Like("flash_attn.cute", "pip install flash-attn-4"),
    "liger-kernels": Like("liger_kernel", "pip install liger-kernel"),
    "fla": Like("fla", "pip install flash-linear-attention"),
    "mamba-ssm": Like("mamba_ssm", "docs/howto/extensions-without-nvcc.md"),
    "causal-conv1d": Like("causal_conv1d", "docs/howto/extensions-without-nvcc.md"),
    "megablocks": Like("megablocks", "docs/howto/extensions-without-nvcc.md"),
    "deep-gemm": Like("deep_gemm", "docs/howto/extensions-without-nvcc.md"),
    "natten": Like("natten", "docs/howto/extensions-without-nvcc.md"),
    "sage-attention": Like("sageattention", "docs/howto/extensions-without-nvcc.md"),
    "triton-kernels": Like("triton_kernels", "the folder python/triton_kernels of Triton's source"),
}
PACKAGES["gpt-oss-triton-kernels"] = PACKAGES["triton-kernels"]
_loaded: dict[str, ModuleType] = {}


class _Layers(ModuleType):
    """The layers of a kernel. One that is missing is a file that is not found, after which `kernelize` keeps a
    model's own."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _say(self.__name__ + name, f"the layer {name} of {self.__name__} has no stand-in: a model's own runs")
        raise FileNotFoundError(f"the layer {name} of {self.__name__} has no stand-in")


def _say(key: str, text: str) -> None:
    from phantora.rank.standins import _said

    if key not in _said:
        _said.add(key)
        if os.environ.get("RANK", "0") == "0":
            tell(text)


def known(repository: str) -> bool:
    """Is it one of ours, or an installed package?"""
    owner, _, name = repository.partition("/")
    return owner == OWNER and (name in STANDINS or (name in PACKAGES and _installed(PACKAGES[name].module)))


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def kernel(repository: str) -> ModuleType:
    """The module of a known kernel."""
    if repository not in _loaded:
        _loaded[repository] = _made(repository)
    return _loaded[repository]


def _made(repository: str) -> ModuleType:
    from phantora.rank.standins import hub_attention, hub_layers

    name = repository.partition("/")[2]
    module, layers = ModuleType(name.replace("-", "_")), _Layers(repository)
    if name in PACKAGES:
        like = PACKAGES[name].module
        _say(repository, f"{repository} of the Hugging Face hub is the installed package {like} here")
        original = importlib.import_module(like)
        vars(module).update({key: value for key, value in vars(original).items() if not key.startswith("__")})
        if name == "liger-kernels":
            vars(layers).update(hub_layers.liger())
    else:
        _say(repository, f"{repository} of the Hugging Face hub: a stand-in with its shapes and times")
        flash = {
            "flash-attn2": hub_attention.Flash2,
            "flash-attn3": hub_attention.Flash3,
            "vllm-flash-attn3": hub_attention.FlashVllm,
        }
        if name in flash:
            vars(module).update(hub_attention.functions(flash[name]))
            return module
        functions, own = getattr(hub_layers, name)()
        vars(module).update(functions)
        vars(layers).update(own)
    vars(module)["layers"] = layers
    return module


def _missing(repository: str, error: BaseException) -> FileNotFoundError:
    name = repository.partition("/")[2]
    how = f"its package installs: {PACKAGES[name].install}" if name in PACKAGES else "known: " + ", ".join(STANDINS)
    reason = f"{type(error).__name__}: {error}".splitlines()[0].partition(". ")[0]
    return FileNotFoundError(f"the kernel {repository} has no stand-in ({how}), and no download: {reason}")


def _repository(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    return str(args[0] if args else kwargs.get("repo_id", ""))


def _instead(answer: Callable[[str], Any], otherwise: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    """`answer` for known kernels. Where the hub gives none: `otherwise`, or an error if that is None."""

    @functools.wraps(original)
    def looked_up(*args: Any, **kwargs: Any) -> Any:
        repository = _repository(args, kwargs)
        if known(repository):
            return answer(repository)
        try:
            return original(*args, **kwargs)
        except (ImportError, TypeError):
            raise
        except Exception as error:  # of the network, of a cache without it, of a publisher that cannot be looked up
            if otherwise is not None:
                return otherwise
            raise _missing(repository, error) from None

    return looked_up


_LOOKUPS: dict[str, tuple[Callable[[str], Any], Any]] = {
    "get_kernel": (kernel, None),
    "load_kernel": (kernel, None),
    "get_locked_kernel": (kernel, None),
    "has_kernel": (lambda repository: True, False),
    "select_revision_or_version": (lambda repository: "stand-in", None),
}


def _patch(module: ModuleType) -> None:
    for name, (answer, otherwise) in _LOOKUPS.items():
        original: Any = vars(module).get(name)
        if getattr(original, "__module__", "") == module.__name__:
            setattr(module, name, _instead(answer, otherwise, original))


def install(rank: Rank) -> None:
    """Answers lookups of the package `kernels`, in whichever of its modules they are defined: before frameworks take
    them from there."""
    after_import(lambda name: name.startswith("kernels."), _patch)


PATCH = Patch("kernels of the Hugging Face hub", When.BEFORE_TORCH, install)
