"""The operators measured when nobody names any: sizes between which those of training runs lie.

Extents are drawn from what models use (hidden sizes, heads, vocabularies, shards of them) and from
their neighbourhood, by a generator with a fixed seed: the same list each time. Groups are interleaved,
so that a sweep that is cut short has covered each of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import zip_longest
from math import prod

from phantora.cost import float8
from phantora.cost.parse import write_signature
from phantora.cost.types import TensorSpec
from phantora.cost.wanted import Wanted
from phantora.profile import forms
from phantora.profile.forms import tensor, wanted
from phantora.profile.rebuild import COPY, MEMSET

MOST_BYTES = 6 << 30  # of one operator's operands
MOST_FLOPS = 4e12
MOST_ELEMENTS = 1 << 28
LEAST_FLOPS = 5e9  # of products in FP8: below, nobody uses them

_TOKENS = (256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 32768)
# fmt: off
_WIDTHS = (
    128, 256, 512, 768, 1024, 1280, 1536, 2048, 2560, 2752, 3072, 3584, 4096, 4608, 5120, 5504, 6144, 6912,
    7168, 8192, 9216, 10240, 11008, 12288, 13824, 14336, 16384, 18944, 21504, 28672, 32000, 32064, 50304,
    128256, 151936,
)
# fmt: on
# Of FP8 products: any may be a number of tokens, a width, or a shard of one.
# fmt: off
_SIDES = (
    512, 1024, 1280, 1536, 2048, 2560, 3072, 3584, 4096, 5120, 5504, 6144, 7168, 8192, 8192, 10240, 11008, 12288,
    13824, 14336, 16384, 16384, 18432, 20480, 24576, 28672, 32768,
)
# fmt: on
_MAGNITUDES = (*tuple(1 << power for power in range(8, 29, 2)), 3 << 10, 3 << 14, 3 << 18, 3 << 22, 3 << 25)


def sweep() -> list[Wanted]:
    """All of it, the groups interleaved."""
    # fmt: off
    groups = [list(group) for group in (
        _gemm("bfloat16", 900, 1), _gemm("float32", 130, 3, "tf32"), _gemm("float16", 60, 2), _gemm("float32", 60, 4),
        _batched(), _scaled(), _grouped(), _flash(), _cudnn(), _efficient(), _heads(), _elementwise(), _norms(), _softmax(),
        _losses(), _lookups(), _lists(), _convolutions(), _networks(), _images(), _moves(), _transfers(), _rest(), _scattered(),
        _depthwise(), _group_norms(), _extents(), _tables(), _sorts(), _dropouts(), _patches(),
    )]
    # fmt: on
    merged = [entry for row in zip_longest(*groups) for entry in row if entry is not None]
    return list(dict.fromkeys(merged))


def _gemm(dtype: str, count: int, seed: int, compute: str = "") -> Iterator[Wanted]:
    """Products as linear layers issue them: forward (nt), input's gradient (nn), weight's (tn)."""
    generator = random.Random(seed)
    seen: set[tuple[int, int, int, str]] = set()
    width = 2 if dtype != "float32" else 4
    while len(seen) < count:
        tokens, inner, outer = generator.choice(_TOKENS), generator.choice(_WIDTHS), generator.choice(_WIDTHS)
        if generator.random() < 0.25:  # sizes off the beaten track
            tokens = generator.randrange(128, 16384, 8)
        layout = generator.choice(("nt", "nn", "tn", "tn2"))
        m, n, k = {"nt": (tokens, outer, inner), "nn": (tokens, inner, outer)}.get(layout, (outer, inner, tokens))
        limit = MOST_FLOPS if dtype != "float32" else MOST_FLOPS / (4 if compute else 20)
        if 2.0 * m * n * k > limit or (m * k + k * n + m * n) * width > MOST_BYTES or (m, n, k, layout) in seen:
            continue
        seen.add((m, n, k, layout))
        a = tensor(m, k, dtype=dtype, order=(1, 0) if layout in ("tn",) else None)
        b = tensor(k, n, dtype=dtype, order=(1, 0) if layout in ("nt", "tn2") else None)
        if layout == "tn2":  # a transposed, written (B, A) by torch when the result is transposed
            a, b = tensor(m, k, dtype=dtype, order=(1, 0)), tensor(k, n, dtype=dtype)
        if layout == "nt" and generator.random() < 0.15:
            yield wanted("aten::addmm", tensor(n, dtype=dtype), a, b, 1, 1, compute=compute)
        else:
            yield wanted("aten::mm", a, b, compute=compute)


def _patches() -> Iterator[Wanted]:
    """Products of layers over patches of images, whose number no power of two divides: their tiles fill the GPU unevenly."""
    generator = random.Random(29)
    seen: set[tuple[int, int, int, str, str]] = set()
    while len(seen) < 500:
        batch, each = (
            generator.choice((8, 16, 24, 32, 48, 64, 96, 128)),
            generator.choice((49, 64, 144, 196, 197, 256, 257, 577, 784, 3136)),
        )
        width, times = (
            generator.choice((96, 128, 192, 320, 384, 512, 640, 768, 1024, 1152, 1280, 1408)),
            generator.choice((1, 2, 3, 4, 4)),
        )
        layout, dtype = generator.choice(("nt", "nn", "tn")), "float32" if generator.random() < 0.15 else "bfloat16"
        tokens, (inner, outer) = batch * each, generator.sample((width, times * width), 2)
        m, n, k = {"nt": (tokens, outer, inner), "nn": (tokens, inner, outer)}.get(layout, (outer, inner, tokens))
        if tokens > 1 << 17 or (m, n, k, layout, dtype) in seen:
            continue
        seen.add((m, n, k, layout, dtype))
        a = tensor(m, k, dtype=dtype, order=(1, 0) if layout == "tn" else None)
        b = tensor(k, n, dtype=dtype, order=(1, 0) if layout == "nt" else None)
        compute = "tf32" if dtype == "float32" else ""
        if layout == "nt" and generator.random() < 0.5:
            yield wanted("aten::addmm", tensor(n, dtype=dtype), a, b, 1, 1, compute=compute)
        else:
            yield wanted("aten::mm", a, b, compute=compute)


def _batched() -> Iterator[Wanted]:
    for batch in (8, 32, 64, 128):
        for s in (512, 1024, 2048, 4096):
            for d in (64, 128):
                if batch * s * s * 2 <= 1 << 30:
                    yield wanted("aten::bmm", tensor(batch, s, d), tensor(batch, d, s, order=(0, 2, 1)))
                    yield wanted("aten::bmm", tensor(batch, s, s), tensor(batch, s, d))
                    yield wanted("aten::bmm", tensor(batch, s, s, order=(0, 2, 1)), tensor(batch, s, d))
                    yield wanted(
                        "aten::baddbmm",
                        tensor(batch, s, s),
                        tensor(batch, s, d),
                        tensor(batch, d, s, order=(0, 2, 1)),
                        0,
                        0.1,
                    )


def _scaled() -> Iterator[Wanted]:
    """FP8 products in every way in which training scales and accumulates them, of shapes whose sides are any of tokens
    and widths, as those of forward passes and of both gradients are."""
    generator = random.Random(5)
    for scales, count in (("tensor", 150), ("rows", 80), ("blocks", 50)):
        done = 0
        while done < count:
            m, n, k = (generator.choice(_SIDES) for _ in range(3))
            if not LEAST_FLOPS < 2.0 * m * n * k < 3 * MOST_FLOPS or 4 * m * n + (m + n) * k > MOST_BYTES:
                continue
            done += 1
            for way in float8.WAYS[scales]:
                yield Wanted(signature=write_signature(float8.product(m, n, k, way)))


def _grouped() -> Iterator[Wanted]:
    for tokens in (2048, 8192, 16384):
        for groups in (8, 32, 64):
            for k, n in ((2048, 1408), (4096, 14336), (2048, 768), (7168, 2048)):
                if groups * k * n * 2 > 4 << 30:
                    continue
                ends = tensor(groups, dtype="int32")
                yield wanted("aten::_grouped_mm", tensor(tokens, k), tensor(groups, k, n), ends, None, None)
                yield wanted(
                    "aten::_grouped_mm", tensor(tokens, k), tensor(groups, k, n, order=(0, 2, 1)), ends, None, None
                )
                yield wanted("aten::_grouped_mm", tensor(k, tokens, order=(1, 0)), tensor(tokens, n), ends, None, None)


# (batch, sequence, heads, kv heads, head size)
# fmt: off
_ATTENTION = tuple(
    (b, s, h, kv, d)
    for s in (512, 1024, 2048, 4096, 8192, 16384)
    for b, h, kv, d in (
        (1, 32, 8, 128), (2, 32, 32, 128), (1, 8, 2, 128), (1, 16, 8, 128), (4, 16, 8, 128), (1, 12, 12, 64),
        (8, 32, 8, 64), (1, 64, 8, 128), (4, 32, 8, 128), (2, 16, 16, 64), (8, 16, 4, 128), (1, 24, 8, 128),
    )
    if b * h * s * s <= 32 * 16384 * 16384
)
# fmt: on


def _flash() -> Iterator[Wanted]:
    for i, sizes in enumerate(_ATTENTION):
        yield from forms.flash(*sizes, i % 5 != 4)


def _cudnn() -> Iterator[Wanted]:
    for i, sizes in enumerate(_ATTENTION):
        yield from forms.cudnn(*sizes, i % 5 != 4)


def _efficient() -> Iterator[Wanted]:
    generator = random.Random(8)
    cells = [
        (b, s, h, d)
        for b in (1, 2, 4, 8, 16, 32, 64)
        for s in (128, 197, 256, 512, 1024, 2048, 4096)
        for h in (8, 12, 16)
        for d in (32, 64, 128)
        if b * s * h * d <= 1 << 25 and b * h * s * s <= 1 << 30
    ]
    for b, s, h, d in generator.sample(cells, min(200, len(cells))):
        dtype = generator.choice(("float32", "float32", "bfloat16", "float16"))
        yield from forms.efficient(b, s, h, d, dtype, generator.random() < 0.4)


def _heads() -> Iterator[Wanted]:
    """Attention of other head sizes, and over the words of a prompt, as diffusion models have it."""
    generator = random.Random(14)
    for _ in range(60):
        b, h = generator.choice((1, 2, 4, 8, 16)), generator.choice((8, 10, 12, 16, 20, 32))
        s, d = generator.choice((64, 256, 1024, 2048, 4096)), generator.choice((32, 40, 80, 96, 160, 192, 256))
        if b * h * s * s <= 1 << 30:
            causal = generator.random() < 0.3
            if d % 8 == 0:
                yield from forms.flash(b, s, h, h, d, causal)
            if d <= 128:
                yield from forms.cudnn(b, s, h, h, d, causal)


def _dropouts() -> Iterator[Wanted]:
    """Attention that drops some of its weights, as GPT-2 and BERT were trained."""
    generator = random.Random(11)
    cells = [
        (b, s, h, d)
        for b in (1, 4, 8, 16, 32, 64)
        for s in (128, 256, 512, 1024, 2048, 4096)
        for h in (12, 16, 32)
        for d in (64, 128)
        if b * s * h * d <= 1 << 26
    ]
    for b, s, h, d in generator.sample(cells, 60):
        causal = generator.random() < 0.5
        yield from forms.flash(b, s, h, h, d, causal, 0.1)
        yield from forms.cudnn(b, s, h, h, d, causal, 0.1)
        yield from forms.efficient(b, s, h, d, generator.choice(("float32", "bfloat16")), causal, 0.1)


def _elementwise() -> Iterator[Wanted]:
    """Every kind over sizes of 1 KiB to 1 GiB; shapes are flat, rows, and views of heads."""
    unary = (
        "aten::silu",
        "aten::gelu",
        "aten::clamp_min",
        "aten::neg",
        "aten::exp",
        "aten::rsqrt",
        "aten::sigmoid",
        "aten::tanh",
    )
    for n in _MAGNITUDES:
        flat, wide = tensor(n), tensor(n, dtype="float32")
        yield wanted("aten::add.Tensor", flat, flat, 1)
        yield wanted("aten::mul.Tensor", flat, flat)
        yield wanted("aten::copy_", flat, wide, False)
        yield wanted("aten::copy_", wide, flat, False)
        yield wanted("aten::add_.Tensor", flat, flat, 1)
        yield wanted("aten::add_.Tensor", wide, wide, 1)
        yield wanted("aten::mul.Tensor", wide, wide)
        yield wanted("aten::fill_.Scalar", wide, 0)
        yield wanted("aten::fill_.Scalar", flat, 0)
        yield wanted("aten::silu", flat)
        yield wanted("aten::silu_backward", flat, flat, backward=True)
        yield wanted("aten::mul_.Tensor", wide, tensor(dtype="float32"))
        yield wanted("aten::div_.Tensor", wide, tensor(dtype="float32"))
        yield wanted("aten::sum.dim_IntList", wide, ())
        yield wanted("aten::normal_", wide, 0.0, 0.02, None)
        yield wanted("aten::native_dropout", flat, 0.1, True)
        yield wanted("aten::threshold_backward", flat, flat, 0, backward=True)
        yield wanted("aten::clamp_min_", wide, 0)
        yield wanted("aten::copy_", tensor(n, dtype="float16"), wide, False)
        yield wanted("aten::add.Tensor", tensor(n, dtype="int64"), tensor(n, dtype="int64"), 1)
        yield wanted("aten::div_.Tensor", flat, TensorSpec("float32", (), stride=(), device="cpu"))
        yield wanted("aten::where.self", tensor(n, dtype="bool"), flat, flat)
        yield wanted("aten::linalg_vector_norm", flat, 2.0, None, False, "float32")
    for n in (1 << 14, 1 << 20, 1 << 24, 1 << 26):
        for name in unary:
            extra = {"aten::gelu": ("none",), "aten::clamp_min": (0,)}.get(name, ())
            yield wanted(name, tensor(n), *extra)
            yield wanted(name, tensor(n, dtype="float32"), *extra)
        yield wanted("aten::pow.Tensor_Scalar", tensor(n, dtype="float32"), 2)
        yield wanted("aten::addcmul", *(tensor(n, dtype="float32"),) * 3, 1)
        yield wanted("aten::lerp_.Scalar", *(tensor(n, dtype="float32"),) * 2, 0.1)
        yield wanted("aten::eq.Tensor", tensor(n, dtype="int64"), tensor(n, dtype="int64"))
        yield wanted("aten::gelu_backward", tensor(n), tensor(n), "none", backward=True)
        yield wanted("aten::bernoulli_.float", tensor(n, dtype="float32"), 0.5, None)
        yield wanted("aten::uniform_", tensor(n, dtype="float32"), 0.0, 1.0, None)
    for sizes in (
        (1, 512, 8, 128),
        (1, 2048, 16, 128),
        (1, 4096, 8, 128),
        (1, 4096, 32, 128),
        (2, 4096, 32, 128),
        (4, 2048, 32, 64),
        (1, 8192, 32, 128),
        (8, 4096, 8, 128),
        (1, 16384, 32, 128),
    ):
        yield from forms.rotary(*sizes)
    for rows in (512, 2048, 4096, 8192, 16384):
        for width in (1024, 4096, 8192, 14336):
            x = tensor(1, rows, width)
            part = TensorSpec("bfloat16", (1, rows, width // 2), stride=(rows * width, width, 1))
            yield wanted("aten::mul.Tensor", part, part)
            yield wanted("aten::copy_", tensor(rows, width, dtype="float32"), tensor(rows, width), False)
            yield wanted("aten::mul.Tensor", x, tensor(width))
            yield wanted("aten::add.Tensor", x, tensor(width), 1)
            yield wanted("aten::sum.dim_IntList", x, (0, 1), True)
            yield wanted("aten::sum.dim_IntList", tensor(rows, width), (0,), True)
            yield wanted("aten::mean.dim", tensor(rows, width, dtype="float32"), (-1,), True)
            yield wanted("aten::amax", tensor(rows, width), (-1,), True)
            yield wanted("aten::copy_", tensor(rows, width), tensor(rows, width, order=(1, 0)), False)


def _norms() -> Iterator[Wanted]:
    for rows in (512, 1024, 2048, 4096, 8192, 16384, 32768):
        for width in (768, 1024, 2048, 3072, 4096, 5120, 8192):
            for dtype in ("bfloat16", "float32") if width in (2048, 4096) else ("bfloat16",):
                if rows * width <= MOST_ELEMENTS:
                    yield from forms.norms(rows, width, dtype)


def _softmax() -> Iterator[Wanted]:
    for rows, width in (
        (4096, 512),
        (16384, 512),
        (8192, 1024),
        (32768, 1024),
        (8192, 2048),
        (65536, 2048),
        (16384, 4096),
        (65536, 4096),
        (32768, 8192),
    ):
        x = tensor(rows, width)
        yield wanted("aten::_softmax", x, -1, False)
        yield wanted("aten::_softmax_backward_data", x, x, -1, "bfloat16", backward=True)
        y = tensor(rows, width, dtype="float32")
        yield wanted("aten::_softmax", y, -1, False)


def _losses() -> Iterator[Wanted]:
    for rows in (512, 1024, 2048, 4096, 8192, 16384):
        for vocabulary in (8000, 16032, 32000, 50304, 64128, 128256, 151936):
            if rows * vocabulary * 4 > 2 << 30:
                continue
            x, target, one = (
                tensor(rows, vocabulary, dtype="float32"),
                tensor(rows, dtype="int64"),
                tensor(dtype="float32"),
            )
            yield wanted("aten::_log_softmax", x, 1, False)
            yield wanted("aten::_log_softmax_backward_data", x, x, 1, "float32", backward=True)
            yield wanted("aten::nll_loss_forward", x, target, None, 1, -100)
            yield wanted("aten::nll_loss_backward", one, x, target, None, 1, -100, one, backward=True)
            yield wanted("aten::_log_softmax", tensor(rows, vocabulary), 1, False)
            yield wanted("aten::max.dim", x, -1, False)
            yield wanted("aten::exp", x)
            yield wanted("aten::sum.dim_IntList", x, (-1,), False)


def _lookups() -> Iterator[Wanted]:
    for tokens in (512, 2048, 4096, 8192, 16384, 32768):
        for width in (1024, 2048, 4096, 8192):
            for vocabulary in (32000, 128256):
                index = tensor(1, tokens, dtype="int64")
                yield wanted(
                    "aten::embedding_dense_backward",
                    tensor(1, tokens, width),
                    index,
                    vocabulary,
                    -1,
                    False,
                    backward=True,
                )
                spread = TensorSpec("int64", (tokens, width), stride=(1, 0))
                yield wanted("aten::gather.out", tensor(vocabulary, width), 0, spread, False, tensor(tokens, width))


# A layer's parameters, cut over ranks: what optimizers and FSDP's copies work on.
def _layer(dim: int, ffn: int, kv: int, ranks: int) -> list[tuple[int, int]]:
    rows = [(dim, dim), (kv, dim), (kv, dim), (dim, dim), (ffn, dim), (dim, ffn), (ffn, dim), (1, dim), (1, dim)]
    return [(-(-n // ranks), k) for n, k in rows]


def _lists() -> Iterator[Wanted]:
    for dim, ffn, kv in ((2048, 8192, 1024), (4096, 14336, 1024), (1024, 4096, 1024), (512, 2048, 512)):
        for ranks in (1, 4, 64):
            for layers in (1, 4, 16):
                shapes = _layer(dim, ffn, kv, ranks) * layers
                total = sum(prod(shape) for shape in shapes)
                for dtype, width in (("float32", 4), ("bfloat16", 2)):
                    if total * width <= MOST_BYTES:
                        yield from forms.optimizers(shapes, dtype, states=4 * total * width <= MOST_BYTES)
                if total * 6 <= MOST_BYTES:
                    yield from forms.list_copies(shapes)
        for ranks in (2, 4, 8, 16, 64):
            yield from forms.fsdp(_layer(dim, ffn, kv, 1), ranks)


# (channels in, out, image, taps, stride)
# fmt: off
RESNET = (
    (3, 64, 224, 7, 2), (64, 64, 56, 1, 1), (64, 64, 56, 3, 1), (64, 256, 56, 1, 1), (256, 64, 56, 1, 1), (256, 128, 56, 1, 1),
    (128, 128, 56, 3, 2), (128, 512, 28, 1, 1), (256, 512, 56, 1, 2), (512, 128, 28, 1, 1), (128, 128, 28, 3, 1),
    (512, 256, 28, 1, 1), (256, 256, 28, 3, 2), (256, 1024, 14, 1, 1), (512, 1024, 28, 1, 2), (1024, 256, 14, 1, 1),
    (256, 256, 14, 3, 1), (1024, 512, 14, 1, 1), (512, 512, 14, 3, 2), (512, 2048, 7, 1, 1), (1024, 2048, 14, 1, 2),
    (2048, 512, 7, 1, 1), (512, 512, 7, 3, 1),
)
# fmt: on


def _convolutions() -> Iterator[Wanted]:
    """ResNet's, at several batches, in both layouts and three precisions."""
    for batch in (64, 192, 16, 512):
        for dtype, last in (("bfloat16", True), ("float32", False), ("float32", True), ("bfloat16", False)):
            for layer in RESNET:
                yield from forms.convolution(batch, *layer, dtype, last)


