"""Tokens and samples of the job, if the log shows them.

Tokens are the indices that the largest embedding table of a rank is asked for; the forward operator is logged as the
index_select or the gather that it becomes, the backward one names the table, and is read where there is one. A kernel
of torch.compile with "embedding" in its name takes the indices, the table and the rows that it reads or adds to.

Samples are their first dimension, or that of the images of convolutions with at most four channels: the fewest that any
network takes, since others take an image more than once (a GAN's discriminator, a perceptual loss). Passes of a sampler
without a backward pass give no samples. A batch that the host copies to the GPU counts as often as it is copied,
however often networks run on it.

Every rank's count, unless ranks share a batch: those of a group that sums activations of the embedding's size in the
forward pass are tensor-parallel, and count once. In the backward pass gradients of weights may have that size.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from phantora.fold.mesh import from_dict
from phantora.trace.analysis.communicators import Group, collective_kind
from phantora.trace.analysis.grouping import first_of
from phantora.trace.analysis.report import Throughput
from phantora.trace.analysis.windows import Window, kind_mask
from phantora.trace.reader import Log
from phantora.trace.schema import COMMUNICATION_KINDS, COPY_NAMES

EMBEDDING = "aten::embedding_dense_backward"
_FORWARD = ("aten::index_select", "aten::embedding")
_GATHER = "aten::gather.out"
_BACKWARD_CONVOLUTION = "aten::convolution_backward"
_FORWARD_CONVOLUTIONS = ("aten::cudnn_convolution", "aten::convolution", "aten::_convolution")
_ARGUMENTS = re.compile(r"\w+\[[\d,]*\], \w+\[([\d,]+)\], (\d+)")
_LOOKUP = re.compile(r"\w+\[(\d+),(\d+)\], (?:0, )?i(?:64|32)\[([\d,]+)\]")
_GATHERED = re.compile(r"\w+\[(\d+),(\d+)\], 0, i64\[(\d+),\2\]")
_COMPILED = "inductor::triton_"
_TENSORS = re.compile(r"(\w+)\[([\d,]+)\]")
_IMAGES = re.compile(r"\w+\[((\d+),[1-4],\d+,\d+)\], (\w+\[\d+,[1-4],\d+,\d+\])")
_WIDTH = re.compile(r"\w+\[(?:[\d,]+,)?(\d+)\]")
_INTEGERS, _PIXELS = (4, 8), (1, 2, 4)  # bytes of an index and of a pixel on the host
_LEAST_EXCHANGES = 2  # of activations in a forward pass that make a group tensor-parallel

_KERNEL, _COMMUNICATION = kind_mask(("kernel",)), kind_mask(COMMUNICATION_KINDS)


@dataclass(frozen=True)
class _Lookup:
    """The sizes of one call of an operator."""

    table: tuple[int, int]
    """Rows and width."""
    tokens: int
    samples: int
    backward: bool
    elements: int = 0
    """Elements of the embedding's activations."""


@dataclass(frozen=True)
class _Images:
    """The sizes of one convolution of images."""

    count: int
    pixels: int
    """Elements of all images, with their channels."""
    weights: str
    backward: bool


@dataclass
class _Seen:
    """Counts of one rank in one step."""

    lookups: list[_Lookup] = field(default_factory=list)
    images: list[_Images] = field(default_factory=list)
    copied: Counter[int] = field(default_factory=Counter)
    """Copies from the host by their bytes."""

    @property
    def elements(self) -> int:
        return max((lookup.elements for lookup in self.lookups), default=0)

    def volume(self) -> tuple[int, int]:
        """Tokens and samples: of the table that is asked for most, or of the images."""
        tables: dict[tuple[bool, tuple[int, int]], list[_Lookup]] = defaultdict(list)
        for lookup in self.lookups:
            tables[lookup.backward, lookup.table].append(lookup)
        batches = {images.count for images in self.images}
        found: list[tuple[bool, int, int]] = []
        for (backward, _), own in tables.items():
            if {each.tokens for each in own} <= batches:
                continue  # an embedding of the images' classes or times
            tokens = samples = 0
            for each, times in Counter(own).items():
                times = self._batches(times, each.tokens, _INTEGERS)
                tokens, samples = tokens + times * each.tokens, samples + times * each.samples
            found.append((backward, tokens, samples))
        if not found:
            return 0, self._samples()
        trained = [each for each in found if each[0]] or found
        return max(tokens for _, tokens, _ in trained), max(samples for _, _, samples in trained)

    def _samples(self) -> int:
        trained = [images for images in self.images if images.backward]
        networks: dict[str, Counter[_Images]] = defaultdict(Counter)
        for images in trained or self.images:
            networks[images.weights][images] += 1
        if not trained and any(runs.total() > 1 for runs in networks.values()):
            return 0
        counts = [
            sum(each.count * self._batches(times, each.pixels, _PIXELS) for each, times in runs.items())
            for runs in networks.values()
        ]
        return min(counts, default=0)

    def _batches(self, times: int, elements: int, widths: Sequence[int]) -> int:
        """Number of batches of `elements` elements (`widths`: bytes of one) in `times` runs of a network."""
        return min(times, sum(self.copied[elements * width] for width in widths) or times)


