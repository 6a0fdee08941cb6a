"""What a run makes of well-known packages with kernels of their own, and how they are installed without nvcc.

Nothing is imported. `phantora doctor SCRIPT` prints it; a run that ends for want of one ends with its installation.
"""

from __future__ import annotations

from dataclasses import dataclass

PRICED, BY_SIZE, STANDIN, REFUSED = "priced", "by size", "stand-in", "refused"
_SOURCE = "its source folder on PYTHONPATH (its setup.py needs nvcc)"


def _without_build(variable: str, package: str, force: str = "") -> str:
    """The installation of a Python half: neither a compiled wheel from GitHub nor nvcc."""
    return f"{force and force + '=TRUE '}{variable}=TRUE pip install {package} --no-build-isolation"


@dataclass(frozen=True)
class Package:
    """One package, by the module that a script imports."""

    module: str
    distribution: str
    state: str
    """PRICED: operators have families. BY_SIZE: kernels take the time of their tensors. STANDIN: a stand-in of ours for
    its compiled half. REFUSED: it does not run."""
    note: str
    install: str = ""
    """How it is installed; "": ``pip install DISTRIBUTION``."""

    @property
    def how(self) -> str:
        """The command that installs it."""
        return self.install or f"pip install {self.distribution}"


_OF_HOPPER = "attention; hopper is a folder of flash-attn's source"
_FLASH_3 = _without_build("FLASH_ATTENTION_SKIP_CUDA_BUILD", "./hopper", "FLASH_ATTENTION_FORCE_BUILD")
_APEX_PARTS = (
    *(f"apex.contrib.{name}" for name in ("bottleneck", "conv_bias_relu", "cudnn_gbn", "groupbn", "peer_memory")),
    *("apex.contrib.transducer", "fast_bottleneck", "fused_conv_bias_relu", "cudnn_gbn_lib", "bnp"),
    *("peer_memory_cuda", "nccl_p2p_cuda", "transducer_joint_cuda", "transducer_loss_cuda"),
)
"""Without a stand-in, and the compiled modules that they import."""
PACKAGES = (
    Package("flash_attn.cute", "flash-attn-4", PRICED, "attention"),
    Package(
        "flash_attn",
        "flash-attn",
        STANDIN,
        "attention",
        _without_build("FLASH_ATTENTION_SKIP_CUDA_BUILD", "flash-attn"),
    ),
    Package(
        "causal_conv1d",
        "causal-conv1d",
        STANDIN,
        "by the bytes of its tensors",
        _without_build("CAUSAL_CONV1D_SKIP_CUDA_BUILD", "causal-conv1d", "CAUSAL_CONV1D_FORCE_BUILD"),
    ),
    Package(
        "mamba_ssm",
        "mamba-ssm",
        STANDIN,
        "scans by the bytes of their tensors, Triton kernels by their IR",
        _without_build("MAMBA_SKIP_CUDA_BUILD", "mamba-ssm", "MAMBA_FORCE_BUILD"),
    ),
    Package("grouped_gemm", "grouped_gemm", STANDIN, "torch's grouped product", _SOURCE),
    Package("deep_ep", "deep_ep", STANDIN, "exchanges of experts (docs/frameworks/deepep.md)", "nothing"),
    Package("transformer_engine", "transformer-engine", PRICED, "operators of its extension", "docs/versions.md"),
    Package("bitsandbytes", "bitsandbytes", PRICED, "optimizers and 4-bit products"),
    Package("torchao", "torchao", PRICED, "torch's operators and Triton kernels"),
    Package("triton", "triton", PRICED, "kernels by their IR"),
    Package("fla", "flash-linear-attention", PRICED, "Triton kernels by their IR"),
    Package("liger_kernel", "liger-kernel", PRICED, "Triton kernels by their IR"),
    Package("cut_cross_entropy", "cut-cross-entropy", PRICED, "Triton kernels by their IR"),
    Package("cutlass", "nvidia-cutlass-dsl", BY_SIZE, "CuTe kernels by their tensors, products by their extents"),
    Package("quack", "quack-kernels", BY_SIZE, "CuTe kernels by their tensors, products by their extents"),
    Package("cupy", "cupy-cuda13x", BY_SIZE, "library calls as torch's, other kernels by their grid"),
    Package("numba", "numba-cuda", BY_SIZE, "kernels by their grid"),
    Package("flash_attn_interface", "flash-attn 3", STANDIN, _OF_HOPPER, _FLASH_3),
    Package("flash_attn_3", "flash-attn 3", STANDIN, _OF_HOPPER, _FLASH_3),
    Package("xformers", "xformers", PRICED, "torch's attention; install the torch that its wheel is built for"),
    Package("sageattention", "sageattention", STANDIN, "version 1: Triton kernels by their IR; version 2: attention"),
    Package("apex", "apex", STANDIN, "norms, softmax, losses, optimizers and products as torch's", _SOURCE),
    *(Package(each, "apex", REFUSED, "no stand-in for this part of apex", "-") for each in _APEX_PARTS),
    Package("megablocks", "megablocks", STANDIN, "torch's sorts and sums, Triton kernels by their IR", _SOURCE),
    Package(
        "deep_gemm",
        "deep_gemm",
        STANDIN,
        "products as torch's, logits of an index as attention",
        "DG_SKIP_CUDA_BUILD=1 pip install ./DeepGEMM --no-build-isolation",
    ),
    Package("natten", "natten", STANDIN, "attention to windows", "pip install natten --no-build-isolation"),
    Package("kernels", "kernels", STANDIN, "kernels of the Hugging Face hub that Phantora has; others are downloaded"),
)


def known(module: str) -> Package | None:
    """The package of a module's full name, the one with the longest name first."""
    found = [each for each in PACKAGES if module == each.module or module.startswith(each.module + ".")]
    return max(found, key=lambda each: len(each.module), default=None)


def remedy_of(error: BaseException) -> str:
    """What to do about an import of a missing package whose build needs nvcc; "" for other errors."""
    found = known(error.name or "") if isinstance(error, ModuleNotFoundError) else None
    if found is None:
        return ""
    if found.state == STANDIN:
        return f"install without nvcc: {found.how}"
    return found.note if found.state == REFUSED else f"install it: {found.how}"