# The same of ResNet-18 and 34, Wide ResNet-50-2, VGG-16, a U-Net's levels, ViT's patches.
# fmt: off
_NETWORKS = (
    (64, 128, 56, 3, 2), (64, 128, 56, 1, 2), (128, 256, 28, 3, 2), (128, 256, 28, 1, 2), (256, 512, 14, 3, 2), (256, 512, 14, 1, 2),
    (64, 128, 56, 1, 1), (128, 256, 56, 1, 1), (128, 128, 56, 3, 1), (256, 256, 56, 3, 2), (256, 256, 28, 3, 1),
    (256, 512, 28, 1, 1), (512, 256, 28, 1, 1), (512, 512, 28, 3, 2), (512, 512, 14, 3, 1), (512, 1024, 14, 1, 1),
    (1024, 1024, 14, 3, 2), (1024, 1024, 7, 3, 1), (1024, 2048, 7, 1, 1), (2048, 1024, 7, 1, 1), (1024, 512, 28, 1, 1),
    (3, 64, 224, 3, 1), (64, 64, 224, 3, 1), (64, 128, 112, 3, 1), (128, 128, 112, 3, 1), (128, 256, 56, 3, 1), (256, 256, 56, 3, 1),
    (256, 512, 28, 3, 1), (512, 512, 28, 3, 1), (320, 320, 64, 3, 1), (320, 640, 32, 3, 1), (640, 640, 32, 3, 1),
    (640, 1280, 16, 3, 1), (1280, 1280, 16, 3, 1), (1280, 1280, 8, 3, 1), (3, 768, 224, 16, 16), (3, 1024, 224, 16, 16), (3, 96, 224, 4, 4),
)
# fmt: on