class Volume:
    """Gathers windows of steady steps."""

    def __init__(self, log: Log, known: dict[int, Group], ranks: Sequence[int]) -> None:
        """`ranks` are those of the windows; in a folded run each counts for all that it stands for."""
        self._known = known
        fold = from_dict(log.metadata.extra["fold"]) if log.metadata.extra.get("fold") else None
        traced = log.metadata.world_size / len(log.metadata.ranks)  # a trace may hold some ranks of a real run only
        self._weights = [fold.represented(rank) if fold else traced for rank in ranks]
        operators, shapes = log.words("op"), log.words("shape")
        readers: dict[str, Callable[[str], _Lookup | _Images | None]] = {
            EMBEDDING: _embedding,
            _GATHER: _gathered,
            _BACKWARD_CONVOLUTION: _images,
        }
        readers.update(dict.fromkeys(_FORWARD, _lookup))
        readers.update(dict.fromkeys(_FORWARD_CONVOLUTIONS, _images_forward))
        self._readers = [readers.get(word) or _compiled_reader(word) for word in operators]
        self._wanted = np.array([reader is not None for reader in self._readers] + [False])
        self._shapes = shapes
        self._kinds = [collective_kind(word) for word in log.words("name")]
        from_host = {COPY_NAMES["H2D_PINNED"], COPY_NAMES["H2D_PAGEABLE"]}
        self._from_host = np.array([word in from_host for word in log.words("name")] + [False])
        self._pulls = [word == COPY_NAMES["P2P"] for word in log.words("name")]
        self._backward = np.array(["_backward" in word for word in operators] + [False])
        self._trains = False
        self._steps: dict[int | None, tuple[float, float, float]] = {}  # tokens, samples of the job; tokens of a rank

    def add(self, window: Window) -> None:
        """Adds the operators of one step that tell the tokens."""
        own = window.own
        mask = own & _KERNEL[window["kind"]] & self._wanted[window["op"]]
        rank, link, op, shape = (window[c][mask] for c in ("rank", "link", "op", "shape"))
        seen: dict[int, _Seen] = defaultdict(_Seen)
        first = first_of((rank, link))  # an operator may launch several
        for r, o, s in zip(rank[first].tolist(), op[first].tolist(), shape[first].tolist(), strict=True):
            reader = self._readers[o]
            found = reader(self._shapes[s]) if reader and s >= 0 else None
            if isinstance(found, _Lookup):
                seen[r].lookups.append(found)
            elif found is not None:
                seen[r].images.append(found)
        self._trains = self._trains or bool((own & self._backward[window["op"]]).any())
        if seen:
            copies = own & self._from_host[window["name"]]
            for r, size in zip(window["rank"][copies].tolist(), window["bytes"][copies].tolist(), strict=True):
                if r in seen:
                    seen[r].copied[size] += 1
            shared = self._shared(window, {r: s.elements for r, s in seen.items()})
            volumes = {r: s.volume() for r, s in seen.items()}
            shares = {r: self._weights[r] / shared.get(r, 1) for r in seen}
            self._steps[window.span.step] = (
                sum(shares[r] * tokens for r, (tokens, _) in volumes.items()),
                sum(shares[r] * samples for r, (_, samples) in volumes.items()),
                max(tokens for tokens, _ in volumes.values()),
            )

    def _shared(self, window: Window, elements: dict[int, int]) -> dict[int, int]:
        """Number of ranks with the same batch, by rank position."""
        own = window.own
        turned = np.flatnonzero(own & _KERNEL[window["kind"]] & self._backward[window["op"]])
        forward_ends: dict[int, int] = defaultdict(lambda: np.iinfo(np.int64).max)
        for rank, start in zip(window["rank"][turned].tolist(), window["start"][turned].tolist(), strict=True):
            forward_ends[rank] = min(forward_ends[rank], start)
        rows = np.flatnonzero(own & _COMMUNICATION[window["kind"]])
        columns = (window[c][rows].tolist() for c in ("rank", "comm", "name", "bytes", "start"))
        exchanged: dict[tuple[int, tuple[int, ...]], int] = defaultdict(int)
        for rank, comm, name, moved, start in zip(*columns, strict=True):
            size = elements.get(rank, 0)
            if not size or name < 0 or comm not in self._known or start >= forward_ends[rank]:
                continue
            ranks = self._known[comm].ranks
            whole = moved * len(ranks) if self._pulls[name] else moved  # fused operators copy what others hold of it
            if self._pulls[name] or self._kinds[name] in ("all_reduce", "reduce_scatter"):
                exchanged[rank, ranks] += whole in (2 * size, 4 * size)
        found: dict[int, int] = defaultdict(lambda: 1)
        for (rank, ranks), count in exchanged.items():
            if count >= _LEAST_EXCHANGES:
                found[rank] *= len(ranks)
        return found

    def report(self, step_time: float, mean_of: Collection[int] = ()) -> Throughput | None:
        """`step_time` in ns. `mean_of`: the steps whose mean it is, where steps differ; else the median one counts."""
        differ = [self._steps[number] for number in mean_of if number in self._steps]
        if not self._steps or not step_time:
            return None
        found = np.mean(differ, axis=0) if differ else np.median(list(self._steps.values()), axis=0)
        tokens, samples, of_rank = found.tolist()
        if not tokens and not samples:
            return None
        per_second = (tokens / step_time * 1e9, samples / step_time * 1e9)
        return Throughput(tokens, per_second[0], samples, per_second[1], of_rank, read=not self._trains)