def _networks() -> Iterator[Wanted]:
    """Convolutions of other networks, and ResNet's between its regular batches: cuDNN's choice of a kernel jumps."""
    # fmt: off
    resnet = (
        (64, 64, 56, 1, 1), (64, 64, 56, 3, 1), (64, 256, 56, 1, 1), (256, 64, 56, 1, 1), (128, 128, 28, 3, 1), (128, 512, 28, 1, 1),
        (512, 128, 28, 1, 1), (256, 256, 14, 3, 1), (256, 1024, 14, 1, 1), (1024, 256, 14, 1, 1), (512, 512, 7, 3, 1),
        (512, 2048, 7, 1, 1), (2048, 512, 7, 1, 1), (128, 128, 56, 3, 2), (256, 512, 56, 1, 2), (512, 1024, 28, 1, 2),
    )
    # fmt: on
    for layers, batches in ((_NETWORKS, (32, 128, 64, 256)), (resnet, (32, 128, 256, 48, 96))):
        for batch in batches:
            for dtype, last in (("bfloat16", True), ("float32", False), ("bfloat16", False), ("float32", True)):
                for c, k, size, tap, stride in layers:
                    if batch * max(c, k) * size * size <= MOST_ELEMENTS:
                        yield from forms.convolution(batch, c, k, size, tap, stride, dtype, last)


def _images() -> Iterator[Wanted]:
    """Batch norm, pooling and what stands between convolutions."""
    for batch in (32, 64, 128, 256):
        for dtype, last in (("bfloat16", True), ("float32", False), ("float32", True)):
            order = (0, 2, 3, 1) if last else None
            for c, size in (
                (64, 112),
                (64, 56),
                (256, 56),
                (128, 28),
                (512, 28),
                (256, 14),
                (1024, 14),
                (512, 7),
                (2048, 7),
            ):
                yield from forms.batch_norms(batch, c, size, dtype, last)
                x = tensor(batch, c, size, size, dtype=dtype, order=order)
                yield wanted("aten::threshold_backward", x, x, 0, backward=True)
                yield wanted("aten::add_.Tensor", x, x, 1)
            x = tensor(batch, 64, 112, 112, dtype=dtype, order=order)
            y = tensor(batch, 64, 56, 56, dtype=dtype, order=order)
            index = tensor(batch, 64, 56, 56, dtype="int64", order=order)
            yield wanted("aten::max_pool2d_with_indices", x, (3, 3), (2, 2), (1, 1), (1, 1), False)
            yield wanted(
                "aten::max_pool2d_with_indices_backward",
                y,
                x,
                (3, 3),
                (2, 2),
                (1, 1),
                (1, 1),
                False,
                index,
                backward=True,
            )
            yield wanted("aten::mean.dim", tensor(batch, 2048, 7, 7, dtype=dtype, order=order), (-1, -2), True)