def _embedding(shape: str) -> _Lookup | None:
    found = embedding(shape)
    if found is None:
        return None
    table, indices = found
    tokens = prod(indices)
    samples = indices[0] if len(indices) > 1 else 0
    width = embedding_width(shape)
    return _Lookup((table, width), tokens, samples, True, tokens * width)


def _lookup(shape: str) -> _Lookup | None:
    match = _LOOKUP.match(shape)
    if match is None:
        return None
    return _Lookup((int(match[1]), int(match[2])), prod(int(n) for n in match[3].split(",")), 0, False)


def _gathered(shape: str) -> _Lookup | None:
    """None if it asks for more rows than there are, as the backward pass of sparse embedding bags does."""
    match = _GATHERED.match(shape)
    if match is None or int(match[3]) > int(match[1]):
        return None
    return _Lookup((int(match[1]), int(match[2])), int(match[3]), 0, False)


def _compiled_reader(operator: str) -> Callable[[str], _Lookup | None] | None:
    """The reader of a kernel that torch.compile made of an embedding's lookup or of its backward pass."""
    if not operator.startswith(_COMPILED) or "_embedding" not in operator:
        return None
    backward = EMBEDDING.removeprefix("aten::") in operator
    return lambda shape: _compiled_lookup(shape, backward)


def _compiled_lookup(shape: str, backward: bool) -> _Lookup | None:
    """``i64[8,2048], bf16[32000,4096], bf16[8,2048,4096]``: the table is as wide as what it has for each index."""
    found = [(dtype, tuple(int(n) for n in sizes.split(","))) for dtype, sizes in _TENSORS.findall(shape)]
    indices = max((sizes for dtype, sizes in found if dtype in ("i64", "i32")), key=prod, default=())
    others = [sizes for dtype, sizes in found if dtype not in ("i64", "i32")]
    tokens, whole = prod(indices), {prod(sizes) for sizes in others}
    tables = [s for s in others if len(s) == 2 and s[0] != tokens and tokens * s[1] in whole]
    if not indices or not tables:
        return None
    rows, width = max(tables)
    return _Lookup((rows, width), tokens, indices[0] if len(indices) > 1 else 0, backward, tokens * width)


def _images(shape: str) -> _Images | None:
    """Images of a convolution's backward: its gradient, its input, its weights."""
    return _image(shape.split(", ", 1)[-1], True)


def _images_forward(shape: str) -> _Images | None:
    return _image(shape, False)


def _image(shape: str, backward: bool) -> _Images | None:
    match = _IMAGES.match(shape)
    if match is None:
        return None
    return _Images(int(match[2]), prod(int(n) for n in match[1].split(",")), match[3], backward)


def embedding(shape: str) -> tuple[int, list[int]] | None:
    """Rows of the table and shape of the indices, from the arguments of :data:`EMBEDDING`:
    ``bf16[1,2048,4096], i64[1,2048], 32000, ...``."""
    match = _ARGUMENTS.match(shape)
    return (int(match[2]), [int(n) for n in match[1].split(",")]) if match else None


def embedding_width(shape: str) -> int:
    """Elements of a row of the table, from the arguments of :data:`EMBEDDING`; 0 if they do not say."""
    match = _WIDTH.match(shape)
    return int(match[1]) if match else 0