def _group_norms() -> Iterator[Wanted]:
    generator = random.Random(9)
    cells = [
        (batch, c, size, groups)
        for batch in (4, 8, 16, 32, 64)
        for c in (64, 96, 128, 192, 256, 320, 512, 640, 960, 1280)
        for size in (8, 16, 32, 56, 64, 128)
        for groups in (32, 32, 1)
        if c % groups == 0 and batch * c * size * size <= 1 << 27
    ]
    for cell in generator.sample(cells, 60):
        yield from forms.group_norms(*cell, generator.choice(("float32", "bfloat16")))


def _extents() -> Iterator[Wanted]:
    """Images made larger and smaller."""
    for batch, c, size in ((4, 128, 64), (8, 512, 8), (8, 320, 32), (16, 256, 16), (32, 64, 56)):
        for dtype, last in (("float32", False), ("float32", True), ("bfloat16", True)):
            yield from forms.resizings(batch, c, size, dtype, last)
            yield from forms.average_pools(batch, c, size, dtype, last)


def _tables() -> Iterator[Wanted]:
    """Lookups of recommenders and graphs."""
    for rows, width in ((10_000, 16), (100_000, 64), (1_000_000, 64), (1_000_000, 128), (100_000, 128)):
        for batch, each in ((128, 8), (1024, 1), (2048, 8), (8192, 4), (16384, 32)):
            yield from forms.bags(rows, width, batch, each)
    generator = random.Random(13)
    for _ in range(50):
        rows, width = generator.choice((10_000, 100_000, 1_000_000)), generator.choice((8, 16, 32, 64, 128, 256))
        yield from forms.bags(rows, width, 1 << generator.randrange(5, 16), 1 << generator.randrange(0, 6))
    for _ in range(80):
        words = generator.choice((2, 512, 4096, 8000, 30522, 32000, 50257, 50304, 128256))
        rows, width = 1 << generator.randrange(8, 16), generator.choice((256, 512, 768, 1024, 2048, 4096))
        given = tensor(1, rows, width, dtype=generator.choice(("float32", "bfloat16")))
        index = tensor(1, rows, dtype="int64")
        yield wanted("aten::embedding_dense_backward", given, index, words, -1, False, backward=True)
    for nodes, edges in ((2708, 10556), (10_000, 100_000), (100_000, 1_000_000), (169_343, 1_166_243)):
        for width in (16, 64, 256):
            yield from forms.graph(nodes, edges, width, "float32")
        yield from forms.graph(nodes, edges, 128, "bfloat16")


def _depthwise() -> Iterator[Wanted]:
    generator = random.Random(10)
    cells = [
        (batch, c, size, tap, stride)
        for batch in (16, 32, 64, 128)
        for c in (32, 96, 144, 192, 240, 384, 480, 672, 768, 1152)
        for size in (7, 14, 28, 56, 112)
        for tap, stride in ((3, 1), (3, 2), (5, 1), (5, 2), (7, 1), (7, 2))
        if batch * c * size * size <= 1 << 27 and (c <= 192 or size <= 28)
    ]
    for cell in generator.sample(cells, 160):
        yield from forms.depthwise(*cell, *generator.choice(_IMAGE_TYPES))


def _moves() -> Iterator[Wanted]:
    for rows in (1024, 4096, 16384):
        for width in (1024, 4096):
            x = tensor(rows, width)
            yield wanted("aten::cat", (x, x), 0)
            yield wanted("aten::cat", (x, x), 1)
            yield wanted("aten::cat", (x,) * 4, 0)
            yield wanted("aten::index.Tensor", x, (tensor(rows, dtype="int64"),))
            yield wanted("aten::_index_put_impl_", x, (tensor(rows, dtype="int64"),), x, False, False)
            yield wanted("aten::cumsum", x, 0, None)
            yield wanted("aten::topk", tensor(rows, 64, dtype="float32"), 6, -1, True, True)
            yield wanted("aten::sort.stable", tensor(rows * 8, dtype="int64"), False, 0, False)
            yield wanted(
                "aten::scatter_add", tensor(rows, width), 0, TensorSpec("int64", (rows, width), stride=(1, 0)), x
            )
            yield wanted("aten::argmax", x, -1, False)
            yield wanted("aten::masked_fill_.Scalar", x, tensor(rows, 1, dtype="bool"), 0)
            yield wanted("aten::tril", tensor(width, width), 0)


def _transfers() -> Iterator[Wanted]:
    for half in range(16, 61):  # two sizes an octave
        size = round(2 ** (half / 2)) // 64 * 64
        for kind in ("d2d", "h2d_pinned", "d2h_pinned", "h2d_pageable", "d2h_pageable"):
            if size <= 1 << 28 or kind == "d2d":
                yield wanted(COPY, kind, size)
        yield wanted(MEMSET, size)


def _sorts() -> Iterator[Wanted]:
    generator = random.Random(12)
    for power in range(8, 25):
        for dtype in ("bfloat16", "float32", "int32", "int64"):
            yield wanted("aten::sort.stable", tensor(1 << power, dtype=dtype), False, 0, False)
    cells = [
        (rows, width, dtype)
        for rows in (1, 8, 64, 512, 4096, 32768)
        for width in (8, 16, 64, 256, 1024, 2048, 4096, 8192, 32000, 128256)
        for dtype in ("float32", "bfloat16")
        if rows * width <= 1 << 27
    ]
    for rows, width, dtype in cells:
        x = tensor(rows, width, dtype=dtype)
        for k in generator.sample([k for k in (1, 2, 4, 8, 50) if k <= width], 2):
            yield wanted("aten::topk", x, k, -1, True, True)
        if width <= 8192 and rows >= 8:
            yield wanted("aten::sort.stable", x, False, -1, False)


def _rest() -> Iterator[Wanted]:
    for n in (1 << 10, 1 << 16, 1 << 20, 1 << 24):
        yield wanted("aten::random_.from", tensor(n, dtype="int64"), 0, 32000, None)
        yield wanted("aten::arange.start_out", 0, n, 1, tensor(n, dtype="int64"))
        yield wanted("aten::cumsum", tensor(n, dtype="int64"), 0, None)
        yield wanted(
            "aten::_amp_foreach_non_finite_check_and_unscale_",
            (tensor(n, dtype="float32"),) * 8,
            tensor(dtype="float32"),
            tensor(dtype="float32"),
        )


# ---------------------------------------------------------------------- between the regular sizes


def _scattered() -> Iterator[Wanted]:
    generator = random.Random(7)
    draws = (_attention, _norm, _batch_norm, _rows, _list, _convolution, _convolution, _convolution, _flat, _views)
    for _ in range(200):
        for draw in draws:
            yield from draw(generator)


def _attention(g: random.Random) -> Iterator[Wanted]:
    b, d = g.choice((1, 1, 2, 3, 4, 8)), g.choice((64, 128, 128))
    h = g.choice((2, 4, 6, 8, 10, 12, 16, 20, 24, 28, 32, 40, 48, 64))
    kv = g.choice([n for n in (1, 2, 4, 8, h) if h % n == 0])
    s = g.choice((512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288))
    causal = g.random() < 0.75
    if b * h * s * s <= 32 * 8192 * 8192:
        yield from forms.flash(b, s, h, kv, d, causal)
        yield from forms.cudnn(b, s, h, kv, d, causal)


def _norm(g: random.Random) -> Iterator[Wanted]:
    rows = g.choice((256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768))
    width = g.choice((512, 768, 1024, 1280, 1536, 2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192))
    if rows * width <= MOST_ELEMENTS:
        yield from forms.norms(rows, width, g.choice(("bfloat16", "bfloat16", "float32")))


_IMAGE_TYPES = (("bfloat16", True), ("float32", False), ("float32", True), ("bfloat16", False))
_BATCHES = (16, 24, 32, 48, 64, 96, 128, 192, 256)


def _batch_norm(g: random.Random) -> Iterator[Wanted]:
    batch, size = g.choice(_BATCHES), g.choice((7, 14, 28, 56, 112))
    c = g.choice((64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048))
    if batch * c * size * size <= MOST_ELEMENTS:
        yield from forms.batch_norms(batch, c, size, *g.choice(_IMAGE_TYPES))


def _convolution(g: random.Random) -> Iterator[Wanted]:
    tap, stride = g.choice(((1, 1), (1, 1), (3, 1), (3, 1), (1, 2), (3, 2)))
    c, k = (g.choice((64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048)) for _ in range(2))
    batch, size = g.choice(_BATCHES), g.choice((7, 14, 28, 56))
    if batch * max(c, k) * size * size <= MOST_ELEMENTS and c * k <= 1 << 20:
        yield from forms.convolution(batch, c, k, size, tap, stride, *g.choice(_IMAGE_TYPES))


def _rows(g: random.Random) -> Iterator[Wanted]:
    rows = 1 << g.randrange(5, 17)
    width = g.choice((128, 512, 768, 1000, 2048, 3072, 4096, 8000, 11008, 16032, 32000, 50304, 128256))
    if rows * width <= MOST_ELEMENTS:
        dtype = g.choice(("float32", "bfloat16"))
        yield from forms.reductions(rows, width, dtype)
        yield from forms.softmaxes(rows, width, dtype)


def _list(g: random.Random) -> Iterator[Wanted]:
    """A few matrices and vectors, or many, as optimizers see them."""
    count, unit = g.choice((1, 4, 9, 12, 27, 40, 62, 100, 162, 290)), 1 << g.randrange(10, 25)
    small = g.choice((64, 512, 1024, 2048, 4096))
    shapes = [(unit if i >= 60 or g.random() < 0.7 else small,) for i in range(count)]
    if 16 * sum(n for (n,) in shapes) <= MOST_BYTES:
        yield from forms.optimizers(shapes, g.choice(("float32", "bfloat16")))
        yield from forms.list_copies(shapes)


def _flat(g: random.Random) -> Iterator[Wanted]:
    n = round(2 ** g.uniform(10, 27)) // 8 * 8
    flat, wide = tensor(n), tensor(n, dtype="float32")
    yield wanted("aten::add_.Tensor", wide, flat, 1)
    yield wanted("aten::mul.Tensor", flat, flat)
    yield wanted("aten::add.Tensor", wide, wide, 1)
    yield wanted("aten::sub.Tensor", wide, wide, 1)
    yield wanted("aten::copy_", wide, flat, False)
    yield wanted("aten::copy_", flat, wide, False)
    yield wanted("aten::div.Tensor", wide, tensor(dtype="float32"))
    yield wanted("aten::mul.Tensor", wide, TensorSpec("float64", (), stride=(), device="cpu"))


def _views(g: random.Random) -> Iterator[Wanted]:
    b, s = g.choice((1, 2, 4)), g.choice((512, 1024, 2048, 4096, 8192))
    yield from forms.rotary(b, s, g.choice((2, 4, 8, 12, 16, 32)), g.choice((64, 128)))
    rows, width = g.choice((512, 1024, 3072, 6144, 8192)), g.choice((768, 1536, 2752, 3584, 5504, 7168, 9472))
    x, part = tensor(rows, width), TensorSpec("bfloat16", (rows, width), stride=(2 * width, 1))
    yield wanted("aten::silu", part)
    yield wanted("aten::mul.Tensor", x, part)
    yield wanted("aten::cat", (x,) * g.choice((2, 3, 4, 8)), g.choice((0, 1)))
